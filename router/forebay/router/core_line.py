"""Which of the requests that wait in a pool go to an engine now (pure)."""

import heapq
import math
from collections.abc import Iterator, Mapping

from forebay.router.core_pool import CorePool
from forebay.router.fairness import Counters, Shares, cost
from forebay.router.loads import Booking
from forebay.router.placement import Option, choose
from forebay.router.routing import Outcome
from forebay.router.tiers import Tiers
from forebay.router.waiting import START_S, Line, Waiting

MATCHED_S = 1.0  # what is cached of a request that waits is looked up anew after this
WEIGHED_S = 0.25  # one that would go where there is no room, or that nobody asked, is weighed anew after this
AGAIN_S = 0.05  # between two times that some are weighed of so many that not all can be at once
_MOST_TOKENS = 1 << 24  # of one request: an engine that says more is not believed
LOOKED = 16  # of those weighed anew at a time: the first ones, and as many of those that were not for longest


class CoreLine:
    """The line before one pool."""

    def __init__(self, pool: CorePool, tiers: Tiers | None = None) -> None:
        self.pool = pool
        self.tiers = tiers or Tiers()
        self.counters = Counters()
        self.shares = Shares(self.tiers)
        self.line = Line(tiers=self.tiers, counters=self.counters, shares=self.shares)
        self._unwanted: set[str] = set()  # endpoints with room that nobody who waits would go to
        self._able: list[str] = []  # endpoints that were asked last
        self._weigh_at = 0.0  # when that may have changed

    def __repr__(self) -> str:
        return f"<CoreLine {self.pool.name} {self.line}>"

    def options(self, waiting: Waiting, now: float, ahead: Mapping[str, float] | None = None) -> list[Option]:
        """Where it could go, as things are, with so many seconds of others before it."""
        if not 0 <= now - waiting.held_at <= MATCHED_S:
            waiting.held, waiting.held_at = self.pool.held(waiting.keys), now
        return self.pool.options(waiting.ask, waiting.held, now, ahead=ahead)

    def _weighed(self, waiting: Waiting, now: float, ahead: Mapping[str, float]) -> list[Option]:
        waiting.weighed_at = now
        options = self.options(waiting, now, ahead)
        if options:
            best = choose(options)
            self.line.weighed(waiting, best.name, best.prefill_s, _cost(waiting, best))
        return options

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
        self.line.weighed(waiting, home.name, home.prefill_s, _cost(waiting, home))
        self._unwanted.discard(home.name)
        return self.line.add(waiting)

    def booked(self, waiting: Waiting, booking: Booking, option: Option, now: float) -> None:
        """Charge its tenant, its session and its tier for what is expected of it."""
        ask = waiting.ask
        booking.tier, booking.tenant, booking.session = waiting.tier.name, ask.tenant, ask.session
        booking.charged = _cost(waiting, option)
        self.counters.placed(booking.tier, booking.tenant, booking.session, booking.charged)
        self.shares.served(booking.tier, booking.charged, now)

    def ended(self, booking: Booking, outcome: Outcome, now: float) -> None:
        """Set right what was charged, by what was used."""
        actual = booking.charged
        if outcome.output is not None:
            prompt = booking.tokens if outcome.prompt_tokens is None else outcome.prompt_tokens
            cached = booking.cached if outcome.cached is None else outcome.cached
            actual = cost(min(max(0, prompt - cached), _MOST_TOKENS), min(outcome.output, _MOST_TOKENS))
        elif booking.waiting:  # nothing of it was seen
            actual = 0.0
        self.counters.ended(booking.tier, booking.tenant, booking.session, booking.charged, actual)
        self.shares.served(booking.tier, actual - booking.charged, now)

    def lost(self, booking: Booking) -> None:
        """Its endpoint is gone, and with it what could be known of its use."""
        charged = booking.charged
        self.counters.ended(booking.tier, booking.tenant, booking.session, charged, charged)

    def ready(self, now: float) -> Iterator[tuple[Waiting, list[Option]]]:
        """Requests to be sent now, in order, with what to choose from: nothing, where no endpoint is left to ask. Each
        is to be booked before the next is asked for."""
        pool = self.pool
        able = [name for name, member in pool.members.items() if pool.takes(member)]
        opened = {name for name in able if self.opens(name, now)}
        changed, self._able = able != self._able, able
        if able and not changed and not opened - self._unwanted and now < self._weigh_at <= now + WEIGHED_S:
            return
        self._unwanted = set()
        ahead = dict.fromkeys(able, 0.0)  # seconds of what waits before, by where it would go
        ordered = self.line.ordered(now)
        stale = [one for one in ordered if changed or not 0 <= now - one.weighed_at < WEIGHED_S]
        looked = {one.number for one in stale[:LOOKED]}
        looked.update(one.number for one in heapq.nsmallest(LOOKED, stale[LOOKED:], key=lambda one: one.weighed_at))
        oldest = min((one.weighed_at for one in ordered if one.number not in looked), default=now)
        self._weigh_at = min(max(oldest + WEIGHED_S, now + AGAIN_S), now + WEIGHED_S)
        for waiting in ordered:
            home = waiting.home
            if waiting.number not in looked and home in ahead and home not in opened:
                ahead[home] += waiting.prefill_s
                continue
            options = self._weighed(waiting, now, ahead)
            if not options:
                yield waiting, options
                continue
            best = choose(options)
            if waiting.held_at < now and best.name in opened and ahead[best.name] <= START_S:
                waiting.held_at = -math.inf  # what it is sent there for must be there now
                options = self._weighed(waiting, now, ahead)
                best = choose(options)
            if best.name not in opened or ahead[best.name] > START_S:
                ahead[best.name] += best.prefill_s
                continue
            yield waiting, options
            if not pool.takes(pool.members[best.name]) or not self.opens(best.name, now):
                opened.discard(best.name)
            if able and not opened:
                return
        self._unwanted = opened


def _cost(waiting: Waiting, option: Option) -> float:
    return cost(waiting.ask.tokens - option.cached, waiting.ask.output)
