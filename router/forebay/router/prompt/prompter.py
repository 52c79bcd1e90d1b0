"""The prompts of one model: rendered and tokenized from where an earlier turn of the conversation stopped."""

import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, structs

from forebay.router.prefix.keys import Keys, Weights
from forebay.router.prompt.behind import ids_behind
from forebay.router.prompt.causal_marks import Mark
from forebay.router.prompt.chat import Chat, Rendered, TemplateError
from forebay.router.prompt.ladder import Ladder, byte_chunks
from forebay.router.prompt.ladder_limit import TooLongError
from forebay.router.prompt.memory import Memory
from forebay.router.prompt.prompt import Rung
from forebay.router.prompt.template import Template
from forebay.router.prompt.text import Known, Pieces, Resume, TextMemory
from forebay.router.prompt.tokenizer import to_ids
from forebay.router.prompt.tokenizer_files import TokenizerError

SMALL = 1 << 11  # characters of a conversation that is rendered anew each time
HEAVY = 1 << 14  # characters that are rendered aside: they take more than some milliseconds
DENSE = 1 << 12  # characters that are tokenized aside: a millisecond each, for hundreds of requests at once
_EVERY = 16  # messages from one checkpoint of a long conversation to the next; the first and last ones have their own
_ENDS = 2
MOST_GUESSED = 1 << 20  # tokens
_CHECKPOINT = 1024  # bytes of a checkpoint, about, without its texts

_QUESTION = Chat([{"role": "user", "content": "How is that? " * 20}])

Aside = Callable[[Callable[[], Any], int], Awaitable[Any]]  # the work, and about how many characters it is on


class Checkpoint(Struct, frozen=True, gc=False):
    """Where reading a conversation can go on: the template behind some messages, and the tokens of the text by then."""

    mark: Mark
    resume: Resume

    @property
    def nbytes(self) -> int:
        return _CHECKPOINT + sys.getsizeof(self.resume.rest) + self.mark.size


class Read(Struct, frozen=True):
    """`sums`: unseeded prefix sums at every 32nd token. Not `exact`: they are those of the prompt's beginning, and
    `tokens` counts no more than that. `checkpoints` by the number of messages before them."""

    tokens: int
    sums: Keys
    exact: bool = True
    checkpoints: dict[int, Checkpoint] = {}
    remembered: int = 0  # tokens that were known before


class Conversation(Protocol):
    """A chat request whose first `known` messages were read before. `size`: characters, about, of what follows the
    checkpoint; of all that is rendered, where there is none."""

    known: int
    checkpoint: Checkpoint | None
    size: int

    def since(self, message: int) -> Chat:
        """With the messages from the checkpoint's `mark.start` on, or from 0. Any thread may ask."""


class Prompter:
    """`template` is None for a model without one, or whose engines do not use it. `probe` is a text that tells
    tokenizers apart. `today` says the date to templates that ask. Long work is done by `aside`, which must run it in
    another thread."""

    def __init__(
        self,
        name: str,
        ladder: Ladder,
        template: Template | None,
        weights: Weights,
        memory: Memory,
        *,
        today: Callable[[], datetime],
    ) -> None:
        self.rung: Rung = ladder.rung
        self.reason = ladder.reason
        self.templated = template is not None
        self.probe = ladder.probe
        self._ladder = ladder
        self._template = template
        self._today = today
        if template is not None:
            with contextlib.suppress(TemplateError):  # one that wants more than a question is none the worse
                ladder.learn(template.render(_QUESTION, today(), marked=False).text)
        self._chats = TextMemory(ladder, weights, memory, name)
        self._texts = TextMemory(ladder, weights, memory, name, completions=True)

    def probe_ids(self) -> list[int]:
        """What an engine with this tokenizer makes of a completion's prompt that is `probe`."""
        tokenizer = self._ladder.tokenizer
        parts = tokenizer.completion_prefix, tokenizer.encode(self.probe), tokenizer.completion_suffix
        ids: list[int] = np.concatenate(parts).tolist()
        return ids

    async def chat(self, project: str, conversation: Conversation, limit: int, aside: Aside) -> Read | None:
        """None for a model without a template, and for a chat of which even the beginning is uncertain. Raises
        `TemplateError`, `TokenizerError`, and `TooLongError` for more
        than `limit` tokens."""
        if self._template is None:
            return None
        if conversation.checkpoint is None and conversation.size <= SMALL:
            return self._small(project, conversation, limit, self._template)
        found = await self._resumed(project, conversation, aside)
        if found is None:
            rendered = await self._rendered(self._template, conversation, aside)
            if not rendered.exact and not rendered.text:
                return None
            known = self._chats.known(project, None, rendered.text)
            assert known is not None
            found = rendered, known, -rendered.start
        rendered, known, shift = found
        pieces = await self._encoded(self._chats, known, limit, aside)
        marks = _some(rendered.marks, conversation.known)
        counted = self._chats.remember(known, pieces, [mark.length + shift for mark in marks])
        checkpoints = {
            mark.messages: Checkpoint(mark, resume)
            for mark, resume in zip(marks, counted.resumes, strict=True)
            if resume is not None
        }
        return Read(counted.tokens.count, counted.tokens.sums, rendered.exact, checkpoints, known.count)

    def _small(self, project: str, conversation: Conversation, limit: int, template: Template) -> Read | None:
        rendered = template.render(conversation.since(0), self._today(), marked=False)
        if not rendered.exact and not rendered.text:
            return None
        known = self._chats.known(project, None, rendered.text)
        assert known is not None
        counted = self._chats.remember(known, self._chats.encode(known, limit=limit))
        return Read(counted.tokens.count, counted.tokens.sums, rendered.exact, remembered=known.count)

    async def _rendered(self, template: Template, conversation: Conversation, aside: Aside) -> Rendered:
        now = self._today()
        if conversation.checkpoint is None and conversation.size <= HEAVY:
            return template.render(conversation.since(0), now)
        rendered: Rendered = await aside(lambda: template.render(conversation.since(0), now), conversation.size)
        return rendered

    async def _resumed(
        self, project: str, conversation: Conversation, aside: Aside
    ) -> tuple[Rendered, Known, int] | None:
        """What follows the checkpoint, and by how much its marks are off. None where the whole has to be rendered."""
        checkpoint = conversation.checkpoint
        template, now = self._template, self._today()
        if checkpoint is None or template is None or not checkpoint.resume.run.alive:
            return None
        mark = checkpoint.mark
        if conversation.size <= HEAVY:
            rendered = template.resume(mark, conversation.since(mark.start), now)
        else:
            since = conversation.since
            rendered = await aside(lambda: template.resume(mark, since(mark.start), now), conversation.size)
        if rendered is None:
            return None
        resume = checkpoint.resume
        known = self._chats.known(project, resume.run, resume.rest + rendered.text)
        return None if known is None else (rendered, known, len(resume.rest) - rendered.start)

    def continues(self, chat: Chat, answer: str) -> bool:
        """Whether an engine that is asked to continue `answer` reads the same text as the engine that wrote it had
        read and written: some templates trim the message, or put something else before an answer that is to come."""
        if self._template is None:
            return False
        begun = structs.replace(
            chat,
            messages=[*chat.messages, {"role": "assistant", "content": answer}],
            add_generation_prompt=False,
            continue_final_message=True,
        )
        now = self._today()
        try:
            asked = self._template.render(chat, now, marked=False)
            continued = self._template.render(begun, now, marked=False)
        except TemplateError:
            return False
        return asked.exact and continued.exact and continued.text == asked.text + answer

    def behind(self, ids: list[int], text: str) -> list[int] | None:
        """Tokens that say `text` behind a prompt given as token ids; None where none say just that."""
        try:
            return ids_behind(self._ladder.tokenizer, ids, text)
        except TokenizerError:
            return None

    def count(self, text: str) -> int | None:
        """Tokens that say `text` in the middle of another; None where that is not known."""
        with contextlib.suppress(TokenizerError):
            tokenizer = self._ladder.tokenizer
            ids = ids_behind(tokenizer, tokenizer.encode("\n").tolist(), text)
            return None if ids is None else len(ids)
        return None

    async def text(self, project: str, prompt: str, limit: int, aside: Aside, *, share: int = 1) -> Read:
        """A completion's prompt, one of `share`. Raises `TokenizerError`, `TooLongError`."""
        known = self._texts.known(project, None, prompt)
        assert known is not None
        counted = self._texts.remember(known, await self._encoded(self._texts, known, limit, aside, share))
        return Read(counted.tokens.count, counted.tokens.sums, remembered=known.count)

    async def _encoded(self, texts: TextMemory, known: Known, limit: int, aside: Aside, share: int = 1) -> Pieces:
        if known.rest * share <= DENSE:  # many short ones are one long one
            return texts.encode(known, limit=limit)
        pieces: Pieces = await aside(lambda: texts.encode(known, limit=limit), known.rest)
        return pieces


def ids_read(weights: Weights, ids: list[int], limit: int) -> Read:
    """A prompt given as token ids. Raises `TooLongError` for more than `limit` of them."""
    if len(ids) > limit:
        raise TooLongError(len(ids))
    return Read(len(ids), weights.extend(0, 0, to_ids((ids,)))[1])


def byte_read(weights: Weights, data: bytes) -> Read:
    """A guess for a prompt whose tokens cannot be had: as if every four bytes were one."""
    ids = byte_chunks(data[: 4 * MOST_GUESSED])
    return Read(max(1, len(data) // 4), weights.extend(0, 0, ids)[1], exact=False)


def _some(marks: Sequence[Mark], known: int) -> list[Mark]:
    """Those worth a checkpoint: conversations go on from their end, fork behind their beginning, are cut anywhere; one
    that leaves what is `known` behind so many messages may do so again."""
    last = len(marks) - _ENDS
    return [
        mark
        for at, mark in enumerate(marks)
        if at < _ENDS or at >= last or at % _EVERY == 0 or mark.messages == known
    ]
