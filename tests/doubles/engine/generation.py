"""The answer's tokens, one at a time. Pure: no clock, no sockets."""

from typing import Any

import msgspec

from tests.doubles.engine.cache import Allocation
from tests.doubles.engine.tokens import END, encode, next_piece


class ToolCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: bytes
    named: bool
    """Chosen by name, after which vLLM says finish_reason "stop", not "tool_calls"."""


class Job(msgspec.Struct, kw_only=True):
    """A validated request. It becomes one `Sequence` for each prompt and choice."""

    id: str
    prompts: list[list[int]]
    limits: list[int]
    """The most tokens an answer may have, per prompt."""
    n: int
    stream: bool
    usage: bool
    continuous: bool
    salt: str | None
    priority: int
    stop: list[bytes]
    ignore_eos: bool
    token_ids: bool
    chat: bool = False
    begun: int = 0
    logprobs: int | None = None
    """How many alternatives are listed, where log probabilities are asked for."""
    echo: list[str] | None = None
    tool: ToolCall | None = None

    def sequences(self, natural: int | None) -> "list[Sequence]":
        made = []
        for number, prompt in enumerate(self.prompts):
            for choice in range(self.n):
                made.append(Sequence(self, number, choice, list(prompt), natural))
        return made


class Sequence:
    """One choice's answer, growing. `tokens` is the prompt and what was generated; the cache reads the same list."""

    __slots__ = (
        "_choice",
        "_held_back",
        "_longest_stop",
        "_natural",
        "_script",
        "allocation",
        "arrived",
        "created_cache",
        "finish_reason",
        "first_at",
        "generated",
        "hit",
        "index",
        "job",
        "last_at",
        "limit",
        "number",
        "owner",
        "pieces",
        "prompt_length",
        "sent",
        "started",
        "stop_reason",
        "text",
        "tokens",
    )  # fmt: skip

    def __init__(self, job: Job, number: int, choice: int, tokens: list[int], natural: int | None) -> None:
        self.job = job
        self.number = number
        self.index = number * job.n + choice
        self.tokens = tokens
        self.prompt_length = len(tokens)
        self.limit = job.limits[number]
        self.generated = 0
        self.text = bytearray()
        self.pieces: list[bytes] = []
        """The text of each token, kept only for log probabilities."""
        self.sent = 0
        """Bytes of text handed out so far."""
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self.hit = 0
        self.created_cache = 0
        self.allocation: Allocation | None = None
        self.owner: Any = None
        self.arrived = self.started = self.first_at = self.last_at = 0.0
        self._choice = choice
        self._natural = None if natural is None or job.ignore_eos else max(natural - job.begun, 1)
        self._held_back = max((len(text.decode()) for text in job.stop), default=1) - 1
        self._longest_stop = max(map(len, job.stop), default=1)
        self._script = None if job.tool is None else _tool_pieces(job.tool)

    @property
    def expected(self) -> int:
        """The most tokens this answer will have."""
        ends = len(self._script) + 1 if self._script is not None else self._natural
        return self.limit if ends is None else min(self.limit, ends)

    def advance(self) -> bytes:
        """Generate one token. Returns the text that is now known to be part of the answer."""
        token, piece = self._next()
        self.tokens.append(token)
        self.generated += 1
        if self.job.logprobs is not None:
            self.pieces.append(piece)
        if token == END and not self.job.ignore_eos:
            self.finish_reason = "stop"
            return self._release(everything=True)
        if not self.job.stop:
            self.text += piece
            self.sent += len(piece)
            if self.generated >= self.limit:
                self.finish_reason = "length"
            return piece
        self.text += piece
        if self._stopped(len(piece)):
            return self._release(everything=True)
        if self.generated >= self.limit:
            self.finish_reason = "length"
        return self._release(everything=self.finish_reason is not None)

    def _next(self) -> tuple[int, bytes]:
        if self._script is not None:
            return self._script[self.generated] if self.generated < len(self._script) else (END, b"")
        if self._natural is not None and self.generated + 1 >= self._natural:
            return END, b""
        return next_piece(self.tokens[-1], len(self.tokens), self._choice)

    def _stopped(self, added: int) -> bool:
        """Cut the text at the first stop string that the last piece completed."""
        start = max(0, len(self.text) - added - self._longest_stop)
        for text in self.job.stop:
            at = self.text.find(text, start)
            if at >= 0:
                del self.text[at:]
                self.finish_reason, self.stop_reason = "stop", text.decode()
                return True
        return False

    def _release(self, *, everything: bool) -> bytes:
        end = len(self.text)
        for _ in range(0 if everything else self._held_back):  # characters
            end -= 1
            while end > 0 and self.text[end] & 0xC0 == 0x80:
                end -= 1
        if end <= self.sent:
            return b""
        out = bytes(self.text[self.sent : end])
        self.sent = end
        return out


def _tool_pieces(tool: ToolCall) -> list[tuple[int, bytes]]:
    """A call's arguments, as tokens of at most 8 bytes, after one token for the function's name."""
    cuts = [tool.arguments[i : i + 8] for i in range(0, len(tool.arguments), 8)]
    return [(encode(tool.name)[0], b""), *((encode(cut.decode("utf-8", "replace"))[0], cut) for cut in cuts)]
