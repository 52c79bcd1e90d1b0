"""Who waits for what of a core, on an event loop: requests that are not placed at once are told later.

The core says what has become of them when it is pumped. That is done whenever something was told to it that may make
room at an engine, and while somebody waits every `PUMP_S` besides, since a prefill is predicted to end without a word.
"""

import asyncio
from collections.abc import Callable

from msgspec import Struct
from prometheus_client import Counter, Histogram

from forebay.router.core import Core, Settled
from forebay.router.routing import Ask, Explanation, Outcome, Placed, Refused, Result
from forebay.router.waiting import Waiting, shortest_first

PUMP_S = 0.02

Clock = Callable[[], float]
Tell = Callable[[Result], None]

_WAITED = Histogram(
    "forebay_wait_seconds",
    "Seconds that requests waited for an engine, of those that were not placed at once",
    ["pool"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300),
)
_REFUSED = Counter(
    "forebay_wait_refusals_total", "Requests that got no engine, by why not",
    ["pool", "reason"],
)  # fmt: skip


class _Waiter(Struct):
    pool: str
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
                if type(result) is Refused:
                    _refused(ask.pool, result)
            else:
                self._deliver(settled)
        return result

    def hear(self, number: int, ask: Ask, tell: Tell, owner: int = 0) -> None:
        """Call `tell`, once, with what becomes of a request that waits: right after `request`, and with what that was
        given. `tell` may `give_back`, and must leave the rest of this alone."""
        self._waiters[number] = _Waiter(ask.pool, owner, self.clock(), tell)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PUMP_S, self._pulse)

    def withdraw(self, number: int) -> None:
        """Nobody wants to hear of it any more. Of one that was told already it changes nothing."""
        waiter = self._waiters.pop(number, None)
        if waiter is not None:
            self.core.withdraw(number)
            self._left(waiter)

    def give_back(self, result: Result) -> None:
        """Nobody is there any more to use it."""
        if type(result) is Placed:
            self.core.ended(result.booking, Outcome(), self.clock())

    def release_owner(self, owner: int) -> None:
        """Everything that `owner` has booked ends, and it does not hear of what it waits for."""
        self.core.release_owner(owner, self.clock())
        for number in [number for number, waiter in self._waiters.items() if waiter.owner == owner]:
            self._left(self._waiters.pop(number))
        self.pump()

    def pump(self) -> None:
        """Tell those who wait what has become of their requests: to be called when there may be room at an engine."""
        if not self._waiters:
            return
        core, now = self.core, self.clock()
        for name, line in core.lines.items():
            if line.line:
                core.pump(name, now)
        for settled in core.settled():
            self._deliver(settled)

    def explain(self, ask: Ask) -> Explanation:
        core, now = self.core, self.clock()
        candidates = core.explain(ask, now)
        chosen = next((one for one in candidates if one.chosen), None)
        if chosen is None:
            return Explanation(candidates)
        key = shortest_first(Waiting(0, 0, ask, now, now, prefill_s=chosen.prefill_s), now)
        line = core.lines[ask.pool].line
        return Explanation(candidates, sum(shortest_first(one, now) <= key for one in line))

    def _deliver(self, settled: Settled) -> None:
        waiter, result = self._waiters.pop(settled.number, None), settled.result
        if waiter is not None:
            self._left(waiter)
            if type(result) is Refused:
                _refused(waiter.pool, result)
            waiter.tell(result)
        else:
            self.give_back(result)

    def _left(self, waiter: _Waiter) -> None:
        _WAITED.labels(waiter.pool).observe(self.clock() - waiter.since)

    def _pulse(self) -> None:
        self._timer = None
        try:
            self.pump()
        finally:
            if self._waiters:
                self._timer = asyncio.get_running_loop().call_later(PUMP_S, self._pulse)


def _refused(pool: str, refused: Refused) -> None:
    _REFUSED.labels(pool, refused.why).inc()
