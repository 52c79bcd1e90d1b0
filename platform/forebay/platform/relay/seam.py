"""Where a streamed answer can be cut, to be continued by another engine (pure).

An answer goes on exactly as it would have only from between two tokens. What an engine has sent ends there, unless it
keeps something back because a stop string might begin there (vLLM 0.32: as many characters as the longest stop string
has, less one). Its text is longer than what it sent by just so much, so a cut between two tokens is known all the same:
it lies within what was sent later. The continuation says what follows the cut once more, and that is taken off again.
A stop string that spans the cut cannot be missed: it begins in what was kept back, which the continuation says anew.
"""

from collections import deque
from typing import Any

import msgspec
from msgspec import Raw, Struct

from forebay.router import decode_usage

_MANY = 256  # pieces, from which on they are put together: a piece is a few characters
_NOTHING = (b"", b"null", b"[]", b'""')


class Delta(Struct):
    """What a chat's event says."""

    content: Any = None
    tool_calls: Raw = Raw()
    function_call: Raw = Raw()
    reasoning: Raw = Raw()
    reasoning_content: Raw = Raw()


class Cut(Struct, frozen=True):
    """The answer up to the cut, and how many tokens of all its attempts that is; what the client has seen beyond it.
    `tokens` is None where the engine did not tell."""

    text: str
    seen: str
    tokens: int | None

    @property
    def known(self) -> int:
        return self.tokens or 0


class _Point(Struct, frozen=True):
    """Between two tokens: characters of the answer before it, the engine's usage by then, and the tokens that earlier
    attempts had given."""

    at: int
    usage: bytes
    before: int


class Seam:
    """What the client has seen of an answer of one choice, over all its attempts. `held`: characters that an engine
    keeps back. `blocked`: what was said that cannot be continued, empty where nothing was."""

    def __init__(self, held: int) -> None:
        self._held = held
        self._chunks: list[str] = []
        self._pieces: list[str] = []
        self._length = 0
        self._points: deque[_Point] = deque()
        self._fresh: list[tuple[Delta | None, Any, bytes]] = []
        self._before = 0
        self.blocked = ""

    def __repr__(self) -> str:
        return f"<Seam {self._length} characters, {len(self._points)} points>"

    def see(self, delta: Delta | None, text: Any, usage: bytes) -> None:
        """One event that may be shown to the client; `usage` is the engine's object as it stands there."""
        self._fresh.append((delta, text, usage))

    def shown(self) -> None:
        """The client gets all that was seen."""
        for delta, text, usage in self._fresh:
            self._add(delta, text, usage)
        self._fresh.clear()

    def forget(self) -> None:
        """The client does not get what was not shown yet."""
        self._fresh.clear()

    def resumed(self, tokens: int) -> None:
        """Another engine goes on, behind so many tokens: what this one had kept back was never said."""
        self._before = tokens
        while self._points and self._points[-1].at > self._length:
            self._points.pop()

    def _add(self, delta: Delta | None, text: Any, usage: bytes) -> None:
        if delta is not None:
            text = delta.content
            if _said(delta.tool_calls) or _said(delta.function_call):
                self.blocked = "tool_call"
            elif _said(delta.reasoning) or _said(delta.reasoning_content):
                self.blocked = "reasoning"
        if not text:  # what the engine made of a token may be no text yet
            return
        if not isinstance(text, str):
            self.blocked = "content_parts"
            return
        self._pieces.append(text)
        if len(self._pieces) > _MANY:
            self._chunks.append("".join(self._pieces))
            self._pieces.clear()
        self._length += len(text)
        points = self._points
        points.append(_Point(self._length + self._held, usage, self._before))
        while len(points) > 1 and points[1].at <= self._length:
            points.popleft()

    def cut(self, *, greedy: bool) -> Cut:
        """Where the answer is to be continued. What another engine would say differently each time is continued from
        the very end: it is no use to hear it again, and a word that was cut within a token is still completed."""
        whole = "".join((*self._chunks, *self._pieces))
        last = self._points[0] if self._points and self._points[0].at <= self._length else _Point(0, b"", 0)
        at = last.at if greedy else self._length
        return Cut(whole[:at], whole[at:], _tokens(last) if last.at else 0)


def _said(member: Raw) -> bool:
    return bytes(member) not in _NOTHING


def _tokens(point: _Point) -> int | None:
    try:
        given = decode_usage(point.usage).completion_tokens
    except msgspec.DecodeError:
        return None
    return None if given is None or given < 0 else point.before + given
