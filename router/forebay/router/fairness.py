"""Who has been served how much (pure), in tokens: one of uncached input counts 1, one of output 2.

Between tenants of a tier a virtual token counter each: whoever has the least goes first. A tenant that comes back, or
comes first, is lifted to the least of those who wait, so that nobody saves up what he did not use. Between a tenant's
sessions what each has under way counts: one that runs fifty sub-agents stands behind those that run none.
"""

from collections.abc import Iterable, Mapping
from math import exp

from forebay.router.tiers import Tiers

OUTPUT_WEIGHT = 2.0  # of a token of output, where one of uncached input is 1
MOST_COUNTERS = 8_192
RECENT_S = 30.0  # over which a tier's part of what is served is reckoned
STARVED_S = 1.0  # a tier whose first has waited for less is not starved

Key = tuple[str, str]


def cost(uncached: float, output: float) -> float:
    return max(0.0, uncached) + OUTPUT_WEIGHT * max(0.0, output)


class Counters:
    """By tier and tenant, and by session what is under way. Bounded: of tenants nobody waits for, those that were
    served least are forgotten first, which changes nothing for those who would be lifted anyhow."""

    def __init__(self, most: int = MOST_COUNTERS) -> None:
        self._most = most
        self._served: dict[Key, float] = {}
        self._waiting: dict[Key, int] = {}
        self._in_tier: dict[str, int] = {}
        self._floor: dict[str, float] = {}
        self._under_way: dict[str, tuple[float, int]] = {}  # by session: tokens, requests

    def __repr__(self) -> str:
        return f"<Counters of {len(self)} tenants, {len(self._under_way)} sessions>"

    def __len__(self) -> int:
        return len(self._served)

    def served(self, tier: str, tenant: str) -> float:
        """As of a tenant that waits, or would wait now."""
        served = self._served.get((tier, tenant), 0.0)
        return served if (tier, tenant) in self._waiting else max(served, self._least(tier))

    def _least(self, tier: str) -> float:
        """Of those who waited last, or wait now: what they were charged may have been set right since."""
        floor = self._floor.get(tier)
        waiting = [self._served[key] for key in self._waiting if key[0] == tier] if self._in_tier.get(tier) else []
        return min(waiting if floor is None else (floor, *waiting), default=0.0)

    def under_way(self, session: str) -> float:
        """Tokens of its requests that are placed and have not ended."""
        return self._under_way.get(session, (0.0, 0))[0]

    def share(self, sessions: Mapping[str, int]) -> bool:
        """Whether any of them has something under way."""
        return not self._under_way.keys().isdisjoint(sessions)

    def joined(self, tier: str, tenant: str) -> None:
        """It has one more that waits."""
        key = tier, tenant
        self._served[key] = self.served(tier, tenant)
        self._waiting[key] = self._waiting.get(key, 0) + 1
        self._in_tier[tier] = self._in_tier.get(tier, 0) + 1
        self._trim()

    def left(self, tier: str, tenant: str) -> None:
        key = tier, tenant
        self._in_tier[tier] -= 1
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]

    def lift(self, tier: str, least: float) -> None:
        """`least`: of those who wait in the tier now. It may be less than before: what was charged is set right."""
        self._floor[tier] = least

    def placed(self, tier: str, tenant: str, session: str, tokens: float) -> None:
        """Charge a tenant for what is expected of a request."""
        served = self.served(tier, tenant)
        if not self._in_tier.get(tier):
            self.lift(tier, max(self._floor.get(tier, 0.0), served))
        self._served[tier, tenant] = served + tokens
        if session:
            under_way, requests = self._under_way.get(session, (0.0, 0))
            self._under_way[session] = under_way + tokens, requests + 1
        self._trim()

    def ended(self, tier: str, tenant: str, session: str, charged: float, actual: float) -> None:
        """Set right what was charged. Of one that is forgotten nothing changes."""
        if (tier, tenant) in self._served:
            self._served[tier, tenant] = max(0.0, self._served[tier, tenant] + actual - charged)
        if session in self._under_way:
            under_way, requests = self._under_way[session]
            self._under_way[session] = under_way - charged, requests - 1
            if requests <= 1:
                del self._under_way[session]

    def _trim(self) -> None:
        if len(self._served) <= self._most:
            return
        idle = sorted((key for key in self._served if key not in self._waiting), key=self._served.__getitem__)
        for key in idle[: len(self._served) - self._most * 3 // 4]:
            del self._served[key]


class Shares:
    """What each tier was served lately, as a part of all, against the least that it is to get."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = list(tiers)
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

    def bands(self, waiting: Iterable[str], first_since: Mapping[str, float], now: float) -> list[str]:
        """The tiers with waiting work, as their turn is: by rank, but one that starves goes before those of higher rank
        that take more than the lower ones' shares leave. So what a tier is short of is taken from the lowest that
        can give it, and from the highest only where that alone takes too much."""
        there = set(waiting)
        tiers = [tier for tier in self._tiers if tier.name in there]
        starved = [t.name for t in tiers if now - first_since[t.name] >= STARVED_S and self.short(t.name)]
        if not starved or len(tiers) == 1:
            return [tier.name for tier in tiers]
        order: list[str] = []
        taken, below = 0.0, sum(tier.share for tier in self._tiers)
        for tier in self._tiers:
            taken += self.part(tier.name)
            below -= tier.share
            if tier.name in there and tier.name not in order:
                if taken > 1 - below:
                    lower = tiers[tiers.index(tier) + 1 :]
                    order += [one.name for one in lower if one.name in starved and one.name not in order]
                order.append(tier.name)
        return order
