"""Many who are woken by one event (an engine that dies, a crowd that leaves) go on a few in each turn of the loop.

What each of them does then is some tenths of a millisecond: of thousands in one turn that is a second in which nobody
else's stream moves.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

TURN_S = 0.002  # of a turn, that those who are woken may take
WITHIN_S = 2.0  # all are woken in about that, however long the turns are that others make
FEW = 4  # that are woken at once, unless others wait for that already
MOST = 256

_crowds: "WeakKeyDictionary[asyncio.AbstractEventLoop, Crowd]" = WeakKeyDictionary()


class Crowd:
    """`wake` runs what wakes somebody: at once or in a later turn, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = perf_counter) -> None:
        self._call_soon = loop.call_soon
        self._clock = clock
        self._queue: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = 0  # in this turn
        self._many = FEW  # that are woken in the next one
        self._began = 0.0
        self._turned = 0.0

    def __repr__(self) -> str:
        return f"<Crowd of {len(self._queue)}, {self._many} a turn>"

    def wake(self, act: Callable[..., object], *arguments: Any) -> None:
        if self._woken >= FEW or self._queue:
            self._queue.append((act, arguments))
            return
        if not self._woken:
            self._call_soon(self._turn)
        self._woken += 1
        act(*arguments)

    def _turn(self) -> None:
        """Wake some more; when it comes again, they have done what they do."""
        if not self._queue:
            self._woken, self._many = 0, FEW
            return
        began, woken = self._clock(), 0
        self._turned = began
        self._call_soon(self._start)
        try:
            while self._queue and woken < self._many and (not woken or self._clock() - began < TURN_S):
                act, arguments = self._queue.popleft()
                woken += 1
                act(*arguments)
        finally:
            self._call_soon(self._done, woken, self._clock() - began)

    def _start(self) -> None:
        self._began = self._clock()

    def _done(self, woken: int, waking_s: float) -> None:
        now = self._clock()
        took_s = max(1e-6, waking_s + now - self._began)
        least = max(1, int(len(self._queue) * (now - self._turned) / WITHIN_S))
        self._many = min(MOST, max(least, min(2 * self._many, int(woken * TURN_S / took_s))))
        self._turn()


def in_turn(act: Callable[..., object], *arguments: Any) -> None:
    """As `Crowd.wake` of the running loop."""
    loop = asyncio.get_running_loop()
    crowd = _crowds.get(loop)
    if crowd is None:
        crowd = _crowds[loop] = Crowd(loop)
    crowd.wake(act, *arguments)
