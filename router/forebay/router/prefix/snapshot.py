"""What a holder has, as bytes for a router that starts: in chunks, so that neither side stops for long (pure).

A snapshot is of one moment, and says with which position in the holder's events it goes on. It is msgpack. Its keys are
of use only with the secret they were made with, so it bears a fingerprint of that.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from forebay.router.prefix.blocks import Hash, Tier
from forebay.router.prefix.held import After, Held
from forebay.router.prefix.index import Index
from forebay.router.prefix.keys import GRID, Weights
from forebay.router.prefix.records import AT, KEYED, LOW, PLACE, SUM, TIERS

VERSION = 1
MANY = 4096  # blocks of a chunk: a few milliseconds to make or to load

Sum = Annotated[int, Meta(ge=0)]
Mark = Annotated[int, Meta(ge=1, le=LOW)]  # what a record has besides
Count = Annotated[int, Meta(ge=1)]
_T = TypeVar("_T")


class SnapshotError(ValueError):
    """It is no snapshot, not all of one, or one that is of no use here."""


class _Head(Struct, frozen=True, array_like=True, tag=1):
    version: int
    fingerprint: bytes
    position: bytes


class _Inner(Struct, frozen=True, array_like=True, tag=2):
    """Of blocks that are yet to come, the keys at positions inside of each."""

    blocks: list[tuple[Hash, list[Sum]]]


class _Blocks(Struct, frozen=True, array_like=True, tag=3):
    hashes: list[Hash]
    sums: list[Sum]
    marks: list[Mark]


class _Again(Struct, frozen=True, array_like=True, tag=4):
    """Of blocks that came, the announcements beyond the first."""

    tier: Tier
    blocks: list[tuple[Hash, Count]]


class _Follows(Struct, frozen=True, array_like=True, tag=5):
    """Of blocks that came and end between two keys, what follows each."""

    blocks: list[Hash]
    after: list[Hash]


class _Tail(Struct, frozen=True, array_like=True, tag=6):
    parts: int  # between head and tail
    blocks: int


_Part = _Head | _Inner | _Blocks | _Again | _Follows | _Tail
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Part)


def fingerprint(weights: Weights) -> bytes:
    """Says whether two routers know the same secret, and nothing about it."""
    return blake2b(weights.span(0, 64).tobytes(), digest_size=16, person=b"forebay snapshot").digest()


def dump(index: Index, name: str, position: bytes) -> Iterator[bytes]:
    """The chunks of what `name` has at this moment, whatever happens until the last is taken. Raises `KeyError` for one
    that is not attached."""
    content = _Content(index.holder(name).holding.held)
    return _whole(_Head(VERSION, fingerprint(index.weights), position), content)


def _whole(head: _Head, content: "_Content") -> Iterator[bytes]:
    blocks, count = content.blocks, 0
    yield _encode(head)
    for part in content.parts():
        yield _encode(part)
        count += 1
    yield _encode(_Tail(count, blocks))


class _Content:
    """References to all that a holder has, copied at once: some ten milliseconds for a million blocks."""

    def __init__(self, held: Held) -> None:
        self._inner = list(held.inner.items())
        self.blocks = len(held.blocks)
        self._hashes, self._records = list(held.blocks), list(held.blocks.values())
        self._again = [(tier, list(counts.items())) for tier, counts in zip(Tier, held.again, strict=True)]
        self._loose, self._after = list(held.follows), list(held.follows.values())

    def parts(self) -> Iterator[_Part]:
        """May be asked for once."""
        for inner in _some(self._inner):
            yield _Inner(inner)
        for hashes, records in zip(_some(self._hashes), _some(self._records), strict=True):
            yield _Blocks(hashes, [record >> SUM for record in records], [record & LOW for record in records])
        for tier, again in self._again:
            for blocks in _some(again):
                yield _Again(tier, blocks)
        for loose, afters in zip(_some(self._loose), _some(self._after), strict=True):
            yield _follows(loose, afters)


class Loading:
    """A holder in the making: `feed` it the chunks of a snapshot in order, then `finish`. Until then nobody sees it.
    Both raise `SnapshotError`, after which there is nothing to be done with it. `give_up` what is not finished."""

    def __init__(self, index: Index, name: str) -> None:
        self._index = index
        self._holder = index.begin(name)
        self._held = self._holder.holding.held
        self._head: _Head | None = None
        self._tail: _Tail | None = None
        self._parts = 0
        self._over = False

    def feed(self, chunk: bytes) -> None:
        try:
            part = _decoder.decode(chunk)
            if self._over or self._tail is not None or isinstance(part, _Head) is not (self._head is None):
                raise SnapshotError("its chunks are not in order")
            self._take(part)
            self._parts += not isinstance(part, _Head | _Tail)
        except (msgspec.DecodeError, ValueError, KeyError) as error:
            self.give_up()
            raise SnapshotError(f"no snapshot that is of use: {error}") from error

    def finish(self) -> bytes:
        """Put the holder in the place of what is known under its name. Returns the snapshot's position."""
        blocks, inner = self._held.blocks.keys(), self._held.inner.keys()
        whole = _Tail(self._parts, len(blocks))
        if self._over or self._head is None or self._tail != whole or not inner <= blocks:
            self.give_up()
            raise SnapshotError("the snapshot is not whole")
        self._over = True
        self._index.commit(self._holder)
        return self._head.position

    def give_up(self) -> None:
        if not self._over:
            self._over = True
            self._index.discard(self._holder)

    def _take(self, part: _Part) -> None:
        held = self._held
        match part:
            case _Head():
                self._begin(part)
            case _Inner():
                held.inner.update(part.blocks)
            case _Blocks():
                held.restore(part.hashes, _records(part))
                if len(held.blocks) > self._index.blocks_per_holder:
                    raise SnapshotError(f"there are more than {self._index.blocks_per_holder} blocks")
            case _Again():
                if not all(held.blocks[hash_] >> part.tier & 1 for hash_, _ in part.blocks):
                    raise SnapshotError("a block was announced again where it is not")
                held.again[part.tier].update(part.blocks)
            case _Follows():
                if any(held.blocks[hash_] & KEYED for hash_ in part.blocks):
                    raise SnapshotError("a block rests on one that ends at a key")
                for loose, hash_ in zip(part.blocks, part.after, strict=True):
                    held.rest(hash_, loose)
            case _Tail():
                self._tail = part

    def _begin(self, head: _Head) -> None:
        if head.version != VERSION:
            raise SnapshotError(f"it is of version {head.version}, not {VERSION}")
        if head.fingerprint != fingerprint(self._index.weights):
            raise SnapshotError("it was made with another secret")
        self._head = head


def load(index: Index, name: str, chunks: Iterable[bytes]) -> bytes:
    """Fill `name` from a snapshot at once; the position it is of. Raises `SnapshotError`, and changes nothing then."""
    loading = Loading(index, name)
    for chunk in chunks:
        loading.feed(chunk)
    return loading.finish()


def _records(part: _Blocks) -> list[int]:
    """Raises `ValueError` for such as no block has."""
    marks = np.array(part.marks, np.uint32)
    places = marks & np.uint32(PLACE)
    keyed = (places > 0) & (places % (GRID << AT) == 0)
    if ((marks & TIERS) == 0).any() or ((marks & KEYED != 0) != keyed).any():
        raise SnapshotError("a block is nowhere, or claims a key where none is")
    return [total << SUM | mark for total, mark in zip(part.sums, part.marks, strict=True)]


def _some(many: list[_T]) -> Iterator[list[_T]]:
    """Its parts in order. They are taken out of it: to let go of all at once would take as long as to copy it."""
    many.reverse()
    while many:
        some = many[-MANY:]
        del many[-MANY:]
        yield some[::-1]


def _follows(loose: list[Hash], afters: list[After]) -> _Follows:
    blocks: list[Hash] = []
    follows: list[Hash] = []
    for hash_, after in zip(loose, afters, strict=True):
        each = after if isinstance(after, set) else (after,)
        blocks += [hash_] * len(each)
        follows += each
    return _Follows(blocks, follows)
