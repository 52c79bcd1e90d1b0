"""How much of lower tiers an endpoint gets (pure): one pool's ceilings, which breathe with what higher tiers miss.

Below the highest tier an endpoint is given work only up to a ceiling of requests that are there: it goes down where a
higher tier misses its objective because endpoints are too full, and up again where none does.
"""

from collections.abc import Iterable
from math import inf

from forebay.router.tiers import Tier, Tiers
from forebay.router.waiting import START_S

LEAST_CEILING = 0.4  # of the highest's, for the lowest tier
DOWN, UP = 0.95, 1.01  # a tick
FADING = 0.9  # a tick, of what was seen
MAY_MISS = 0.02  # of a tier's requests
SOME_SEEN = 0.5  # of a request, faded: what is longer ago presses nobody
NEAR = 0.8  # of an objective that is taken to be missed soon
SLOW = 0.25  # of an objective: an endpoint that takes so much longer than was predicted is too full


class Ceilings:
    def __init__(self, tiers: Tiers) -> None:
        self.tiers = list(tiers)
        self.rooms = {tier.name: inf for tier in self.tiers}  # requests at an endpoint that a tier may find there
        ranks = sorted({tier.rank for tier in self.tiers})
        self._last = len(ranks) - 1
        self._at = {tier.name: ranks.index(tier.rank) for tier in self.tiers}
        self._seen = {tier.name: [0.0, 0.0] for tier in self.tiers}  # lately, and of those, near a miss or missed

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

    def saw(self, tier: Tier, took_s: float | None, objective_s: float | None, over_s: float = inf) -> None:
        """How long something took that an objective is set for, and how much longer than was predicted when an endpoint
        got it. What waited in the line for others of its own, or is long itself, is not helped by less of lower
        tiers."""
        if took_s is None or objective_s is None or tier.rank == self.tiers[-1].rank:
            return
        seen = self._seen[tier.name]
        seen[0] += 1
        seen[1] += took_s > NEAR * objective_s and over_s > SLOW * objective_s

    def breathe(self, in_flight: Iterable[int]) -> None:
        """To be called twice a second or so. `in_flight`: at each endpoint. Who misses its objective has those below it
        take less, and not itself."""
        most, pressing = max((*in_flight, 1)), inf  # the highest rank that misses
        for tier in self.tiers:
            room, seen = self.rooms[tier.name], self._seen[tier.name]
            if tier.rank > pressing:
                room = max(1.0, min(room, most / self.part(tier)) * DOWN)
            elif room < inf:
                room = room * UP if room * UP <= 2 * most / self.part(tier) else inf
            self.rooms[tier.name] = room
            if seen[0] >= SOME_SEEN and seen[1] > MAY_MISS * seen[0]:
                pressing = min(pressing, tier.rank)
            seen[0] *= FADING
            seen[1] *= FADING
