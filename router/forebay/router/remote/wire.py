"""What workers and their router process say to each other, as bytes: msgpack behind four bytes of length (pure).

Structs are arrays on the wire, tagged by a number, so that a frame names no member. Both ends come from one
installation; `VERSION` tells a worker that was started after an upgrade.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from forebay.router.endpoints import EndpointSpec
from forebay.router.routing import Ask, EndpointState, Explanation, Outcome, Placed, Refused

VERSION = 5
FRAME_LIMIT = 8 << 20  # bytes; the keys of the longest context are 2 MiB


class FrameError(Exception):
    """The peer does not speak this protocol. The connection is of no use any more."""


class Hello(Struct, frozen=True, array_like=True, tag=1):
    """First of a worker; everything before it is a fault."""

    version: int
    worker: str


class Place(Struct, frozen=True, array_like=True, tag=2):
    id: int
    ask: Ask


class Explain(Struct, frozen=True, array_like=True, tag=3):
    id: int
    ask: Ask


class Begun(Struct, frozen=True, array_like=True, tag=4):
    booking: int


class Ended(Struct, frozen=True, array_like=True, tag=5):
    booking: int
    outcome: Outcome


class Failed(Struct, frozen=True, array_like=True, tag=6):
    pool: str
    endpoint: str
    reason: str
    at_once: bool


class Answered(Struct, frozen=True, array_like=True, tag=7):
    pool: str
    endpoint: str


class PlaceAnswer(Struct, frozen=True, array_like=True, tag=8):
    """Exactly one to each `Place`, at once or after `Waits`. Neither: no endpoint is available, or it was withdrawn."""

    id: int
    placed: Placed | None = None
    refused: Refused | None = None


class ExplainAnswer(Struct, frozen=True, array_like=True, tag=9):
    id: int
    explanation: Explanation


class States(Struct, frozen=True, array_like=True, tag=10):
    """Endpoints as they are. `whole`: there are no others; else those that changed."""

    endpoints: list[EndpointState]
    whole: bool


class Query(Struct, frozen=True, array_like=True, tag=11):
    """Either side asks for something beside routing; `name` is what a handler is registered under."""

    id: int
    name: str
    body: bytes


class Reply(Struct, frozen=True, array_like=True, tag=12):
    """`error` is set where the query was refused or failed."""

    id: int
    body: bytes
    error: str = ""


class Specs(Struct, frozen=True, array_like=True, tag=13):
    """The endpoints of a pool, all of them: how each is reached, its own key included. Sent before anything is placed
    on one that is new."""

    pool: str
    endpoints: list[EndpointSpec]


class Withdraw(Struct, frozen=True, array_like=True, tag=14):
    """Nobody waits for the answer to a `Place` any more. It comes all the same, at once."""

    id: int


class Waits(Struct, frozen=True, array_like=True, tag=15):
    """A `Place` is not answered at once, but within so many seconds."""

    id: int
    within_s: float


class Evict(Struct, frozen=True, array_like=True, tag=16):
    """What is booked is to be stopped, for a request of a higher tier; `Ended` says when it is."""

    booking: int


FromWorker = Hello | Place | Explain | Begun | Ended | Failed | Answered | Query | Reply | Withdraw
FromRouter = PlaceAnswer | ExplainAnswer | States | Specs | Query | Reply | Waits | Evict
T = TypeVar("T")

_encode_into = msgspec.msgpack.Encoder().encode_into
_BUFFER = bytearray(1 << 16)


def frame(message: Struct) -> bytes:
    """A message with its length before it. Raises `FrameError` for one that the peer would refuse."""
    _encode_into(message, _BUFFER, 4)
    size = len(_BUFFER) - 4
    if size > FRAME_LIMIT:
        raise FrameError(f"a {type(message).__name__} of {size} bytes exceeds {FRAME_LIMIT}")
    _BUFFER[:4] = size.to_bytes(4, "big")
    return bytes(_BUFFER)


class Framer(Generic[T]):
    """Messages out of a stream of bytes. Holds at most one frame."""

    def __init__(self, kind: Any) -> None:
        """`kind` is the union of what the peer may say: `FromWorker` or `FromRouter`."""
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._held = bytearray()
        self._wanted = 0

    def feed(self, data: bytes) -> Iterator[T]:
        """Raises `FrameError` after the messages that were whole. After an error the stream is lost."""
        held = self._held
        if held:
            held += data
            if len(held) < self._wanted:
                return
            data = bytes(held)
            held.clear()
        view, start, size = memoryview(data), 0, len(data)
        while size - start >= 4:
            end = start + 4 + int.from_bytes(view[start : start + 4], "big")
            if end - start - 4 > FRAME_LIMIT:
                raise FrameError(f"a frame of {end - start - 4} bytes exceeds {FRAME_LIMIT}")
            if end > size:
                break
            yield self._message(view[start + 4 : end])
            start = end
        held += view[start:]
        self._wanted = 4 + int.from_bytes(held[:4], "big") if len(held) >= 4 else 4

    def _message(self, payload: memoryview) -> T:
        try:
            message: T = self._decode(payload)
        except msgspec.DecodeError as error:
            raise FrameError(f"a frame that is no message: {error}") from error
        return message
