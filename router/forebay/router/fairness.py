"""Who has been served how much (pure), in tokens: one of uncached input counts 1, one of output 2.

Between tenants of a rank a virtual token counter each, divided by the tenant's weight: whoever has the least goes
first. A tenant that comes back, or comes first, is lifted to the least of those who wait, so that nobody saves up what
he did not use. Of sessions it is known how many of their requests are under way.
"""

from collections.abc import Mapping
from itertools import groupby
from math import exp

from forebay.router.tiers import Tiers

OUTPUT_WEIGHT = 2.0  # of a token of output, where one of uncached input is 1
MOST_COUNTERS = 8_192
RECENT_S = 30.0  # over which a tier's part of what is served is reckoned
STARVED_S = 1.0  # a tier whose first has waited for less is not starved

Key = tuple[int, str]  # rank and tenant


def cost(uncached: float, output: float) -> float:
    return max(0.0, uncached) + OUTPUT_WEIGHT * max(0.0, output)


class Counters:
    """By rank and tenant, and by session what is under way. Bounded: of tenants nobody waits for, those that were
    served least are forgotten first, which changes nothing for those who would be lifted anyhow."""

    def __init__(self, most: int = MOST_COUNTERS) -> None:
        self._most = most
        self._served: dict[Key, float] = {}
        self._lifted: dict[Key, float] = {}  # to where, last: what is refunded of before is no credit
        self._waiting: dict[Key, int] = {}
        self._in_rank: dict[int, int] = {}
        self._floor: dict[int, float] = {}
        self._under_way: dict[str, int] = {}  # requests, by session

    def __repr__(self) -> str:
        return f"<Counters of {len(self)} tenants, {len(self._under_way)} sessions>"

    def __len__(self) -> int:
        return len(self._served)

    def served(self, rank: int, tenant: str) -> float:
        """As of a tenant that waits, or would wait now."""
        served = self._served.get((rank, tenant), 0.0)
        return served if (rank, tenant) in self._waiting else max(served, self._least(rank))

    def _least(self, rank: int) -> float:
        """Of those who waited last, or wait now: what they were charged may have been set right since."""
        floor = self._floor.get(rank)
        waiting = [self._served[key] for key in self._waiting if key[0] == rank] if self._in_rank.get(rank) else []
        return min(waiting if floor is None else (floor, *waiting), default=0.0)

    def under_way(self, session: str) -> int:
        """Its requests that are placed and have not ended."""
        return self._under_way.get(session, 0)

    def joined(self, rank: int, tenant: str) -> None:
        """It has one more that waits."""
        key = rank, tenant
        self._lift(key)
        self._waiting[key] = self._waiting.get(key, 0) + 1
        self._in_rank[rank] = self._in_rank.get(rank, 0) + 1
        self._trim()

    def left(self, rank: int, tenant: str) -> None:
        key = rank, tenant
        self._in_rank[rank] -= 1
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]

    def lift(self, rank: int, least: float) -> None:
        """`least`: of those who wait in the rank now. It may be less than before: what was charged is set right."""
        self._floor[rank] = least

    def placed(self, rank: int, tenant: str, session: str, tokens: float) -> None:
        """Charge a tenant for what is expected of a request."""
        key = rank, tenant
        self._lift(key)
        if not self._in_rank.get(rank):
            self.lift(rank, max(self._floor.get(rank, 0.0), self._served[key]))
        self._served[key] += tokens
        if session:
            self._under_way[session] = self._under_way.get(session, 0) + 1
        self._trim()

    def ended(self, rank: int, tenant: str, session: str, more: float = 0.0) -> None:
        """`more`: tokens than were charged. Of one that is forgotten nothing changes."""
        key = rank, tenant
        if key in self._served:
            self._served[key] = max(self._lifted.get(key, 0.0), self._served[key] + more)
        if session in self._under_way:
            self._under_way[session] -= 1
            if not self._under_way[session]:
                del self._under_way[session]

    def _lift(self, key: Key) -> None:
        served = self.served(*key)
        if served > self._served.get(key, 0.0):
            self._lifted[key] = served
        self._served[key] = served

    def _trim(self) -> None:
        if len(self._served) <= self._most:
            return
        idle = sorted((key for key in self._served if key not in self._waiting), key=self._served.__getitem__)
        for key in idle[: len(self._served) - self._most * 3 // 4]:
            del self._served[key]
            self._lifted.pop(key, None)


class Shares:
    """What each tier was served lately, as a part of all, against the least that it is to get."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = list(tiers)
        self._by_rank = [(rank, list(peers)) for rank, peers in groupby(tiers, key=lambda tier: tier.rank)]
        self._served = dict.fromkeys((tier.name for tier in tiers), 0.0)
        self._at = float("-inf")

    def __repr__(self) -> str:
        return f"<Shares {self._served}>"

    def served(self, tier: str, tokens: float, now: float) -> None:
        decay = exp(-max(0.0, min(now - self._at, 1e6)) / RECENT_S)
        for name in self._served:
            self._served[name] *= decay
        self._at = now
        self._served[tier] = max(0.0, self._served.get(tier, 0.0) + tokens)

    def part(self, tier: str) -> float:
        total = sum(self._served.values())
        return self._served.get(tier, 0.0) / total if total > 0 else 0.0

    def short(self, tier: str) -> bool:
        """Whether it is served less than it is to get at least, beside others that were served."""
        share = next((one.share for one in self._tiers if one.name == tier), 0.0)
        return share > 0 and any(self._served.values()) and self.part(tier) < share

    def lacking_s(self, tier: str) -> float:
        """Seconds of all that is served, by which it was served less than its share lately."""
        share = next((one.share for one in self._tiers if one.name == tier), 0.0)
        return max(0.0, share - self.part(tier)) * RECENT_S

    def bands(self, first_since: Mapping[str, float], now: float) -> list[list[str]]:
        """The tiers with waiting work, as their turn is: those of one rank together, by rank. But one that starves goes
        before its peers, and before those of higher rank that take more than the lower ones' shares leave. So what a
        tier is short of is taken from the lowest that can give it, and from the highest only where that alone takes
        too much."""
        starved = {name for name, since in first_since.items() if now - since >= STARVED_S and self.short(name)}
        order: list[list[str]] = []
        done: set[str] = set()
        taken, below = 0.0, sum(tier.share for tier in self._tiers)
        for rank, peers in self._by_rank:
            taken += sum(self.part(tier.name) for tier in peers)
            below -= sum(tier.share for tier in peers)
            there = [tier.name for tier in peers if tier.name in first_since and tier.name not in done]
            if there and starved:
                if taken > 1 - below:
                    lower = [t.name for t in self._tiers if t.rank > rank and t.name in starved and t.name not in done]
                    order += [[name] for name in lower]
                    done.update(lower)
                first = [name for name in there if name in starved]
                order.append(first)
                there = [name for name in there if name not in starved]
            order.append(there)
        return [band for band in order if band]
