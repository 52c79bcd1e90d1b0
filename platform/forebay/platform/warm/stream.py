"""A router's snapshot as a stream of bytes: one endpoint after the other, each whole or of no use (pure)."""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

from msgspec import Struct

from forebay.router.remote.wire import Framer, frame

MAGIC = b"forebay router snapshot 1\n"


class Begin(Struct, frozen=True, array_like=True, tag=1):
    """An endpoint, and up to where its KV events are in what follows (`Follower.position`)."""

    pool: str
    endpoint: str
    position: bytes


class Piece(Struct, frozen=True, array_like=True, tag=2):
    data: bytes


class Whole(Struct, frozen=True, array_like=True, tag=3):
    """No more of this endpoint. `digest` is over its position and pieces."""

    digest: bytes


class End(Struct, frozen=True, array_like=True, tag=4):
    """Of a stream that was not cut."""


Part = Begin | Piece | Whole | End
Digest = Callable[[], "blake2b"]


class SnapshotError(Exception):
    """What is read is no snapshot, or not all of it."""


def endpoint_parts(pool: str, endpoint: str, position: bytes, pieces: Iterable[bytes]) -> Iterator[bytes]:
    yield frame(Begin(pool, endpoint, position))
    digest = blake2b(position, digest_size=32)
    for data in pieces:
        digest.update(data)
        yield frame(Piece(data))
    yield frame(Whole(digest.digest()))
