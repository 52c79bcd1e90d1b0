"""Which of the requests that wait in a pool go to an engine now (pure)."""

from collections.abc import Iterator, Mapping

from forebay.router.core_pool import CorePool
from forebay.router.placement import Option, choose
from forebay.router.waiting import START_S, Line, Waiting

MATCHED_S = 1.0  # what is cached of a request that waits is looked up anew after this
WEIGHED_S = 0.25  # those that did not want an endpoint with room are asked again after this
LOOKED = 16  # requests weighed at a time, beside those that would go where there is room


class CoreLine:
    """The line before one pool."""

    def __init__(self, pool: CorePool) -> None:
        self.pool = pool
        self.line = Line()
        self._unwanted: set[str] = set()  # endpoints with room that nobody who waits would go to
        self._weigh_at = 0.0  # when that may have changed

    def __repr__(self) -> str:
        return f"<CoreLine {self.pool.name} {self.line}>"

    def options(self, waiting: Waiting, now: float, ahead: Mapping[str, float] | None = None) -> list[Option]:
        """Where it could go, as things are, with so many seconds of others before it."""
        if not 0 <= now - waiting.held_at <= MATCHED_S:
            waiting.held, waiting.held_at = self.pool.held(waiting.keys), now
        return self.pool.options(waiting.ask, waiting.held, now, ahead=ahead)

    def opens(self, name: str, now: float) -> bool:
        """Whether the endpoint would start more work soon."""
        member = self.pool.members[name]
        return member.load.ahead(now, member.rates.prefill_s) * member.rates.prefill_s <= START_S

    def wait_s(self) -> float:
        """Seconds until what waits now will have begun, about."""
        able = sum(map(self.pool.opened, self.pool.members.values()))
        return sum(waiting.prefill_s for waiting in self.line) / max(1, able)

    def add(self, waiting: Waiting, home: Option) -> bool:
        """False: there is no room."""
        waiting.home, waiting.prefill_s = home.name, home.prefill_s
        self._unwanted.discard(home.name)
        return self.line.add(waiting)

    def ready(self, now: float) -> Iterator[tuple[Waiting, list[Option]]]:
        """Requests to be sent now, in order, with what to choose from: nothing, where no endpoint is left to ask. Each
        is to be booked before the next is asked for."""
        pool = self.pool
        able = [name for name, member in pool.members.items() if pool.takes(member)]
        opened = {name for name in able if self.opens(name, now)}
        if able and not opened - self._unwanted and now < self._weigh_at <= now + WEIGHED_S:
            return
        self._weigh_at = now + WEIGHED_S
        self._unwanted = set()
        ahead = dict.fromkeys(pool.members, 0.0)  # seconds of what waits before, by where it would go
        looked = 0
        for waiting in self.line.ordered(now):
            if looked >= LOOKED and waiting.home not in opened and waiting.home in ahead:
                ahead[waiting.home] += waiting.prefill_s
                continue
            looked += 1
            options = self.options(waiting, now, ahead)
            if not options:
                yield waiting, options
                continue
            best = choose(options)
            waiting.home, waiting.prefill_s = best.name, best.prefill_s
            if best.name not in opened or ahead[best.name] > START_S:
                ahead[best.name] += best.prefill_s
                continue
            yield waiting, options
            if not pool.takes(pool.members[best.name]) or not self.opens(best.name, now):
                opened.discard(best.name)
            if able and not opened:
                return
        self._unwanted = opened
