"""llm-d's flow control before its own placement, written from its documentation (facts, not code), to compare with.

Bands by priority, each a queue in order of arrival, of at most 5,000 requests that wait 60 s at most. Each millisecond,
and with each request that comes, one is sent on: of the highest band that has any, unless the pool is as saturated as
that band's ceiling allows; then nothing goes, of lower bands neither. What it needs to know of engines it knows without
delay.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from forebay.router.simulation.engine import Engine, Request
from forebay.router.simulation.policies import Send, StickyUntilSaturated

MOST = 5_000
TTL_S = 60.0
TICK_S = 0.001
QUEUE, KV = 5.0, 0.8  # an engine with so many waiting, or so much of its cache in use, is saturated
_NEVER = float("inf")

Saturation = Callable[[Sequence[Engine]], float]
Ceilings = Callable[[float, float], float]  # of where a band stands (0: highest, 1: lowest), and saturation


def utilization(engines: Sequence[Engine]) -> float:
    return sum(max(len(one.waiting) / QUEUE, _kv(one) / KV) for one in engines) / len(engines)


def _kv(engine: Engine) -> float:
    return (engine.cache.pinned + engine.cache.reserved) / engine.cache.capacity


def concurrency(most: float) -> Saturation:
    """`most`: requests in flight for each engine."""
    return lambda engines: sum(one.in_flight for one in engines) / (most * len(engines))


def static(position: float, saturation: float) -> float:
    return 1.0


def holdback(least: float) -> Ceilings:
    return lambda position, saturation: 1.0 - position * (1.0 - least)


def soft_reflective(position: float, saturation: float) -> float:
    return 1.0 - position * saturation


class FlowControl(StickyUntilSaturated):
    """`priorities`: of each tier. `ttl_s`: how long its requests wait, where it is not as published."""

    def __init__(
        self, engines: Sequence[Engine], send: Send, seed: int, *, priorities: Mapping[str, int],
        saturation: Saturation = utilization, ceilings: Ceilings = static, ttl_s: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(engines, send, seed)
        self._tell = send
        self._priorities = priorities
        self._bands: dict[int, deque[Request]] = {one: deque() for one in sorted(priorities.values(), reverse=True)}
        self._saturation = saturation
        self._ceilings = ceilings
        self._ttl_s = ttl_s or {}
        self._ticked_at = -_NEVER
        self._swept_at = 0.0
        self.wake_at = _NEVER

    def asked(self, request: Request, now: float) -> None:
        band = self._bands[self._priorities[request.tier]]
        if len(band) >= MOST:
            self._tell.refuse(request, 1.0, now)  # it names no time; clients come again after a second
            return
        band.append(request)
        self._dispatch(now)
        self._wake(now)

    def ended(self, request: Request, now: float) -> None:
        super().ended(request, now)
        self._wake(now)

    def begun(self, request: Request, now: float) -> None:
        super().begun(request, now)
        self._wake(now)

    def wake(self, now: float) -> None:
        self.wake_at = _NEVER
        for band in self._bands.values():
            while band and now - band[0].tried_at >= self._ttl_s.get(band[0].tier, TTL_S):
                self._tell.refuse(band.popleft(), 1.0, now)
        sent = self._dispatch(now)
        self._wake(now, sent=sent)

    def _dispatch(self, now: float) -> bool:
        saturation = self._saturation(self.engines)
        bands = list(self._bands.values())
        for number, band in enumerate(bands):
            if not band:
                continue
            if saturation >= self._ceilings(number / max(1, len(bands) - 1), saturation):
                return False
            request = band.popleft()
            super().asked(request, now)
            return True
        return False

    def _wake(self, now: float, *, sent: bool = True) -> None:
        """A tick from now; where engines were full, not before something changes there or a wait is over."""
        waiting = [band[0] for band in self._bands.values() if band]
        if not waiting:
            self.wake_at = _NEVER
        elif sent:
            self.wake_at = min(self.wake_at, now + TICK_S)
        else:
            over = min(one.tried_at + self._ttl_s.get(one.tier, TTL_S) for one in waiting)
            self.wake_at = min(self.wake_at, max(now + TICK_S, min(over, now + TICK_S * 20)))
