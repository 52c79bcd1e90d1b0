"""Keys that a holder is taken to have although no event said so: a request with them was just sent there, or the engine
reported more cached tokens than was known (pure)."""

import heapq
from itertools import count, islice, repeat
from math import inf

from msgspec import Struct

from forebay.router.prefix.claims import Claims
from forebay.router.prefix.keys import Keys
from forebay.router.prefix.marks import EACH, group, marks
from forebay.router.prefix.sizes import Counts


class _Term(Struct, eq=False, gc=False):
    """How long marks are expected that were told together, how many keys each speaks for, and the prompt's keys, from
    number `first` on. Some may have passed into a longer one meanwhile."""

    until: float
    each: int
    marks: list[int]
    keys: Keys
    first: int


class Expected:
    """What is expected of one holder: marks, as claims in a table of their own. Its length is in keys, those that marks
    speak for included, and so is `most`."""

    def __init__(self, claims: Claims, counts: Counts, most: int) -> None:
        self._counts = counts
        self._claims = claims
        self._most = most
        self._terms: dict[int, _Term] = {}  # by mark
        self._length = 0
        self._queue: list[tuple[float, int, _Term]] = []  # as they end, or later if they were renewed
        self._queued = 0  # keys in the queue, those that have passed into another term twice
        self._order = count()

    def __len__(self) -> int:
        return self._length

    @property
    def due(self) -> float:
        """Nothing ends before."""
        return self._queue[0][0] if self._queue else inf

    def add(self, keys: Keys, first: int, until: float) -> None:
        """Take a prompt's `keys` from number `first` on to be held until `until`, or as long as they are already.
        Beyond the bound, what ends first ends at once."""
        told = keys[first : first + self._most].copy()
        near, ends = marks(told, first)
        for some, each in ((self._parting(keys, first, ends), EACH), (near, 1), (ends, EACH)):
            if some:
                self._take(_Term(until, each, some, told, first))
        while self._length > self._most or self._queued > 2 * self._most:
            before = self._length
            self._end_first()
            self._counts.lapsed += before - self._length

    def _parting(self, keys: Keys, first: int, ends: list[int]) -> list[int]:
        """Where the prompt parts from another, others may, so that a mark is worth its room: of a burst that shares a
        beginning, the third and on find all of it. `ends` of groups are still to be told. None, or one."""
        new = next((number for number, mark in enumerate(ends) if mark not in self._terms), None)
        if new is None:
            return []
        start, end = group(first, new)
        other = self._terms.get(int(keys[start - 1])) if start >= first else None
        if other is None or other.first > start:
            return []
        theirs, ours = other.keys[start - other.first : end - other.first], keys[start:end]
        most = min(len(theirs), len(ours))
        shared = int((theirs[:most] == ours[:most]).sum())
        return [int(ours[shared - 1])] if 0 < shared < len(ours) else []

    def _take(self, term: _Term) -> None:
        known = list(map(self._terms.get, term.marks, repeat(None)))
        same = known[0]
        if same is not None and len(same.marks) == len(known) == known.count(same):
            if same.until < term.until:
                same.until, same.keys, same.first = term.until, term.keys, term.first
            return
        fresh = [mark for mark, one in zip(term.marks, known, strict=True) if one is None]
        term.marks = [
            mark for mark, one in zip(term.marks, known, strict=True) if one is None or one.until < term.until
        ]
        if term.marks:
            self._claims.claim(fresh, 0)
            before = len(self._terms)
            self._terms.update(dict.fromkeys(term.marks, term))
            self._length += term.each * (len(self._terms) - before)
            self._enqueue(term)

    def _enqueue(self, term: _Term) -> None:
        heapq.heappush(self._queue, (term.until, next(self._order), term))
        self._queued += term.each * len(term.marks)

    def expire(self, now: float, most: int) -> int:
        """End what is due, and stop after `most` marks. Returns how many there were."""
        ended = 0
        while self.due <= now and ended < most:
            ended += self._end_first()
        return ended

    def drop(self, keys: Keys) -> None:
        self._end([key for key in keys.tolist() if key in self._terms])

    def sweep(self, most: int) -> int:
        """Take back at most `most` claims. Returns how many there were."""
        some = list(islice(self._terms, most))
        self._end(some)
        return len(some)

    def _end_first(self) -> int:
        """End the first in the queue, unless it was renewed. Returns how many marks there were."""
        until, _, term = heapq.heappop(self._queue)
        self._queued -= term.each * len(term.marks)
        if until < term.until:
            self._enqueue(term)
            return 0
        self._end([mark for mark in term.marks if self._terms.get(mark) is term])
        return len(term.marks)

    def _end(self, some: list[int]) -> None:
        for mark in some:
            if (term := self._terms.pop(mark, None)) is not None:
                self._length -= term.each
        self._claims.end(some, 0)
