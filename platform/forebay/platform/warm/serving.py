"""Snapshots for peers: read from the router in this process, or pulled piece by piece from the router process.

A piece is asked for when the one before it has been taken, so a slow peer holds up nobody and costs one piece.
"""

import itertools
import time
from collections.abc import AsyncIterator

from msgspec import Struct

from forebay.platform.warm.taken import taken
from forebay.router import RemoteRouter, RouterService, RouterUnavailable

QUERY = "snapshot"
AT_ONCE = 2
IDLE_S = 30.0  # without a question for the next piece, nobody reads it any more
_WITHIN_S = 5.0


class _Reading(Struct):
    source: AsyncIterator[bytes]
    asked: float


class Snapshots:
    """Of a router in this process, a few at a time."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._readings: dict[int, _Reading] = {}
        self._numbers = itertools.count(1)

    def open(self) -> int:
        """The number of a snapshot, for `next`. Raises `RouterUnavailable` while enough of them are read."""
        now = time.monotonic()
        self._readings = {n: reading for n, reading in self._readings.items() if now - reading.asked < IDLE_S}
        if len(self._readings) >= AT_ONCE:
            raise RouterUnavailable(f"{AT_ONCE} snapshots are being read already")
        number = next(self._numbers)
        self._readings[number] = _Reading(taken(self._service), now)
        return number

    async def next(self, number: int) -> bytes:
        """Its next piece; empty at its end. Raises `RouterUnavailable` for one that is not read any more."""
        reading = self._readings.get(number)
        if reading is None:
            raise RouterUnavailable("the snapshot is not being read any more")
        reading.asked = time.monotonic()
        data = await anext(reading.source, b"")
        if not data:
            self._readings.pop(number, None)
        return data

    async def answer(self, _: str, body: bytes) -> bytes:
        """The same for a worker: empty opens one, a number asks for a piece of it."""
        return await self.next(int(body)) if body else b"%d" % self.open()


async def opened(snapshots: Snapshots) -> AsyncIterator[bytes]:
    """Raises `RouterUnavailable` here, or while it is read."""
    return _pieces(snapshots, snapshots.open())


async def pulled(router: RemoteRouter) -> AsyncIterator[bytes]:
    """`opened` in a worker."""
    return _pulled_pieces(router, await router.query(QUERY, timeout=_WITHIN_S))


async def _pieces(snapshots: Snapshots, number: int) -> AsyncIterator[bytes]:
    while data := await snapshots.next(number):
        yield data


async def _pulled_pieces(router: RemoteRouter, number: bytes) -> AsyncIterator[bytes]:
    while data := await router.query(QUERY, number, timeout=_WITHIN_S):
        yield data
