"""Conversations as their clients send them, remembered message by message, so that a turn costs what is new in it."""

from collections.abc import Mapping
from typing import Any

import jiter
import msgspec
from msgspec import Struct

from forebay.platform.api.layout import Prior, without
from forebay.platform.api.requests import ChatSource
from forebay.router import Checkpoint, Memory, Node

_KIND = "transcripts"
_CHECKPOINTS = 4  # at one message; a conversation under more templates or tools than this begins again
_BYTES = 200  # of a `Told`, about


class Told(Struct, frozen=True, gc=False):
    """What is known where a message ends: the length of the body's beginning up to its messages, how much came since,
    and where reading may go on, by what else the template saw. At the end of that beginning, `messages` is 0."""

    head: int
    messages: int = 0
    commas: int = 0
    nested: int = 0
    checkpoints: dict[bytes, Checkpoint] = {}

    @property
    def nbytes(self) -> int:
        return _BYTES + sum(checkpoint.nbytes for checkpoint in self.checkpoints.values())


TellingNode = Node[bytes, Told]


class Known(Struct, frozen=True):
    """The part of a body that was read before: the node where its last message ends, which may be given up meanwhile,
    and what parsing must know."""

    node: TellingNode
    prior: Prior
    body: bytes


class Marks(Struct, frozen=True):
    """Checkpoints by the number of messages before them, for bodies that are `rendered` with the same."""

    rendered: bytes
    checkpoints: Mapping[int, Checkpoint]


class Transcripts:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def known(self, project: str, body: bytes) -> Known | None:
        """None where no message of the body was read before, or none follows those that were."""
        found: TellingNode | None
        found, end = self._memory.walk(self._root(project), body)
        while found is not None and (told := found.value) is not None and told.messages:
            prior = Prior(told.head, end, told.messages, told.commas, told.nested)
            if without(body, prior) is not None:
                return Known(found, prior, body)
            found, piece = _before(found)  # the same conversation again: its last message is read once more
            end -= len(piece)
        return None

    def remember(self, project: str, known: Known | None, source: ChatSource, body: bytes, marks: Marks) -> None:
        """The messages that follow what was known, and where reading may go on, from the last message known on."""
        layout = source.layout
        if layout is None:
            return
        if known is not None:
            if known.node.value is None:  # given up meanwhile; the layout begins behind what was known
                return
            start, told = known.node, known.node.value
            if told.messages in marks.checkpoints:
                marked = dict(told.checkpoints)
                _mark(marked, marks.rendered, marks.checkpoints[told.messages])
                told = msgspec.structs.replace(told, checkpoints=marked)
                self._memory.put(start, told)
        else:
            told = Told(layout.start + 1)
            start = self._memory.insert(self._root(project), body[: told.head], told)
        there: TellingNode | None = start
        pieces = []
        for number, turn in enumerate(layout.turns, told.messages + 1):
            there = there and self._there(there, turn.text)
            marked = dict(there.value.checkpoints) if there and there.value else {}
            if number in marks.checkpoints:
                _mark(marked, marks.rendered, marks.checkpoints[number])
            told = Told(told.head, number, told.commas + turn.commas, told.nested + turn.nested, marked)
            pieces.append((turn.text, told))
        self._memory.extend(start, pieces)

    def _there(self, node: TellingNode, text: bytes) -> TellingNode | None:
        found, end = self._memory.walk(node, text)
        return found if end == len(text) else None

    def _root(self, project: str) -> TellingNode:
        return self._memory.root(project, _KIND, b"")


def nearest(known: Known, rendered: bytes) -> Checkpoint | None:
    """The last checkpoint at or before what is known; None where that was given up meanwhile."""
    node: TellingNode | None = known.node
    while node is not None and node.value is not None:
        checkpoint = node.value.checkpoints.get(rendered)
        if checkpoint is not None:
            return checkpoint
        node = node.parent if node.parent is None or node.parent.value is not None else _before(node)[0]
    return None


def offset(known: Known, number: int) -> int:
    """Where in the body so many of the messages known end."""
    if number == 0:
        return known.prior.head
    node: TellingNode | None = known.node
    at = known.prior.end
    while node is not None and node.value is not None and node.value.messages > number:
        node, piece = _before(node)
        at -= len(piece)
    return at


def messages_from(known: Known, start: int) -> list[dict[str, Any]]:
    """The messages known, from that `offset` on, as their bytes say; they were checked when they were new. Looks at
    the body only, so any thread may ask, whatever has become of the memory."""
    text = known.body[start : known.prior.end].lstrip(b" \t\r\n,")
    found: list[dict[str, Any]] = jiter.from_json(b"[" + text + b"]", cache_mode="keys")
    return found


def _before(node: TellingNode) -> tuple[TellingNode | None, bytes]:
    """Where the message before ends, and the bytes from there."""
    at: TellingNode | None = node
    pieces = []
    while at is not None and (at is node or at.value is None):
        pieces.append(at.piece)
        at = at.parent
    return at, b"".join(reversed(pieces))


def _mark(checkpoints: dict[bytes, Checkpoint], rendered: bytes, checkpoint: Checkpoint) -> None:
    if rendered not in checkpoints and len(checkpoints) >= _CHECKPOINTS:
        del checkpoints[next(iter(checkpoints))]
    checkpoints[rendered] = checkpoint
