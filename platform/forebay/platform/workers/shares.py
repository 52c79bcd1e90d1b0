"""The bounds on requests in flight hold for the front door, not for each worker: each hears what the others have.

What it hears is up to a fraction of a second old, so a burst can exceed a bound by what others admit meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection

import msgspec

from forebay.platform.api.bounds import Gate
from forebay.router import RemoteRouter, RouterUnavailable

EVERY_S = 0.2

_counts = msgspec.msgpack.Decoder(dict[str, int]).decode
_encode = msgspec.msgpack.Encoder().encode


class Shares:
    """In the router process. `present` names the workers that are connected: what others said is forgotten."""

    def __init__(self, present: Callable[[], Collection[str]]) -> None:
        self._present = present
        self._said: dict[str, dict[str, int]] = {}

    async def exchange(self, worker: str, body: bytes) -> bytes:
        """A worker's requests in flight by project, for those of all other workers together."""
        self._said[worker] = _counts(body)
        self._said = {name: counts for name, counts in self._said.items() if name in self._present()}
        others: Counter[str] = Counter()
        for name, counts in self._said.items():
            if name != worker:
                others.update(counts)
        return _encode(dict(others))


async def follow(gate: Gate, router: RemoteRouter) -> None:
    """In a worker: keep its gate informed, until cancelled. Without the router it counts its own alone."""
    while True:
        try:
            gate.hear(_counts(await router.query("in-flight", _encode(gate.by_project), timeout=1.0)))
        except RouterUnavailable:
            gate.hear({})
        await asyncio.sleep(EVERY_S)
