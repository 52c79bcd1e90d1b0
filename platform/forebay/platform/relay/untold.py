"""What an engine did not tell of an answer that is billed is counted here: what it read, and what the client has.

Never more than the engine did: of a prompt only tokens that were counted, not guessed; of a text the model's own tokens
or, where they are not known, its words, none of which is less than a token. What cannot be counted is nothing, and so
are reasoning and calls of tools.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from msgspec import structs

from forebay.platform.relay import metrics
from forebay.platform.relay.call import Call
from forebay.router import Prompter, Rung, Usage

LONG = 1 << 12  # characters of a text whose tokens are counted aside


def is_told(call: Call, usage: Usage | None, *, continues: bool) -> bool:
    """Whether the engine told all that is billed: not the prompt, of one that `continues` another's answer."""
    if usage is None or (usage.prompt_tokens is None and not continues):
        return False
    return usage.completion_tokens is not None or call.inference.api == "embeddings"


class Untold:
    """`prompters` by model, where known; `disputed` are models whose engines make other tokens than these."""

    def __init__(self, prompters: Mapping[str, Prompter], disputed: Collection[str] = ()) -> None:
        self._prompters = prompters
        self._disputed = disputed

    async def counted(self, call: Call, usage: Usage | None, texts: Sequence[str], *, continues: bool) -> Usage:
        """What it told, and for what it did not what is counted of the prompt and `texts`, which the client has."""
        usage, model = usage or Usage(), call.model
        if usage.prompt_tokens is None and not continues:
            known = call.prompt.rung is not Rung.BYTES
            metrics.untold(model, "prompt", "tokens" if known else "nothing").inc()
            usage = structs.replace(usage, prompt_tokens=call.prompt.tokens if known else None)
        if usage.completion_tokens is None and call.inference.api != "embeddings":
            tokens, by = await self._output(model, texts)
            metrics.untold(model, "output", by).inc()
            usage = structs.replace(usage, completion_tokens=tokens)
        return usage

    async def _output(self, model: str, texts: Sequence[str]) -> tuple[int | None, str]:
        texts = [text for text in texts if text]
        if not texts:
            return None, "nothing"
        prompter = None if model in self._disputed else self._prompters.get(model)
        counts = [None] if prompter is None else await _tokens(prompter, texts)
        known = [count for count in counts if count is not None]
        if len(known) == len(texts):
            return sum(known), "tokens"
        return sum(max(1, len(text.split())) for text in texts), "words"


async def _tokens(prompter: Prompter, texts: Sequence[str]) -> list[int | None]:
    if sum(map(len, texts)) <= LONG:
        return [prompter.count(text) for text in texts]
    return await asyncio.to_thread(lambda: [prompter.count(text) for text in texts])
