"""Requests that wait for an engine (pure): in the router, where their order and their place can still change.

An engine gets work only when it will start it soon. What waits is ordered by a key, the lowest first: the seconds of
prefill that a request is predicted to take, less what it has waited so far. So short ones pass long ones, and nobody
waits for ever.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from forebay.router.loads import NO_KEYS
from forebay.router.prefix.index import Match
from forebay.router.prefix.keys import Keys
from forebay.router.routing import Ask

MOST = 4_096  # requests that wait in one pool
MOST_BYTES = 128 << 20  # of their keys
AGEING = 0.3  # seconds of prefill that a second of waiting is worth
EVEN_S = 30.0  # after which the longest prompt counts as the shortest: it must begin while there is patience left
START_S = 0.25  # an engine that is predicted to begin within this gets more work


class Waiting(Struct, eq=False):
    """`held`: what each endpoint has of the prompt, as of `held_at`. `home` and `prefill_s`: where it would go, and
    what it would take there. `until`: its deadline."""

    number: int
    owner: int
    ask: Ask
    since: float
    until: float
    keys: Keys = NO_KEYS
    held: dict[str, Match] = {}
    held_at: float = float("-inf")
    weighed_at: float = float("-inf")
    home: str = ""
    prefill_s: float = 0.0


Order = Callable[[Waiting, float], float]


def shortest_first(waiting: Waiting, now: float) -> float:
    waited = max(0.0, now - waiting.since)
    return waiting.prefill_s * max(0.0, 1 - waited / EVEN_S) - AGEING * waited


class Line:
    """Of one pool, bounded."""

    def __init__(self, order: Order = shortest_first, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._order = order
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._by_number: dict[int, Waiting] = {}

    def __repr__(self) -> str:
        return f"<Line of {len(self._by_number)}>"

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_number.values())

    def add(self, waiting: Waiting) -> bool:
        """False: there is no room."""
        size = self._bytes + len(waiting.ask.keys)
        if len(self._by_number) >= self._most or size > self._most_bytes:
            return False
        self._by_number[waiting.number] = waiting
        self._bytes = size
        return True

    def remove(self, number: int) -> Waiting | None:
        waiting = self._by_number.pop(number, None)
        if waiting is not None:
            self._bytes -= len(waiting.ask.keys)
        return waiting

    def ordered(self, now: float) -> list[Waiting]:
        order = self._order
        return sorted(self._by_number.values(), key=lambda one: order(one, now))

    def overdue(self, now: float) -> list[Waiting]:
        return [one for one in self._by_number.values() if one.until <= now]
