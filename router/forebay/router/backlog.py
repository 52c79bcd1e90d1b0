"""What one tenant has waiting in one tier (pure): in the order of its turn, with sums of what stands before whom."""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import inf

from forebay.router.waiting import Waiting


class Backlog:
    """Sorted by `due`, of equals who came first. Seconds and tokens stand in lists of their own, since thousands of
    those are summed in microseconds."""

    def __init__(self) -> None:
        self.ones: list[Waiting] = []
        self.tokens: list[float] = []  # that the tenant will be charged
        self._seconds: list[float] = []
        self._keys: list[tuple[float, int]] = []

    def __repr__(self) -> str:
        return f"<Backlog of {len(self.ones)}>"

    def __len__(self) -> int:
        return len(self.ones)

    def add(self, waiting: Waiting) -> None:
        key = waiting.due, waiting.number
        at = bisect_right(self._keys, key)
        self._keys.insert(at, key)
        self.ones.insert(at, waiting)
        self.tokens.insert(at, waiting.cost / waiting.ask.weight)
        self._seconds.insert(at, waiting.prefill_s)

    def remove(self, waiting: Waiting) -> None:
        """As it was when it was added."""
        at = bisect_left(self._keys, (waiting.due, waiting.number))
        for column in (self._keys, self.ones, self.tokens, self._seconds):
            del column[at]

    def before(self, due: float) -> tuple[int, float, float]:
        """What goes before a newcomer of the same tenant: requests, seconds of prefill, tokens."""
        at = bisect_right(self._keys, (due, inf))
        return at, sum(self._seconds[:at]), sum(self.tokens[:at])

    def within(self, tokens: float, due: float) -> tuple[int, float]:
        """What begins before its tenant was charged `tokens`, or as it was and sooner due: requests, seconds."""
        starts = list(accumulate(self.tokens, initial=0.0))[:-1]
        at = bisect_left(starts, tokens)
        while at < len(starts) and starts[at] == tokens and self._keys[at][0] <= due:
            at += 1
        return at, sum(self._seconds[:at])
