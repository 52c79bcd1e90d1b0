"""How much of lower tiers an endpoint gets (pure): one pool's ceilings, which breathe with what higher tiers miss.

Below the highest tier an endpoint is given work only up to a ceiling of requests that are there: it goes down where a
higher tier misses its objective for what lower ones cost it, and up again where none does. What would be missed without
them as well presses nobody: so a ceiling that is low enough to help nobody more goes down no further.
"""

from collections.abc import Iterable
from math import inf

from msgspec import Struct

from forebay.router.tiers import Tier, Tiers
from forebay.router.waiting import START_S

LEAST_CEILING = 0.4  # of the highest's, for the lowest tier
DOWN, UP = 0.95, 1.01  # a tick
FADING = 0.95  # a tick, of what was seen
MAY_MISS = 0.02  # of a tier's requests
LEAST = 1.0  # requests, faded: one by itself presses nobody
NEAR, NEAR_TOKEN = 0.8, 0.9  # of an objective for the first token, and for each after it, that is nearly missed
MUCH = 0.25  # of an objective: what lower tiers cost a request before they are pressed for it
CURABLE = 0.5  # of what is missed, that less of lower tiers must be able to prevent


class _Lately(Struct):
    """Requests of a tier; of those, the ones near a miss, and the ones that would not have been without lower tiers."""

    seen: float = 0.0
    near: float = 0.0
    curable: float = 0.0

    @property
    def presses(self) -> bool:
        return self.curable > max(LEAST + MAY_MISS * self.seen, CURABLE * self.near)

    def fade(self) -> None:
        self.seen *= FADING
        self.near *= FADING
        self.curable *= FADING


class Ceilings:
    def __init__(self, tiers: Tiers) -> None:
        self.tiers = list(tiers)
        self.rooms = {tier.name: inf for tier in self.tiers}  # requests at an endpoint that a tier may find there
        ranks = sorted({tier.rank for tier in self.tiers})
        self._last = len(ranks) - 1
        self._at = {tier.name: ranks.index(tier.rank) for tier in self.tiers}
        self._seen = {tier.name: _Lately() for tier in self.tiers}

    def __repr__(self) -> str:
        return f"<Ceilings {self.rooms}>"

    def part(self, tier: Tier) -> float:
        """Of what the highest tier may find at an endpoint."""
        return 1 - self._at.get(tier.name, 0) * (1 - LEAST_CEILING) / max(1, self._last)

    def opens(self, tier: Tier, ahead_s: float, in_flight: int, *, short: bool) -> bool:
        """Whether an endpoint gets more of a tier's work. `short`: the tier gets less than its least share."""
        if not self._at.get(tier.name, 0):
            return ahead_s <= START_S
        part = self.part(tier)
        return ahead_s <= START_S * part and (short or in_flight < self.rooms[tier.name] * part)

    def first(self, tier: Tier, took_s: float, lower_s: float) -> None:
        """How long a first token took, and for how much of that lower tiers are to blame."""
        self._saw(tier, took_s, tier.ttft_s, NEAR, lower_s)

    def token(self, tier: Tier, took_s: float, lower_s: float) -> None:
        """The same of the tokens after it, each."""
        self._saw(tier, took_s, tier.tpot_s, NEAR_TOKEN, lower_s)

    def _saw(self, tier: Tier, took_s: float, objective_s: float | None, near: float, lower_s: float) -> None:
        if objective_s is None or tier.rank == self.tiers[-1].rank:
            return
        lately, near_s = self._seen[tier.name], near * objective_s
        lately.seen += 1
        lately.near += took_s > near_s
        lately.curable += took_s > near_s and took_s - lower_s <= objective_s and lower_s > MUCH * objective_s

    def breathe(self, in_flight: Iterable[int]) -> None:
        """To be called twice a second or so. `in_flight`: at each endpoint. Who misses its objective has those below it
        take less, and not itself."""
        most, pressing = max((*in_flight, 1)), inf  # the highest rank that misses
        for tier in self.tiers:
            room, lately = self.rooms[tier.name], self._seen[tier.name]
            if tier.rank > pressing:
                room = max(1.0, min(room, most / self.part(tier)) * DOWN)
            elif room < inf:
                room = room * UP if room * UP <= 2 * most / self.part(tier) else inf
            self.rooms[tier.name] = room
            if lately.presses:
                pressing = min(pressing, tier.rank)
            lately.fade()
