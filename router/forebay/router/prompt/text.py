"""The tokens and prefix keys of a model's rendered prompts, of which only what is new is tokenized.

A project's earlier texts lie in its memory as chains of segments, each with the count of tokens and the sum at its end.
A prompt follows them as far as they go; the rest is tokenized and remembered in turn. What stands behind the last
special token is not: its tokens may change with what follows. A text without many special tokens, and those of a model
whose texts are not cut, are remembered only as the wholes that they are.

`known` and `remember` belong to the thread of the memory; `encode` may run in any.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from forebay.router.prefix.keys import GRID, Keys, Weights
from forebay.router.prompt.ladder import Ladder, Segment
from forebay.router.prompt.ladder_limit import TooLongError
from forebay.router.prompt.memory import Memory
from forebay.router.prompt.prompt import Rung
from forebay.router.prompt.tokenizer import to_ids
from forebay.router.prompt.trie import Node

_LARGE = 2048  # characters: a longer end of a text is remembered as a part of the whole
_KEY = 8  # bytes
_NO_IDS = to_ids(())
_ONE = np.uint64(1)


class End(Struct, frozen=True, gc=False):
    """What is known where a remembered text ends: tokens up to there, their sum, and the last keys among them, at
    least those behind the next remembered end before. `behind` is the special token it ends with."""

    count: int
    sum: int
    keys: bytes = b""
    behind: str = ""

    @property
    def nbytes(self) -> int:
        return 152 + len(self.keys)


Run = Node[str, End]  # where a remembered text ends


class Known(Struct):
    """A text, its first `offset` characters known: they are `count` tokens. `run` ends at its character `at`. `done`:
    all of it is known, as the whole that it is."""

    project: str
    text: str
    start: Run
    run: Run
    at: int
    offset: int
    count: int
    sum: int
    keys: bytes
    behind: str
    done: bool = False

    @property
    def rest(self) -> int:
        """Characters to tokenize."""
        return len(self.text) - self.offset


class Pieces(Struct):
    """What tokenizing the rest of a text gave. `segments` are to be remembered, `ends` is where in the text they end;
    `tail` characters come after them. `count` and `sum` are at the end of the text; `keys` are those of the rest."""

    segments: list[tuple[str, End]]
    ends: list[int]
    tail: int
    count: int
    sum: int
    keys: bytes


class Tokens(Struct, frozen=True):
    """Of a whole prompt: how many, and the unseeded sums at the grid."""

    count: int
    sums: Keys


class Resume(Struct, frozen=True, gc=False):
    """Where a longer text that begins with the same characters can go on: at `run`, with `rest` before what is new."""

    run: Run
    rest: str


class Counted(Struct, frozen=True):
    """`resumes` has one for each mark; None where nothing could be remembered."""

    tokens: Tokens
    resumes: list[Resume | None]


class TextMemory:
    """For one model, and one kind of text: chats are rendered with all their special tokens; to `completions`, engines
    add those of the tokenizer's post-processor."""

    def __init__(
        self, ladder: Ladder, weights: Weights, memory: Memory, model: str, *, completions: bool = False
    ) -> None:
        tokenizer = ladder.tokenizer
        self._ladder = ladder
        self._weights = weights
        self._memory = memory
        self._segments = ("segments", model, completions)
        self._wholes = ("wholes", model, completions)
        self._suffix = tokenizer.completion_suffix if completions else _NO_IDS
        prefix = tokenizer.completion_prefix if completions else _NO_IDS
        total, keys = weights.extend(0, 0, prefix)
        self._beginning = End(len(prefix), total, keys.tobytes())

    def known(self, project: str, start: Run | None, text: str) -> Known | None:
        """What of `text` is remembered. With `start`, the text goes on from there. None: `start` was given up since;
        ask with the text from its beginning."""
        if start is not None and not start.alive:
            return None
        wholes = None
        if (start is None or start.parent is None) and self._remembered_whole(len(text)):
            wholes = self._memory.root(project, self._wholes, "")  # first: it may cost another node its room
        run = begin = self._root(project) if start is None else start
        at = 0
        if self._ladder.rung is Rung.SEGMENTS:
            run, at = self._memory.walk(run, text)
        if wholes is not None and self._remembered_whole(len(text) - at):
            node, end = self._memory.walk(wholes, text)
            if node.value is not None and end == len(text):
                last: End = node.value
                return Known(project, text, begin, run, at, end, last.count, last.sum, last.keys, "", done=True)
        here = run.value or self._beginning  # without room, nothing is remembered
        return Known(project, text, begin, run, at, at, here.count, here.sum, _keys(run), here.behind)

    def encode(self, known: Known, *, limit: int) -> Pieces:
        """Tokenize what is not known. Raises `TooLongError`, as early as it is certain, for a prompt of more than
        `limit` tokens, and `TokenizerError`."""
        count = known.count
        ids = _NO_IDS
        segments: list[Segment] = []
        suffix = _NO_IDS if known.done else self._suffix
        room = limit - count - len(suffix)
        if known.rest or room < 0:
            try:
                ids, segments = self._ladder.encode(known.text[known.offset :], behind=known.behind, room=room)
            except TooLongError as error:
                raise TooLongError(count + error.at_least + len(suffix)) from None
        if len(suffix):
            ids = np.concatenate((ids, suffix))
        sums = self._weights.running(known.sum, count, ids)
        keys = sums[-(count + 1) % GRID :: GRID].tobytes()
        pieces = Pieces([], [], known.rest, count + len(ids), int(sums[-1]) if len(ids) else known.sum, keys)
        passed = 0  # keys
        for segment in segments:
            if segment.cut:
                end = count + segment.count
                before, passed = passed, end // GRID - count // GRID
                own = keys[_KEY * before : _KEY * passed]
                pieces.segments.append((segment.text, End(end, int(sums[segment.count - 1]), own, segment.cut)))
                pieces.ends.append(known.offset + segment.end)
                pieces.tail = known.rest - segment.end
        return pieces

    def remember(self, known: Known, pieces: Pieces, marks: Sequence[int] = ()) -> Counted:
        """Keep what was found, and say where texts that are the same up to one of `marks` (characters of the text) can
        go on."""
        nodes = self._memory.extend(known.run, pieces.segments) if pieces.segments else []
        keys = known.keys + pieces.keys
        if known.rest and known.start.parent is None and self._remembered_whole(pieces.tail):
            wholes = self._memory.root(known.project, self._wholes, "")
            self._memory.insert(wholes, known.text, End(pieces.count, pieces.sum, keys))
        resumes = [_resume(known, nodes, pieces.ends, mark) for mark in marks]
        return Counted(Tokens(pieces.count, np.frombuffer(keys, "<u8")), resumes)

    def _remembered_whole(self, tail: int) -> bool:
        return self._ladder.rung is Rung.WHOLE or tail > _LARGE

    def _root(self, project: str) -> Run:
        root: Run = self._memory.root(project, self._segments, "")
        if root.value is None:
            self._memory.put(root, self._beginning)
        return root


def _keys(run: Run) -> bytes:
    """All keys up to the end of `run`."""
    parts: list[bytes] = []
    node: Run | None = run
    after: End | None = None
    while node is not None:
        if (end := node.value) is not None:
            if after is not None:
                parts.append(_last(after.keys, after.count // GRID - end.count // GRID))
            after = end
        node = node.parent
    if after is not None:
        parts.append(_last(after.keys, after.count // GRID))
    return b"".join(reversed(parts))


def _last(keys: bytes, count: int) -> bytes:
    size = _KEY * count
    return keys if len(keys) == size else keys[len(keys) - size :]


def _resume(known: Known, nodes: list[Run], ends: list[int], mark: int) -> Resume | None:
    at = bisect_right(ends, mark) - 1
    run, end = (nodes[at], ends[at]) if at >= 0 else (known.run, known.at)
    while run.alive and (end > mark or run.value is None):
        assert run.parent is not None
        end -= len(run.piece)
        run = run.parent
    return Resume(run, known.text[end:mark]) if run.alive else None
