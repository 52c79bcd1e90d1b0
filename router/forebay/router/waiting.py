"""Requests that wait for an engine (pure): in the router, where their order and their place can still change.

An engine gets work only when it will start it soon. Tiers go by rank, but for those that would starve; inside one the
tenant goes first that was served least, inside a tenant the session that has least under way, and there the lowest key:
the seconds of prefill that a request is predicted to take, less what it has waited so far. So short ones pass long
ones, and nobody waits for ever.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from forebay.router.fairness import Counters, Shares
from forebay.router.loads import NO_KEYS
from forebay.router.prefix.index import Match
from forebay.router.prefix.keys import Keys
from forebay.router.routing import Ask
from forebay.router.tiers import Tier, Tiers

MOST = 4_096  # requests that wait in one pool; each tier has its part of them
MOST_BYTES = 128 << 20  # of their keys
AGEING = 0.3  # seconds of prefill that a second of waiting is worth
EVEN_S = 30.0  # after which the longest prompt counts as the shortest: it must begin while there is patience left
START_S = 0.25  # an engine that is predicted to begin within this gets more work

_NEVER = float("inf")


class Waiting(Struct, eq=False):
    """`held`: what each endpoint has of the prompt, as of `held_at`. `home` and `prefill_s`: where it would go, and
    what it would take there. `until`: its deadline. `tier`: as it is served. `cost`: tokens that its tenant is charged.
    `cold_until`: how long it waits in a pool without endpoints, if it does."""

    number: int
    owner: int
    ask: Ask
    since: float
    until: float
    keys: Keys = NO_KEYS
    held: dict[str, Match] = {}
    held_at: float = float("-inf")
    weighed_at: float = float("-inf")
    home: str = ""
    prefill_s: float = 0.0
    tier: Tier = Tier()
    cost: float = 0.0
    tag: float = 0.0  # of the last order
    cold_until: float = _NEVER
    came_s: float = 0.0  # of prefill, as it was let in
    came_at: float = 0.0

    @property
    def promised(self) -> bool:
        """It was admitted once, and had an engine."""
        return self.ask.promised


Order = Callable[[Waiting, float], float]


def shortest_first(waiting: Waiting, now: float) -> float:
    waited = max(0.0, now - waiting.since)
    return waiting.prefill_s * max(0.0, 1 - waited / EVEN_S) - AGEING * waited


class Line:
    """Of one pool, bounded, each tier for itself. `seconds`: of prefill that waits, by tier."""

    def __init__(
        self,
        order: Order = shortest_first,
        *,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
        tiers: Tiers | None = None,
        counters: Counters | None = None,
        shares: Shares | None = None,
    ) -> None:
        tiers = tiers or Tiers()
        self.counters = Counters() if counters is None else counters
        self.shares = Shares(tiers) if shares is None else shares
        self.seconds: dict[str, float] = {}
        self._order = order
        self._most = max(1, most // len(tiers))
        self._most_bytes = max(1, most_bytes // len(tiers))
        self._bytes: dict[str, int] = {}
        self._by_number: dict[int, Waiting] = {}
        self._by_tier: dict[str, dict[int, Waiting]] = {}
        self._tenants: dict[str, dict[str, int]] = {}  # that wait, by tier
        self._sessions: dict[str, int] = {}  # that wait, with how many
        self._swarms = 0  # of those, with more than one

    def __repr__(self) -> str:
        return f"<Line of {len(self._by_number)}>"

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_number.values())

    @property
    def tiers(self) -> dict[str, int]:
        """Requests that wait, by tier."""
        return {name: len(there) for name, there in self._by_tier.items()}

    def add(self, waiting: Waiting) -> bool:
        """False: there is no room. For those that were admitted once there is as much again."""
        name, most = waiting.tier.name, 2 if waiting.promised else 1
        there, size = self._by_tier.get(name, {}), self._bytes.get(name, 0) + len(waiting.ask.keys)
        if len(there) >= most * self._most or size > most * self._most_bytes:
            return False
        self._by_tier.setdefault(name, there)[waiting.number] = waiting
        self._by_number[waiting.number] = waiting
        self._bytes[name] = size
        self.seconds[name] = self.seconds.get(name, 0.0) + waiting.prefill_s
        tenants, tenant, session = self._tenants.setdefault(name, {}), waiting.ask.tenant, waiting.ask.session
        tenants[tenant] = tenants.get(tenant, 0) + 1
        if session:
            number = self._sessions[session] = self._sessions.get(session, 0) + 1
            self._swarms += number == 2
        self.counters.joined(name, tenant)
        return True

    def remove(self, number: int) -> Waiting | None:
        waiting = self._by_number.pop(number, None)
        if waiting is not None:
            name = waiting.tier.name
            there = self._by_tier[name]
            del there[number]
            self._bytes[name] -= len(waiting.ask.keys)
            self.seconds[name] -= waiting.prefill_s
            self._leave(name, waiting.ask.tenant, waiting.ask.session)
            if not there:
                del self._by_tier[name], self._bytes[name], self.seconds[name], self._tenants[name]
        return waiting

    def _leave(self, tier: str, tenant: str, session: str) -> None:
        self.counters.left(tier, tenant)
        tenants = self._tenants[tier]
        tenants[tenant] -= 1
        if not tenants[tenant]:
            del tenants[tenant]
        if session:
            self._sessions[session] -= 1
            self._swarms -= self._sessions[session] == 1
            if not self._sessions[session]:
                del self._sessions[session]

    def weighed(self, waiting: Waiting, home: str, prefill_s: float, cost: float) -> None:
        """Where it would go now, and what it would take there."""
        if waiting.number in self._by_number:
            self.seconds[waiting.tier.name] += prefill_s - waiting.prefill_s
        waiting.home, waiting.prefill_s, waiting.cost = home, prefill_s, cost

    def bands(self, now: float, also: str = "") -> list[str]:
        """The tiers that wait, and `also`, as their turn is."""
        first = {name: next(iter(there.values())).since for name, there in self._by_tier.items()}
        if also:
            first.setdefault(also, now)
        if len(first) <= 1:
            return list(first)
        return self.shares.bands(first, first, now)

    def ordered(self, now: float) -> list[Waiting]:
        order: list[Waiting] = []
        for name in self.bands(now):
            order += self._fair(name, now)
        return order

    def ahead(self, waiting: Waiting, now: float) -> tuple[int, float, float]:
        """Before whom a newcomer would not go: how many, their seconds of prefill in tiers before its own, and in its
        own."""
        name, number, higher_s, own_s = waiting.tier.name, 0, 0.0, 0.0
        for band in self.bands(now, name):
            if band == name:
                break
            number += len(self._by_tier[band])
            higher_s += self.seconds[band]
        for one in self._fair(name, now, waiting):
            if one is waiting:
                break
            number += 1
            own_s += one.prefill_s
        return number, higher_s, own_s

    def _fair(self, tier: str, now: float, newcomer: Waiting | None = None) -> list[Waiting]:
        order, counters = self._order, self.counters
        waiting = [*self._by_tier.get(tier, {}).values(), *((newcomer,) if newcomer is not None else ())]
        ranked = sorted(waiting, key=lambda one: order(one, now))
        if newcomer is not None or self._swarms or counters.share(self._sessions):
            self._by_session(ranked)
        served = {tenant: counters.served(tier, tenant) for tenant in self._tenants.get(tier, ())}
        if served:
            counters.lift(tier, min(served.values()))
        if newcomer is not None:
            served.setdefault(newcomer.ask.tenant, counters.served(tier, newcomer.ask.tenant))
        if len(served) > 1:
            for one in ranked:
                tenant = one.ask.tenant
                one.tag = served[tenant]
                served[tenant] = one.tag + one.cost
            ranked.sort(key=_tag)
        return ranked

    def _by_session(self, ranked: list[Waiting]) -> None:
        """One that names no session is nobody's sub-agent: it stands for itself."""
        before: dict[str, float] = {}
        conflict = False
        for one in ranked:
            session = one.ask.session
            if session:
                tag = before.get(session)
                if tag is None:
                    tag = self.counters.under_way(session)
                one.tag = tag
                before[session] = tag + one.cost
                conflict = conflict or tag > 0
            else:
                one.tag = 0.0
        if conflict:
            ranked.sort(key=_tag)

    def overdue(self, now: float) -> list[Waiting]:
        return [one for one in self._by_number.values() if one.until <= now]


def _tag(waiting: Waiting) -> float:
    return waiting.tag
