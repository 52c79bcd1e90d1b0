"""A router's snapshot as a stream of bytes: one endpoint after the other, each whole or of no use (pure)."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from msgspec import Struct

from forebay.router import FrameError, Framer, frame

MAGIC = b"forebay router snapshot 1\n"


class Begin(Struct, frozen=True, array_like=True, tag=1):
    """Of this endpoint is what follows."""

    pool: str
    endpoint: str


class Piece(Struct, frozen=True, array_like=True, tag=2):
    data: bytes


class Whole(Struct, frozen=True, array_like=True, tag=3):
    """There is no more of this endpoint. `digest` is over its beginning and pieces."""

    digest: bytes


class End(Struct, frozen=True, array_like=True, tag=4):
    """Of a stream that was not cut."""


Part = Begin | Piece | Whole | End


class SnapshotError(Exception):
    """What is read is no snapshot, or not all of one."""


def written(pool: str, endpoint: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One endpoint of the stream; `pieces` are of `prefix.snapshot`."""
    begin = frame(Begin(pool, endpoint))
    digest = blake2b(begin, digest_size=32)
    yield begin
    for data in pieces:
        digest.update(data)
        yield frame(Piece(data))
    yield frame(Whole(digest.digest()))


def ended() -> bytes:
    return frame(End())


class Reader:
    """Parts out of a stream that comes in pieces of any size. `Whole` is only given where the digest is right."""

    def __init__(self) -> None:
        self._framer: Framer[Part] = Framer(Part)
        self._magic = b""
        self._digest: blake2b | None = None
        self.ended = False

    def feed(self, data: bytes) -> Iterator[Part]:
        """Raises `SnapshotError` where it stops making sense; what was `Whole` by then is sound."""
        if len(self._magic) < len(MAGIC):
            missing = len(MAGIC) - len(self._magic)
            self._magic, data = self._magic + data[:missing], data[missing:]
            if not MAGIC.startswith(self._magic):
                raise SnapshotError("it is not a snapshot that this version writes")
        try:
            for part in self._framer.feed(data):
                yield self._checked(part)
        except FrameError as error:
            raise SnapshotError(f"it is damaged: {error}") from error

    def _checked(self, part: Part) -> Part:
        inside = self._digest is not None
        if self.ended or inside == isinstance(part, Begin | End):
            raise SnapshotError(f"it is damaged: a {type(part).__name__} out of place")
        if isinstance(part, Begin):
            self._digest = blake2b(frame(part), digest_size=32)
        elif isinstance(part, End):
            self.ended = True
        elif isinstance(part, Piece):
            assert self._digest is not None
            self._digest.update(part.data)
        else:
            assert self._digest is not None
            if self._digest.digest() != part.digest:
                raise SnapshotError("it is damaged: an endpoint's digest is wrong")
            self._digest = None
        return part
