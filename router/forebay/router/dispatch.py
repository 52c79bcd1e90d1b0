"""Who waits for what of a core, on an event loop: requests that are not placed at once are told later.

The core says what has become of them when it is pumped. That is done whenever something was told to it that may make
room at an engine, and while somebody waits every `PUMP_S` besides, since a prefill is predicted to end without a word.
"""

import asyncio
from collections.abc import Callable

from msgspec import Struct
from prometheus_client import Counter, Histogram

from forebay.router.core import Core, Settled
from forebay.router.crowd import in_turn
from forebay.router.routing import Ask, Explanation, Outcome, Placed, Refused, Result

PUMP_S = 0.02

Clock = Callable[[], float]
Tell = Callable[[Result], None]
TellEviction = Callable[[int], None]

_WAITED = Histogram(
    "forebay_wait_seconds",
    "Seconds that requests waited for an engine, of those that were not placed at once",
    ["pool", "tier"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300),
)
_REFUSED = Counter(
    "forebay_wait_refusals_total", "Requests that got no engine, by why not",
    ["pool", "tier", "reason"],
)  # fmt: skip
_DOWNGRADED = Counter(
    "forebay_downgrades_total", "Requests that are served in a lower tier than was asked for", ["pool", "tier"]
)
_EVICTED = Counter(
    "forebay_evictions_total", "Running requests that were told to stop for one of a higher tier", ["pool", "tier"]
)


class _Waiter(Struct):
    pool: str
    tier: str
    owner: int
    since: float
    tell: Tell


class Dispatch:
    """Of one core, for everybody who asks it. To be used on one event loop."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self.core = core
        self.clock = clock
        self._waiters: dict[int, _Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._evicting: dict[int, TellEviction] = {}

    def __repr__(self) -> str:
        return f"<Dispatch over {self.core} [{len(self._waiters)} wait]>"

    def request(self, ask: Ask, owner: int = 0) -> Result | int:
        """What becomes of a request, if that is known at once; else its number, for `hear` and `withdraw`."""
        core = self.core
        number = core.request(ask, self.clock(), owner)
        result: Result | int = number
        for settled in core.settled():
            if settled.number == number:
                result = settled.result
                self._count(ask.pool, ask.tier, result)
            else:
                in_turn(self._deliver, settled)
        return result

    def hear(self, number: int, ask: Ask, tell: Tell, owner: int = 0) -> None:
        """Call `tell`, once, with what becomes of a request that waits: right after `request`, and with what that was
        given. `tell` may `give_back`, and must leave the rest of this alone."""
        self._waiters[number] = _Waiter(ask.pool, self.core.tiers[ask.tier].name, owner, self.clock(), tell)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PUMP_S, self._pulse)

    def listen_evictions(self, tell: TellEviction, owner: int = 0) -> None:
        """Call `tell` with what `owner` has booked and is to stop for a request of a higher tier."""
        self._evicting[owner] = tell

    def within_s(self, number: int) -> float:
        """Seconds within which one that waits is told."""
        return self.core.within_s(number, self.clock())

    def withdraw(self, number: int) -> None:
        """Nobody wants to hear of it any more. Of one that was told already it changes nothing."""
        waiter = self._waiters.pop(number, None)
        if waiter is not None:
            self.core.withdraw(number, self.clock())
            self._left(waiter)

    def give_back(self, result: Result) -> None:
        """Nobody is there any more to use it."""
        if type(result) is Placed:
            self.core.ended(result.booking, Outcome(), self.clock())

    def release_owner(self, owner: int) -> None:
        """Everything that `owner` has booked ends, and it does not hear of what it waits for."""
        self.core.release_owner(owner, self.clock())
        self._evicting.pop(owner, None)
        for number in [number for number, waiter in self._waiters.items() if waiter.owner == owner]:
            self._left(self._waiters.pop(number))
        self.pump()

    def pump(self) -> None:
        """Tell those who wait what has become of their requests: to be called when there may be room at an engine."""
        self._evict()
        if not self._waiters:
            return
        core, now = self.core, self.clock()
        for name, line in core.lines.items():
            if line.line:
                core.pump(name, now)
        self.tell()

    def tell(self) -> None:
        """Tell those of whose requests something has become."""
        for settled in self.core.settled():
            in_turn(self._deliver, settled)

    def _evict(self) -> None:
        for owner, booking in self.core.evictions():
            known = self.core.booked(booking)
            if known is not None and (tell := self._evicting.get(owner)) is not None:
                _EVICTED.labels(known.pool, known.tier).inc()
                tell(booking)

    def explain(self, ask: Ask) -> Explanation:
        core, now = self.core, self.clock()
        candidates = core.explain(ask, now)
        chosen = next((one for one in candidates if one.chosen), None)
        if chosen is None:
            return Explanation(candidates)
        return core.lines[ask.pool].explain(ask, candidates, chosen, now)

    def _deliver(self, settled: Settled) -> None:
        waiter, result = self._waiters.pop(settled.number, None), settled.result
        if waiter is not None:
            self._left(waiter)
            self._count(waiter.pool, waiter.tier, result)
            waiter.tell(result)
        else:
            self.give_back(result)

    def _count(self, pool: str, asked: str, result: Result) -> None:
        if type(result) is Refused:
            _REFUSED.labels(pool, result.tier, result.why).inc()
        elif type(result) is Placed and self.core.tiers[asked].name != self.core.tiers[result.tier].name:
            _DOWNGRADED.labels(pool, self.core.tiers[asked].name).inc()

    def _left(self, waiter: _Waiter) -> None:
        _WAITED.labels(waiter.pool, waiter.tier).observe(self.clock() - waiter.since)

    def _pulse(self) -> None:
        self._timer = None
        try:
            self.pump()
        finally:
            if self._waiters:
                self._timer = asyncio.get_running_loop().call_later(PUMP_S, self._pulse)
