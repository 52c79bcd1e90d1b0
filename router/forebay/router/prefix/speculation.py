"""Keys that a holder is taken to have although no event said so: a request with them was just sent there, or the engine
reported more cached tokens than was known (pure)."""

import heapq
from itertools import count, islice
from math import inf

from forebay.router.prefix.claims import Claims
from forebay.router.prefix.keys import Keys
from forebay.router.prefix.sizes import Counts


class Expected:
    """What is expected of one holder, as claims in a table of their own."""

    def __init__(self, claims: Claims, counts: Counts, most: int) -> None:
        self._counts = counts
        self._claims = claims
        self._most = most
        self._until: dict[int, float] = {}
        self._queue: list[tuple[float, int, Keys]] = []  # as they end
        self._queued = 0  # keys in the queue, some of them twice
        self._order = count()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, keys: Keys, until: float) -> None:
        """Take `keys` to be held until `until`, or as long as they are already. Beyond the bound, what ends first
        ends at once."""
        keys = keys[: self._most].copy()
        fresh = []
        for key in keys.tolist():
            known = self._until.get(key)
            if known is None:
                fresh.append(key)
            if known is None or known < until:
                self._until[key] = until
        self._claims.claim(fresh, 0)
        heapq.heappush(self._queue, (until, next(self._order), keys))
        self._queued += len(keys)
        while len(self._until) > self._most or self._queued > 2 * self._most:
            self._counts.lapsed += self._end_first()

    def expire(self, now: float) -> None:
        while self._queue and self._queue[0][0] <= now:
            self._end_first()

    def drop(self, keys: Keys) -> None:
        self._end([key for key in keys.tolist() if key in self._until])

    def sweep(self, most: int) -> int:
        """Take back at most `most` claims. Returns how many there were."""
        some = list(islice(self._until, most))
        self._end(some)
        return len(some)

    def _end_first(self) -> int:
        until, _, keys = heapq.heappop(self._queue)
        self._queued -= len(keys)
        known = self._until.get
        ended = [key for key in keys.tolist() if known(key, inf) <= until]
        self._end(ended)
        return len(ended)

    def _end(self, keys: list[int]) -> None:
        for key in keys:
            self._until.pop(key, None)
        self._claims.end(keys, 0)
