"""Keys that a holder is taken to have although no event said so: a request with them was just sent there, or the engine
reported more cached tokens than was known (pure)."""

import heapq
from itertools import count, islice, repeat
from math import inf

from forebay.router.prefix.claims import Claims
from forebay.router.prefix.keys import Keys
from forebay.router.prefix.marks import EACH, marks
from forebay.router.prefix.sizes import Counts

_Term = tuple[float, int]  # until when, and how many keys one speaks for
_UNKNOWN: _Term = (inf, 0)
_NEVER: _Term = (-inf, 0)


class Expected:
    """What is expected of one holder: marks, as claims in a table of their own. Its length is in keys, those that are
    not kept included, and so is `most`."""

    def __init__(self, claims: Claims, counts: Counts, most: int) -> None:
        self._counts = counts
        self._claims = claims
        self._most = most
        self._terms: dict[int, _Term] = {}
        self._length = 0
        self._queue: list[tuple[float, int, int, list[int]]] = []  # as they end: until, order, `_Term[1]`, marks
        self._queued = 0  # keys in the queue, some of them twice
        self._order = count()

    def __len__(self) -> int:
        return self._length

    @property
    def due(self) -> float:
        """When the next ends."""
        return self._queue[0][0] if self._queue else inf

    def add(self, keys: Keys, first: int, until: float) -> None:
        """Take `keys`, a prompt's from number `first` on, to be held until `until`, or as long as they are already.
        Beyond the bound, what ends first ends at once."""
        near, ends = marks(keys[: self._most], first)
        if near:
            self._take(near, (until, 1))
        if ends:
            self._take(ends, (until, EACH))
        while self._length > self._most or self._queued > 2 * self._most:
            self._counts.lapsed += self._end_first()

    def _take(self, keys: list[int], term: _Term) -> None:
        terms = self._terms
        fresh = [key for key in keys if key not in terms]
        if len(fresh) < len(keys):
            keys = [key for key in keys if terms.get(key, _NEVER) < term]
        if keys:
            until, each = term
            before = len(terms)
            terms.update(dict.fromkeys(keys, term))
            self._length += each * (len(terms) - before)
            self._claims.claim(fresh, 0)
            heapq.heappush(self._queue, (until, next(self._order), each, keys))
            self._queued += each * len(keys)

    def expire(self, now: float, most: int) -> int:
        """End what is due, and stop after `most` keys that are kept. Returns how many there were."""
        ended = 0
        while self.due <= now and ended < most:
            ended += len(self._queue[0][3])
            self._end_first()
        return ended

    def drop(self, keys: Keys) -> None:
        self._end([key for key in keys.tolist() if key in self._terms])

    def sweep(self, most: int) -> int:
        """Take back at most `most` claims. Returns how many there were."""
        some = list(islice(self._terms, most))
        self._end(some)
        return len(some)

    def _end_first(self) -> int:
        """Returns how many keys are expected no more."""
        until, _, each, keys = heapq.heappop(self._queue)
        self._queued -= each * len(keys)
        known, term, before = self._terms.get, (until, each), self._length
        self._end([key for key in keys if known(key, _UNKNOWN) <= term])
        return before - self._length

    def _end(self, keys: list[int]) -> None:
        self._length -= sum(each for _, each in map(self._terms.pop, keys, repeat(_UNKNOWN)))
        self._claims.end(keys, 0)
