"""When conversations come back (pure): the share of those that are idle that stay so for so long.

Learnt from pauses that ended and from conversations that were given up. Pauses are long-tailed: a tool answers within
seconds, a person within minutes or never, so they are counted by the logarithm of their length.
"""

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

_BUCKETS = 24  # of pauses, two to an octave: from a second to over an hour
_PRIOR = 10.0  # observations' worth of belief that conversations return, after pauses of any length
_PRIOR_GONE = 1.0
_ENOUGH = 4_096.0  # observations after which older ones count half


class Odds:
    def __init__(self) -> None:
        self._returned = np.zeros(_BUCKETS)
        self._gone = 0.0
        self._seen = 0.0
        self._idle: Seconds | None = None  # how many stay idle at least as long as each bucket begins

    def returned(self, idle_s: float) -> None:
        self._returned[int(_at(max(0.0, idle_s)))] += 1
        self._fade()

    def gone(self) -> None:
        self._gone += 1
        self._fade()

    def _fade(self) -> None:
        self._idle = None
        self._seen += 1
        if self._seen > _ENOUGH:
            self._returned /= 2
            self._gone /= 2
            self._seen /= 2

    def staying(self, idle_s: Seconds) -> Seconds:
        """In proportion to each other, how many conversations stay idle for at least so many seconds. Never nothing:
        some never return."""
        if self._idle is None:
            later = np.cumsum((self._returned + _PRIOR / _BUCKETS)[::-1])[::-1]
            self._idle = np.append(later, 0.0) + self._gone + _PRIOR_GONE
        found: Seconds = np.asarray(np.interp(_at(idle_s), np.arange(_BUCKETS + 1), self._idle))
        return found


def _at(idle_s: "Seconds | float") -> Seconds:
    """The bucket of a pause, and how far into it."""
    at: Seconds = np.minimum(_BUCKETS - 0.001, 2 * np.log2(1 + np.maximum(0.0, idle_s)))
    return at
