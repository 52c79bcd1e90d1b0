"""Whether an answer that was cut can be continued, and with what request: the model's own chat template is asked, or
its tokenizer."""

import asyncio
from collections.abc import Collection, Mapping

from forebay.platform.relay.call import Call
from forebay.platform.relay.chain import Chain
from forebay.platform.relay.continuation import Members, Resumption, chat_of, members_of, resumption, unfaithful
from forebay.platform.relay.seam import Still
from forebay.router import Prompter

LARGE = 1 << 16  # bytes of a request that are read and rendered aside
LONG = 1 << 12  # characters of an answer that are


class Resumer:
    """`prompters` by model, of those whose templates and tokenizers are known; `disputed` are models whose engines make
    other tokens than these."""

    def __init__(self, prompters: Mapping[str, Prompter], disputed: Collection[str] = ()) -> None:
        self._prompters = prompters
        self._disputed = disputed

    async def resume(self, call: Call, chain: Chain) -> Resumption | str:
        """`call` is the request as it came. What to ask the next engine for, or why the answer does not go on."""
        if chain.seam is None:
            return unfaithful(call.inference, members_of(call.inference))
        seam = chain.seam.still()
        if len(call.inference.forward) <= LARGE and chain.seam.length <= LONG:
            return self._resume(call, seam)
        return await asyncio.to_thread(self._resume, call, seam)

    def _resume(self, call: Call, seam: Still) -> Resumption | str:
        members = members_of(call.inference)
        if not any(endpoint.adapter.continues for endpoint in tuple(call.pool.endpoints.values())):
            return "engine"
        prompter = self._prompters.get(call.model)
        known = prompter is not None and call.model not in self._disputed
        found = resumption(call.inference, members, seam, prompter.behind if prompter and known else None)
        if isinstance(found, Resumption) and found.cut.text and not _continues(call, members, found.cut.text, prompter):
            return "template"
        return found


def _continues(call: Call, members: Members, text: str, prompter: Prompter | None) -> bool:
    if call.inference.api != "chat.completions":
        return True
    return prompter is not None and prompter.continues(chat_of(members), text)
