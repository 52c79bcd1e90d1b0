"""The router's decisions (pure): every pool, and the load that is booked on it. The time is an argument, in seconds."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from forebay.router.admission import refused
from forebay.router.core_line import CoreLine
from forebay.router.core_pool import CorePool
from forebay.router.eviction import victims
from forebay.router.health import Failed, Finding
from forebay.router.loads import Booking
from forebay.router.peers import Peers
from forebay.router.placement import Option, choose
from forebay.router.prefix.blocks import Event
from forebay.router.prefix.keys import Weights
from forebay.router.rates import Learnt
from forebay.router.routing import (
    Ask,
    Candidate,
    EndpointState,
    Following,
    Group,
    Outcome,
    Placed,
    Reading,
    Result,
    Why,
)
from forebay.router.tiers import Tiers
from forebay.router.waiting import Waiting, keys_of

BLOCKS_PER_HOLDER = 1 << 20  # entries of the index for one endpoint: 32 Mi tokens
SWEEP = 4096  # entries that one tick looks at

_UNSEEN = Outcome()


class Settled(Struct, frozen=True):
    """What became of a request. None: no endpoint is available."""

    number: int
    owner: int
    result: Result


class Core:
    """`pools`: the endpoints of each, by name. In a pool that it does not know nobody is available."""

    def __init__(
        self,
        pools: Mapping[str, Collection[str]],
        weights: Weights,
        *,
        blocks_per_holder: int = BLOCKS_PER_HOLDER,
        tiers: Tiers | None = None,
    ) -> None:
        self.tiers = tiers or Tiers()
        self.pools = {
            name: CorePool(name, endpoints, weights, blocks_per_holder=blocks_per_holder)
            for name, endpoints in pools.items()
        }
        self.lines = {name: CoreLine(pool, self.tiers) for name, pool in self.pools.items()}
        self.peers = Peers(self.pools)
        self._bookings: dict[int, Booking] = {}
        self._waiting: dict[int, Waiting] = {}
        self._settled: list[Settled] = []
        self._evicted: list[tuple[int, int]] = []
        self._next = 0

    def __repr__(self) -> str:
        return f"<Core {list(self.pools)} [{len(self._bookings)} bookings]>"

    @property
    def bookings(self) -> int:
        """How many are held."""
        return len(self._bookings)

    def booked(self, number: int) -> Booking | None:
        return self._bookings.get(number)

    # -- requests

    def place(self, ask: Ask, now: float, owner: int = 0) -> Placed | None:
        """The endpoint to send the request to, its load booked for `owner`; None when none is available."""
        pool = self.pools.get(ask.pool)
        if pool is None:
            return None
        keys = keys_of(ask)
        options = pool.weigh(ask, keys, now)
        waiting = Waiting(0, owner, ask, now, now, keys, tier=self.tiers[ask.tier])
        return self._book(pool, waiting, options, choose(options), now) if options else None

    def request(self, ask: Ask, now: float, owner: int = 0) -> int:
        """Have the request placed as soon as an engine will start it. The number under which `settled` tells of it."""
        self._next += 1
        waiting = Waiting(self._next, owner, ask, now - ask.waited_s, now + ask.patience_s, keys_of(ask))
        waiting.tier = self.tiers[ask.tier]
        line = self.lines.get(ask.pool)
        options = line.options(waiting, now) if line is not None else []
        if line is not None and not options and line.cold(waiting, now):
            if line.add_cold(waiting):
                self._waiting[waiting.number] = waiting
            else:
                self._settled.append(Settled(waiting.number, owner, refused(waiting, Why.FULL, 1.0)))
            return waiting.number
        if line is None or not options:
            self._settled.append(Settled(waiting.number, owner, None))
            return waiting.number
        best = choose(options)
        if (turned_away := line.admit(waiting, best, now)) is not None:
            self._settled.append(Settled(waiting.number, owner, turned_away))
        elif not line.line and line.opens(best.name, now, waiting.tier):
            placed = self._book(line.pool, waiting, options, best, now)
            self._settled.append(Settled(waiting.number, owner, placed))
        elif line.add(waiting, best):
            self._waiting[waiting.number] = waiting
            self.pump(ask.pool, now)
        else:
            line.gone(waiting, now)
            self._settled.append(Settled(waiting.number, owner, refused(waiting, Why.FULL, line.wait_s())))
        return waiting.number

    def pump(self, pool: str, now: float) -> None:
        """Give engines of a pool what they will start soon, of what waits."""
        line = self.lines.get(pool)
        if line is None or not line.line:
            return
        line.gate.pace.passed(now, waits=True)
        for waiting, options in line.ready(now):
            if not options and line.cold(waiting, now):
                continue
            placed = self._book(line.pool, waiting, options, choose(options), now) if options else None
            self._settle(waiting, placed, now)

    def within_s(self, number: int, now: float) -> float:
        """Seconds within which something becomes of a request that waits."""
        waiting = self._waiting.get(number)
        return max(0.0, max(waiting.until, waiting.latest) - now) if waiting is not None else 0.0

    def evictions(self) -> "list[tuple[int, int]]":
        """Owners and bookings that are to be stopped for requests of higher tiers, since this was last asked."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def settled(self) -> "list[Settled]":
        """What became of requests since this was last asked."""
        settled, self._settled = self._settled, []
        return settled

    def withdraw(self, number: int, now: float) -> None:
        """Nobody wants the answer any more. One that is placed already must be ended instead."""
        if (waiting := self._waiting.pop(number, None)) is not None:
            line = self.lines[waiting.ask.pool]
            line.line.remove(number)
            line.gone(waiting, now)

    def _evict(self, line: CoreLine, now: float) -> None:
        if len(self.tiers) > 1:
            running = [one for one in self._bookings.values() if one.pool == line.pool.name]
            if not (needy := line.needy(running, now)):
                return
            spare = [one for one in running if one.stoppable and line.spares(one.tier)]
            for booking in victims(self.tiers, needy, spare, now):
                booking.told_at = now
                self._evicted.append((booking.owner, booking.id))

    def _settle(self, waiting: Waiting, result: Result, now: float) -> None:
        line = self.lines[waiting.ask.pool]
        line.line.remove(waiting.number)
        del self._waiting[waiting.number]
        if not isinstance(result, Placed):
            line.gone(waiting, now)
        self._settled.append(Settled(waiting.number, waiting.owner, result))

    def _book(
        self, pool: CorePool, waiting: Waiting, options: Sequence[Option], option: Option, now: float
    ) -> Placed:
        """Place it where `option`, one of `options`, says."""
        ask = waiting.ask
        self._next += 1
        booking = Booking(
            self._next, waiting.owner, ask.pool, option.name, option.prefill, ask.output, ask.stream,
            max(1, ask.tokens), option.cached, waiting.keys, ask.exact, slow=option.slow,
        )  # fmt: skip
        self._bookings[booking.id] = booking
        booking.placed_at, booking.since = now, waiting.since
        booking.predicted_s, booking.prefill_s = option.predicted_s, option.prefill_s
        pool.book(booking, options, option, now, ask.session)
        self.lines[ask.pool].booked(waiting, booking, option, now)
        served = ask.tier if self.tiers[ask.tier] is waiting.tier else waiting.tier.name
        return Placed(option.name, booking.id, option.cached, option.predicted_s, booking.alone, served)

    def explain(self, ask: Ask, now: float) -> list[Candidate]:
        """What `place` would weigh; books nothing."""
        pool = self.pools.get(ask.pool)
        if pool is None:
            return []
        options = pool.weigh(ask, keys_of(ask), now, everyone=True)
        states = pool.states()
        taking = {name for name, member in pool.members.items() if pool.takes(member) and name not in ask.exclude}
        eligible = [option for option in options if option.name in taking]
        chosen = choose(eligible).name if eligible else None
        return [
            _candidate(option, states[option.name], ask, chosen, now, takes=option.name in taking) for option in options
        ]

    def begun(self, booking: int, now: float) -> None:
        """The first token came."""
        if (known := self._bookings.get(booking)) is not None:
            self.lines[known.pool].begun(known, now)
            self.pools[known.pool].begun(known, now)

    def ended(self, booking: int, outcome: Outcome, now: float) -> None:
        """The attempt is over. Telling it twice changes nothing."""
        if (known := self._bookings.pop(booking, None)) is not None:
            self.lines[known.pool].ended(known, outcome, now)
            self.pools[known.pool].ended(known, outcome, now)

    def release_owner(self, owner: int, now: float) -> None:
        """End everything that `owner` has booked: its process is gone, and its connections to engines with it."""
        for booking in [booking.id for booking in self._bookings.values() if booking.owner == owner]:
            self.ended(booking, _UNSEEN, now)
        for number in [waiting.number for waiting in self._waiting.values() if waiting.owner == owner]:
            self.withdraw(number, now)

    # -- endpoints

    def add(self, pool: str, endpoint: str) -> None:
        """One more endpoint, of which nothing is known. One that is there already stays as it is."""
        if endpoint not in self.pools[pool].members:
            self.pools[pool].add(endpoint)

    def remove(self, pool: str, endpoint: str) -> None:
        """It is picked no more. What is booked on it has ended: whatever is told of those bookings later is nothing."""
        for booking in [one.id for one in self._bookings.values() if (one.pool, one.endpoint) == (pool, endpoint)]:
            known = self._bookings.pop(booking)
            self.pools[pool].contexts.abandoned(known.context)
            self.lines[pool].lost(known)
        self.pools[pool].remove(endpoint)

    def group(self, pool: str, endpoint: str, group: Group) -> None:
        """Which endpoints it is like. Only one that is unified is picked."""
        self.pools[pool].shut(endpoint, group=group)

    def drain(self, pool: str, endpoint: str, why: str) -> None:
        """Send it nothing new, while what runs there goes on; with an empty `why`, send it requests again."""
        self.pools[pool].shut(endpoint, draining=why)

    def failed(self, pool: str, endpoint: str, reason: str, now: float, *, at_once: bool = False) -> None:
        """An exchange failed for the endpoint's fault."""
        if (known := self.pools.get(pool)) is not None:
            known.failed(endpoint, reason, now, at_once=at_once)

    def answered(self, pool: str, endpoint: str, now: float) -> None:
        if (known := self.pools.get(pool)) is not None and (member := known.members.get(endpoint)) is not None:
            known.answered(member, now)

    def probed(self, pool: str, endpoint: str, finding: Finding, now: float) -> None:
        if isinstance(finding, Failed):
            self.pools[pool].failed(endpoint, finding.reason, now, at_once=finding.at_once, probe=True)
        else:
            self.pools[pool].probed(endpoint, finding, now)

    def apply(self, pool: str, endpoint: str, events: Sequence[Event]) -> None:
        """KV events, in the order in which the endpoint sent them."""
        self.pools[pool].apply(endpoint, events)

    def clear(self, pool: str, endpoint: str) -> None:
        """What the endpoint holds is not known any more: it has restarted, or events were lost."""
        self.pools[pool].clear(endpoint)

    def follows(self, pool: str, endpoint: str, following: Following) -> None:
        self.pools[pool].follows(endpoint, following)

    def reading(self, pool: str) -> Reading:
        return self.pools[pool].reading() if pool in self.pools else Reading()

    def states(self, pool: str) -> dict[str, EndpointState]:
        return self.pools[pool].states() if pool in self.pools else {}

    def learnt(self) -> list[Learnt]:
        """Rates, to be remembered for the next start."""
        return [one for pool in self.pools.values() for one in pool.learnt()]

    def relearn(self, known: Iterable[Learnt]) -> None:
        """What an earlier process learnt of the same endpoints."""
        for one in known:
            if (pool := self.pools.get(one.pool)) is not None:
                pool.relearn(one)

    def tick(self, now: float) -> None:
        """Let go of guesses that have not come true, of peers that are silent, and of requests that have waited as long
        as they may."""
        self.peers.expire(now)
        for pool in self.pools.values():
            pool.index.expire(now)
            pool.index.sweep(SWEEP)
            pool.contexts.expire(now)
            pool.blend()
        self.late(now)
        for line in self.lines.values():
            line.tick(now)
            self._evict(line, now)

    def late(self, now: float, most: int | None = None) -> bool:
        """Refuse requests that have waited as long as they may, so many of a pool. Whether more of them are left."""
        left = False
        for line in self.lines.values():
            if overdue := line.line.overdue(now):
                seconds = line.wait_s()
                for waiting in overdue[:most]:
                    self._settle(waiting, refused(waiting, Why.LATE, seconds), now)
                left = left or len(overdue) > len(overdue[:most])
        return left


def _candidate(
    option: Option, state: EndpointState, ask: Ask, chosen: str | None, now: float, *, takes: bool
) -> Candidate:
    tried = option.name in ask.exclude
    back = f"; back in {math.ceil(state.back_at - now)} s at the earliest" if state.back_at > now else ""
    return Candidate(
        endpoint=option.name,
        available=takes,
        reason="was tried already" if tried else "" if takes else state.shut or f"{state.reason}{back}",
        events=state.events,
        in_flight=option.in_flight,
        cached=option.cached,
        cached_slow=option.slow,
        queued_s=option.queued_s,
        prefill_s=option.prefill_s,
        predicted_s=option.predicted_s,
        chosen=option.name == chosen,
        interference_s=option.interference_s,
        displaced_s=option.displaced_s,
        delayed_s=option.delayed_s,
        group=state.group,
    )
