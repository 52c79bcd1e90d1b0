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

# Characters of the answer before it, the engine's usage by then, and the tokens that earlier attempts had given.
_Point = tuple[int, bytes, int]
_SOME = 16  # events that are gathered
_MANY = 32  # pieces, from which on they are put together: each costs as much as a text of a dozen tokens
_NOTHING = (b"", b"null", b"[]", b'""')


class Delta(Struct, gc=False):
    """What a chat's event says. Like all that an event is read into, out of the collector's sight: there are as many
    as tokens, and none knows of another."""

    content: Any = None
    tool_calls: Raw = Raw()
    function_call: Raw = Raw()
    reasoning: Raw = Raw()
    reasoning_content: Raw = Raw()


_Fresh = tuple[Delta | None, Any, bytes]  # as `Seam.see` is told


class Cut(Struct, frozen=True):
    """The answer up to the cut, and how many tokens of all its attempts that is; what the client has seen beyond it.
    `tokens` is None where the engine did not tell."""

    text: str
    seen: str
    tokens: int | None

    @property
    def known(self) -> int:
        return self.tokens or 0


class Still(Struct, frozen=True):
    """A seam as it was at one moment: for another thread, while its stream goes on."""

    blocked: str
    greedy: Cut
    other: Cut

    def cut(self, *, greedy: bool) -> Cut:
        return self.greedy if greedy else self.other


class Seam:
    """What the client has seen of an answer of one choice, over all its attempts. `held`: characters that an engine
    keeps back. Events are gathered, and gone through some at a time: it is done for every token."""

    def __init__(self, held: int) -> None:
        self._held = held
        self._chunks: list[str] = []
        self._pieces: list[str] = []
        self._length = 0
        self._points: deque[_Point] = deque()
        self._fresh: list[_Fresh] = []
        self._shown = 0  # of those
        self._before = 0
        self._from = 0  # where the engine that answers now went on
        self._blocked = ""

    def __repr__(self) -> str:
        return f"<Seam {self._length} characters, {len(self._points)} points>"

    @property
    def length(self) -> int:
        """Characters of the answer, but for the last few."""
        return self._length

    @property
    def latest(self) -> str:
        """What the client has of the engine that answers now."""
        self._take()
        return "".join((*self._chunks, *self._pieces))[self._from :]

    @property
    def blocked(self) -> str:
        """What was said that cannot be continued; empty where nothing was."""
        self._take()
        return self._blocked

    def see(self, delta: Delta | None, text: Any, usage: bytes) -> None:
        """One event that may be shown to the client; `usage` is the engine's object as it stands there."""
        self._fresh.append((delta, text, usage))

    def shown(self) -> None:
        """The client gets all that was seen."""
        self._shown = len(self._fresh)
        if self._shown >= _SOME:
            self._take()

    def forget(self) -> None:
        """The client does not get what was not shown yet."""
        del self._fresh[self._shown :]

    def resumed(self, tokens: int) -> None:
        """Another engine goes on, behind so many tokens: what this one had kept back was never said."""
        self._take()
        self._before, self._from = tokens, self._length
        while self._points and self._points[-1][0] > self._length:
            self._points.pop()

    def _take(self) -> None:
        fresh = self._fresh[: self._shown]
        del self._fresh[: self._shown]
        self._shown = 0
        heard = [text if delta is None else self._heard(delta) for delta, text, _ in fresh]
        said = [piece if type(piece) is str else "" for piece in heard]
        if text := "".join(said):  # what the engine made of a token may be none yet
            self._pieces.append(text)
            self._length += len(text)
            self._mark(said, fresh)
        if len(self._pieces) > _MANY:
            self._chunks.append("".join(self._pieces))
            self._pieces.clear()

    def _mark(self, said: list[str], fresh: list[_Fresh]) -> None:
        """Points beyond the end, and one before: of many events those of the last few."""
        held, length = self._held, self._length
        at, found = length + held, deque[_Point]()
        for piece, (_, _, usage) in zip(reversed(said), reversed(fresh), strict=True):
            if piece:
                found.appendleft((at, usage, self._before))
                if at <= length:
                    break
                at -= len(piece)
        points = self._points
        while points and (found[0][0] <= length or (len(points) > 1 and points[1][0] <= length)):
            points.popleft()
        points.extend(found)

    def _heard(self, delta: Delta) -> str:
        if delta.tool_calls or delta.function_call or delta.reasoning or delta.reasoning_content:
            if _said(delta.tool_calls) or _said(delta.function_call):
                self._blocked = "tool_call"
            elif _said(delta.reasoning) or _said(delta.reasoning_content):
                self._blocked = "reasoning"
        if isinstance(delta.content, str):
            return delta.content
        if delta.content is not None:
            self._blocked = "content_parts"
        return ""

    def cut(self, *, greedy: bool) -> Cut:
        """Where the answer is to be continued. What another engine would say differently each time is continued from
        the very end: it is no use to hear it again, and a word that was cut within a token is still completed."""
        self._take()
        whole = "".join((*self._chunks, *self._pieces))
        if not greedy:
            return Cut(whole, "", self._about())
        if not self._points or self._points[0][0] > self._length:
            return Cut("", whole, 0)
        at, usage, before = self._points[0]
        return Cut(whole[:at], whole[at:], _tokens(usage, before))

    def still(self) -> Still:
        return Still(self.blocked, self.cut(greedy=True), self.cut(greedy=False))

    def _about(self) -> int | None:
        """Tokens of all that the client has: those by the points before and behind its end, in proportion."""
        at, low = self._from, self._before
        for point, usage, before in self._points:
            tokens = _tokens(usage, before)
            if tokens is None:
                return None
            if point > self._length:
                return low + max(0, tokens - low) * (self._length - at) // (point - at)
            if point >= at:
                at, low = point, tokens
        return low


def _said(member: Raw) -> bool:
    return bytes(member) not in _NOTHING


def _tokens(usage: bytes, before: int) -> int | None:
    try:
        given = decode_usage(usage).completion_tokens
    except msgspec.DecodeError:
        return None
    return None if given is None or given < 0 else before + given
