"""What a holder has, as bytes for a router that starts: in chunks, so that neither side stops for long (pure).

A snapshot is of one moment, and says with which position in the holder's events it goes on. It is msgpack, with arrays
as little-endian bytes. Its keys are of use only with the secret they were made with, so it bears a fingerprint of that.
"""

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice

import msgspec
import numpy as np
from msgspec import Struct

from forebay.router.prefix.blocks import Tier
from forebay.router.prefix.held import Held
from forebay.router.prefix.index import Index
from forebay.router.prefix.keys import GRID, Weights
from forebay.router.prefix.records import AT, KEYED, MASK, PACKED, PLACE, SUM, TIERS, pack

VERSION = 1
BLOCKS = 8192  # of a chunk: a few milliseconds to make or to load


class SnapshotError(ValueError):
    """It is no snapshot, not all of one, or one that is of no use here."""


class _Head(Struct, frozen=True, array_like=True, tag=1):
    version: int
    fingerprint: bytes
    position: bytes


class _Blocks(Struct, frozen=True, array_like=True, tag=2):
    """Some blocks, by number within the chunk."""

    signed: bool  # the hashes
    hashes: bytes
    records: bytes
    again: list[tuple[int, Tier, int]]  # (number, tier, announcements beyond the first)
    inner: list[tuple[int, bytes]]  # (number, keys at positions inside of the block)
    before: bytes  # numbers of blocks that end between two keys, one for each hash in `after`
    after: bytes  # what follows them


class _Tail(Struct, frozen=True, array_like=True, tag=3):
    blocks: int


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Head | _Blocks | _Tail)


def fingerprint(weights: Weights) -> bytes:
    """Says whether two routers know the same secret, and nothing about it."""
    return blake2b(weights.span(0, 64).tobytes(), digest_size=16, person=b"forebay snapshot").digest()


def dump(index: Index, name: str, position: bytes) -> Iterator[bytes]:
    """The chunks of what `name` has at this moment, whatever happens until the last is taken."""
    return _Dump(index.holder(name).holding.held).chunks(_Head(VERSION, fingerprint(index.weights), position))


class _Dump:
    def __init__(self, held: Held) -> None:
        self._blocks = held.blocks.copy()
        self._inner = held.inner.copy()
        self._follows = held.follows.copy()
        self._again = [(tier, counts.copy()) for tier, counts in zip(Tier, held.again, strict=True) if counts]

    def chunks(self, head: _Head) -> Iterator[bytes]:
        yield _encode(head)
        items, count = iter(self._blocks.items()), 0
        while some := dict(islice(items, BLOCKS)):
            blocks = {hash_: record for hash_, record in some.items() if isinstance(hash_, int)}
            count += len(blocks)
            yield _encode(self._chunk(list(blocks), list(blocks.values())))
        yield _encode(_Tail(count))

    def _chunk(self, hashes: list[int], records: list[int]) -> _Blocks:
        before: list[int] = []
        after: list[int] = []
        for number, hash_ in enumerate(hashes):
            if (follows := self._follows.get(hash_)) is not None:
                each = [one for one in (follows if isinstance(follows, set) else (follows,)) if isinstance(one, int)]
                before += [number] * len(each)
                after += each
        inner, again = self._inner, self._again
        return _Blocks(
            min([*hashes, *after], default=0) < 0,
            _pack(hashes),
            pack(records),
            [(n, tier, counts[h]) for tier, counts in again for n, h in enumerate(hashes) if h in counts],
            [(n, _pack(inner[h])) for n, h in enumerate(hashes) if h in inner] if inner else [],
            _pack(before),
            _pack(after),
        )


class Loading:
    """A holder in the making: `feed` it the chunks of a snapshot in order, then `finish`. Until then nobody sees it.
    Each raises `SnapshotError`, after which there is nothing to do but begin again; `give_up` if it is not finished."""

    def __init__(self, index: Index, name: str) -> None:
        self._index = index
        self._holder = index.begin(name)
        self._head: _Head | None = None
        self._tail: _Tail | None = None
        self._open = True

    def feed(self, chunk: bytes) -> None:
        try:
            part = _decoder.decode(chunk)
        except msgspec.DecodeError as error:
            raise self._failed(f"not a chunk of a snapshot: {error}") from error
        if (self._head is None) is not isinstance(part, _Head) or self._tail is not None:
            raise self._failed("its chunks are not in order")
        if isinstance(part, _Head):
            self._begin(part)
        elif isinstance(part, _Tail):
            self._tail = part
        else:
            self._take(part)

    def finish(self) -> bytes:
        """Put the holder in the place of what was known under its name. Returns the snapshot's position."""
        blocks = self._holder.holding.held.blocks
        if self._head is None or self._tail is None:
            raise self._failed("the snapshot is cut off")
        if len(blocks) != self._tail.blocks:
            raise self._failed(f"the snapshot has {len(blocks)} blocks and says {self._tail.blocks}")
        self._open = False
        self._index.commit(self._holder)
        return self._head.position

    def give_up(self) -> None:
        if self._open:
            self._open = False
            self._index.discard(self._holder)

    def _begin(self, head: _Head) -> None:
        if head.version != VERSION:
            raise self._failed(f"the snapshot is of version {head.version}, not {VERSION}")
        if head.fingerprint != fingerprint(self._index.weights):
            raise self._failed("the snapshot was made with another secret")
        self._head = head

    def _take(self, part: _Blocks) -> None:
        held = self._holder.holding.held
        try:
            hashes = _unpack(part.hashes, signed=part.signed)
            records = _records(part.records)
            inner = {hashes[number]: _unpack(keys) for number, keys in part.inner}
            held.restore(hashes, records, inner)
            for number, tier, count in part.again:
                held.again[tier][hashes[number]] = count
            for number, after in zip(_unpack(part.before), _unpack(part.after, signed=part.signed), strict=True):
                held.rest(after, hashes[number])
        except (ValueError, IndexError) as error:
            raise self._failed(f"the snapshot cannot be true: {error}") from error

    def _failed(self, why: str) -> SnapshotError:
        self.give_up()
        return SnapshotError(why)


def load(index: Index, name: str, chunks: Iterable[bytes]) -> bytes:
    """Fill `name` from a snapshot at once; the position it is of. Raises `SnapshotError`, and changes nothing then."""
    loading = Loading(index, name)
    for chunk in chunks:
        loading.feed(chunk)
    return loading.finish()


def _records(packed: bytes) -> list[int]:
    """Raises `ValueError` for such as no holding has."""
    array = np.frombuffer(packed, PACKED)
    marks, sums = array["mark"], array["sum"]
    places = marks & np.uint32(PLACE)
    keyed = (places > 0) & (places % (GRID << AT) == 0)
    if ((marks & TIERS) == 0).any() or ((marks & KEYED != 0) != keyed).any() or (sums[places == 0] > 0).any():
        raise ValueError("a block is held nowhere, or claims a key where none is")
    return [total << SUM | mark for total, mark in zip(sums.tolist(), marks.tolist(), strict=True)]


def _pack(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *[number & MASK for number in numbers])


def _unpack(packed: bytes, *, signed: bool = False) -> list[int]:
    numbers: list[int] = np.frombuffer(packed, "<i8" if signed else "<u8").tolist()
    return numbers
