"""The prompts of requests, read by the best way that their model has: what an earlier turn said is remembered."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from forebay.platform.api import prompt_metrics as metrics
from forebay.platform.api.bounds import Turns
from forebay.platform.api.engine_tokens import MOST_TEXTS, EngineTokens
from forebay.platform.api.requests import BYTES_PER_TOKEN, SHORT, ChatSource, Inference, Source, TextSource
from forebay.platform.api.transcripts import Known, Marks, Transcripts, messages_from, nearest, offset
from forebay.platform.catalogue import Entry
from forebay.platform.errors import ApiError, invalid
from forebay.platform.readers import Readers
from forebay.router import (
    Chat,
    Checkpoint,
    Memory,
    Prompt,
    Prompter,
    Read,
    Reading,
    Router,
    Rung,
    TemplateError,
    TokenizerError,
    TooLongError,
    Weights,
    byte_read,
    ids_read,
    seeded,
)

log = logging.getLogger(__name__)
LONGEST = (1 << 23) - 1  # tokens, where neither the model nor its engines name a length
GUESSED = 1 << 18  # bytes that are guessed about aside: more than a millisecond
LONG = 1 << 17  # characters that may take seconds; shorter work does not wait for those
_PARAMS = {"chat.completions": "messages", "completions": "prompt"}


class Unread(Struct, frozen=True):
    """A decoded request whose prompt is to be read."""

    project: str
    salt: str
    entry: Entry
    inference: Inference
    source: Source
    known: Known | None
    body: bytes


class Prompts:
    """One instance serves all models. Those that are `disputed` at the moment are not read with their tokenizer."""

    def __init__(
        self,
        readers: Readers,
        weights: Weights,
        memory: Memory,
        router: Router,
        engines: EngineTokens,
        *,
        disputed: Collection[str] = (),
    ) -> None:
        self._reasons = readers.reasons
        self._readers = readers.prompters
        self._disputed = disputed
        self._weights = weights
        self._transcripts = Transcripts(memory)
        self._router = router
        self._engines = engines
        cores = os.cpu_count() or 1
        self._aside, self._aside_long = Turns(cores), Turns(max(1, cores // 2))
        metrics.watch(memory)

    def report(self) -> dict[str, dict[str, str]]:
        """How each model's prompts are read, and why."""
        return {model: self._way(model, reason) for model, reason in self._reasons.items()}

    def _way(self, model: str, reason: str) -> dict[str, str]:
        reader = self._readers.get(model)
        if reader is None or model in self._disputed:
            why = "its engines make other tokens than its tokenizer" if reader else reason
            return {"rung": Rung.ENGINE, "reason": why}
        return {"rung": reader.rung, "reason": reason}

    def known(self, project: str, api: str, body: bytes) -> Known | None:
        """What of the body was read before. A short one is read anew each time."""
        return self._transcripts.known(project, body) if api == "chat.completions" and len(body) > SHORT else None

    async def read(self, unread: Unread) -> Prompt:
        """Raises `ApiError` 400 for a prompt that is longer than the model's context."""
        model, source = unread.entry.model.name, unread.source
        if source is None:
            return Prompt(max(1, unread.inference.size))
        told = self._router.reading(unread.entry.pool.name)
        limit = _limit(unread.entry, told)
        began = time.perf_counter()
        try:
            rung, read = await self._best(unread, source, limit - 1)  # an engine wants room for one token of its own
        except TooLongError as error:
            raise _too_long(unread.inference.api, limit, error.at_least) from None
        metrics.read(model, rung, read, time.perf_counter() - began)
        keys = seeded(read.sums, self._weights.seed(lora=told.lora, salt=unread.salt))
        return Prompt(max(1, read.tokens), keys.astype("<u8", copy=False).tobytes(), rung, read.exact)

    async def _best(self, unread: Unread, source: ChatSource | TextSource, limit: int) -> tuple[Rung, Read]:
        model = unread.entry.model.name
        reader = None if model in self._disputed else self._readers.get(model)
        if isinstance(source, ChatSource):
            return await self._chat(unread, source, reader, limit)
        share = len(source.prompts)
        reads = [await self._text(unread, prompt, reader, limit, share) for prompt in source.prompts]
        rung, longest = max(reads, key=lambda one: one[1].tokens)
        tokens = sum(read.tokens for _, read in reads)  # of all prompts, but the keys of the longest
        exact = all(read.exact for _, read in reads)
        return rung, Read(tokens, longest.sums, exact, remembered=sum(read.remembered for _, read in reads))

    async def _chat(
        self, unread: Unread, source: ChatSource, reader: Prompter | None, limit: int
    ) -> tuple[Rung, Read]:
        if reader is not None and (read := await self._remembered(unread, source, reader, limit)) is not None:
            return reader.rung, read
        asks = reader is None or reader.templated
        if asks and (ids := await self._engines.chat(unread.entry.pool, source, unread.body)) is not None:
            return Rung.ENGINE, ids_read(self._weights, ids, limit)
        read = await self._guessed(unread, lambda: _bytes_of(source, unread.body))
        tools = len(unread.body) - (source.layout.end - source.layout.start if source.layout else 0)
        return Rung.BYTES, msgspec.structs.replace(read, tokens=read.tokens + tools // BYTES_PER_TOKEN)

    async def _remembered(
        self, unread: Unread, source: ChatSource, reader: Prompter, limit: int
    ) -> Read | None:
        """None where the model's template cannot be used for this chat."""
        conversation = _Conversation(unread, source)
        try:
            read = await reader.chat(unread.project, conversation, limit, self._runner(unread.project))
        except (TemplateError, TokenizerError) as error:
            _unread(unread, error)
            return None
        if read is not None and read.checkpoints:
            marks = Marks(conversation.rendered, read.checkpoints)
            self._transcripts.remember(unread.project, unread.known, source, unread.body, marks)
        return read

    async def _text(
        self, unread: Unread, prompt: str | list[int], reader: Prompter | None, limit: int, share: int
    ) -> tuple[Rung, Read]:
        if not isinstance(prompt, str):
            return reader.rung if reader else Rung.WHOLE, ids_read(self._weights, prompt, limit)
        if reader is not None:
            try:
                aside = self._runner(unread.project)
                return reader.rung, await reader.text(unread.project, prompt, limit, aside, share=share)
            except TokenizerError as error:
                _unread(unread, error)
        elif share <= MOST_TEXTS and (ids := await self._engines.text(unread.entry.pool, prompt)) is not None:
            return Rung.ENGINE, ids_read(self._weights, ids, limit)
        return Rung.BYTES, await self._guessed(unread, lambda: prompt.encode("utf-8", "surrogatepass"))

    async def _guessed(self, unread: Unread, data: Callable[[], bytes]) -> Read:
        if len(unread.body) <= GUESSED:
            return byte_read(self._weights, data())
        read: Read = await self._runner(unread.project)(lambda: byte_read(self._weights, data()), len(unread.body))
        return read

    def _runner(self, project: str) -> Callable[[Callable[[], Any], int], Any]:
        return partial(self._run_aside, project)

    async def _run_aside(self, project: str, work: Callable[[], Any], size: int) -> Any:
        turns = self._aside if size <= LONG else self._aside_long
        async with turns.take(project):
            return await asyncio.to_thread(work)


class _Conversation:
    """Made by the thread of the memory, whatever becomes of what was known there; any may ask for messages."""

    def __init__(self, unread: Unread, source: ChatSource) -> None:
        self._known = unread.known
        self._source = source
        self.rendered = unread.entry.model.name.encode() + source.rendered
        self.known = self._known.prior.messages if self._known is not None else 0
        self.checkpoint: Checkpoint | None = None if self._known is None else nearest(self._known, self.rendered)
        self.size = len(unread.body)
        self._offset = 0  # in the body, of the messages behind the checkpoint
        if self._known is not None and self.checkpoint is not None:
            self._offset = offset(self._known, self.checkpoint.mark.start)
            turns = source.layout.turns if source.layout else ()
            self.size = self._known.prior.end - self._offset + sum(len(turn.text) for turn in turns)

    def since(self, message: int) -> Chat:
        earlier = []
        if self._known is not None:
            earlier = messages_from(self._known, self._offset if message else self._known.prior.head)
        new = self._source.messages
        if self._known is not None:
            new = new[max(0, message - self._known.prior.messages) :]
        members = self._source.members
        return Chat(
            [*earlier, *new] if self._known is not None else new[message:],
            tools=members.get("tools"),
            tool_choice=members.get("tool_choice"),
            template_kwargs=members.get("chat_template_kwargs", {}),
            reasoning_effort=members.get("reasoning_effort"),
            add_generation_prompt=members.get("add_generation_prompt", True),
            continue_final_message=members.get("continue_final_message", False),
        )


def _limit(entry: Entry, told: Reading) -> int:
    """Tokens of prompt and answer together."""
    own, engines = entry.model.context_length or LONGEST, told.context_length or LONGEST
    return min(own, engines)


def _unread(unread: Unread, error: Exception) -> None:
    """An engine may read it, or refuse it in its own words."""
    model = unread.entry.model.name
    log.info("a prompt of %s cannot be read here: %s", model, error)
    metrics.UNREAD.labels(model=model, reason=type(error).__name__.removesuffix("Error").lower()).inc()


def _bytes_of(source: ChatSource, body: bytes) -> bytes:
    """What a conversation has in common with its next turn, byte for byte."""
    return body if source.layout is None else source.rendered + body[source.layout.start : source.layout.end - 1]


def _too_long(api: str, limit: int, tokens: int) -> ApiError:
    what = _PARAMS[api]
    verb = "resulted" if what == "messages" else "results"
    return invalid(
        f"This model's maximum context length is {limit} tokens. However, your {what} {verb} in at least {tokens} "
        f"tokens. Please reduce the length of the {what}.",
        param=what,
        code="context_length_exceeded",
    )
