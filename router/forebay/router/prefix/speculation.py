"""Keys that a holder is taken to have although no event said so: a request with them was just sent there, or the engine
reported more cached tokens than was known (pure)."""

import heapq
from itertools import count

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
        for key in keys.tolist():
            if self._until.pop(key, None) is not None:
                self._claims.end(key, 0)

    def sweep(self, most: int) -> int:
        """Take back at most `most` claims. Returns how many there were."""
        swept = min(most, len(self._until))
        for _ in range(swept):
            self._claims.end(self._until.popitem()[0], 0)
        return swept

    def _end_first(self) -> int:
        until, _, keys = heapq.heappop(self._queue)
        self._queued -= len(keys)
        ended = [key for key in keys.tolist() if self._until.get(key, until + 1) <= until]
        for key in ended:
            self._until.pop(key, None)
            self._claims.end(key, 0)
        return len(ended)
