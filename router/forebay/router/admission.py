"""Who is let in, as predicted (pure): one pool's pace, what comes of each tier, and how much lower tiers may take.

A newcomer waits for the seconds of prefill that stand before it in the order, at the pace at which the line was worked
off lately, less what comes of higher tiers. Below the highest tier an endpoint is given work only up to a ceiling of
requests that are there; the ceiling breathes: down where a higher tier misses its objective, up again where none does.
"""

from collections.abc import Iterable
from math import exp, inf

from msgspec import Struct

from forebay.router.placement import Option
from forebay.router.rates import Rates
from forebay.router.routing import Candidate, Refused, Why
from forebay.router.tiers import Shed, Tier, Tiers
from forebay.router.waiting import START_S, Waiting

PACE_S = 10.0  # over which the pace and what comes are averaged
PRIOR_S = 1.0  # of a pace of one second of prefill a second at each endpoint, that is taken to be seen
FASTEST = 1.25  # seconds of prefill a second at an endpoint: predictions may be long
LEAST_PACE = 0.02  # of the pace, that is left for the lowest
SURE = 0.75  # of what is allowed: predictions err, and a line that is full to the brim serves everybody too late
OBSERVED = 3  # prefills to be learnt before anybody is refused by a prediction
LEAST_CEILING = 0.4  # of the highest's, for the lowest tier
DOWN, UP = 0.95, 1.01  # a tick
FADING = 0.9  # a tick, of what was seen
MAY_MISS = 0.02  # of a tier's requests
SOME_SEEN = 0.5  # of a request, faded: what is longer ago presses nobody
NEAR = 0.8  # of an objective that is taken to be missed soon
LONGEST_RETRY_S = 600.0


class Pace(Struct):
    """Seconds of prefill that a pool is given a second while any wait; about one for each endpoint, and fewer where
    answers that are generated slow it down or a ceiling keeps it back."""

    worked: float = 0.0
    time: float = 0.0
    at: float = -inf

    def passed(self, now: float, *, waits: bool) -> None:
        passed = min(max(0.0, now - self.at), 60.0) if self.at > -inf else 0.0
        self.at = now
        decay = exp(-passed / PACE_S)
        self.worked *= decay
        self.time *= decay
        if waits:
            self.time += min(passed, 1.0)

    def rate(self, able: int) -> float:
        able = max(1, able)
        return min((self.worked + PRIOR_S * able) / (self.time + PRIOR_S), FASTEST * able)


class Coming(Struct):
    """Seconds of prefill that are let in a second."""

    sum: float = 0.0
    at: float = -inf

    def rate(self, now: float) -> float:
        return self.sum * exp(-max(0.0, min(now - self.at, 1e4)) / PACE_S) / PACE_S

    def came(self, seconds: float, now: float) -> None:
        self.sum, self.at = max(0.0, self.rate(now) * PACE_S + seconds), now


class Ahead(Struct, frozen=True):
    """What stands before a newcomer: seconds of prefill, of tiers before its own and of its own."""

    higher_s: float = 0.0
    own_s: float = 0.0


class Gate:
    def __init__(self, tiers: Tiers) -> None:
        self.tiers = list(tiers)
        self.pace = Pace()
        self.rooms = {tier.name: inf for tier in self.tiers}  # requests at an endpoint that a tier may find there
        ranks = sorted({tier.rank for tier in self.tiers})
        self._last = len(ranks) - 1
        self._at = {tier.name: ranks.index(tier.rank) for tier in self.tiers}
        self._coming = {tier.name: Coming() for tier in self.tiers}
        self._seen = {tier.name: [0.0, 0.0] for tier in self.tiers}  # lately, and of those, near a miss or missed

    def __repr__(self) -> str:
        return f"<Gate {self.rooms}>"

    # -- a newcomer

    def wait_s(self, tier: Tier, ahead: Ahead, able: int, now: float) -> float:
        before = ahead.higher_s + ahead.own_s
        if before <= 0:
            return 0.0
        pace = self.pace.rate(able)
        higher = sum(self._coming[one.name].rate(now) for one in self.tiers if one.rank < tier.rank)
        return before / max(pace - higher, tier.share * pace, LEAST_PACE * pace)

    def refusal(
        self, waiting: Waiting, best: Option | Candidate, ahead: Ahead, able: int, now: float
    ) -> Refused | None:
        """Why a request is not let in to its tier, if it is not: it would wait longer than it may, or, where its tier
        is not held, come later than its objective."""
        tier = waiting.tier
        wait_s = self.wait_s(tier, ahead, able, now)
        allowed = SURE * max(0.0, waiting.until - now)
        if tier.shed is not Shed.HOLD and tier.ttft_s is not None:
            own_s = best.prefill_s
            allowed = min(allowed, SURE * max(tier.ttft_s - own_s, 0.25 * own_s) - best.queued_s)
        if wait_s <= max(0.0, allowed):
            return None
        alone = self.wait_s(tier, Ahead(0.0, ahead.own_s), able, now)
        why = Why.DEADLINE if alone > max(0.0, allowed) else Why.CAPACITY
        return Refused(why, min(max(1.0, wait_s - max(0.0, allowed)), LONGEST_RETRY_S), tier.name)

    def came(self, tier: Tier, prefill_s: float, now: float) -> None:
        if (coming := self._coming.get(tier.name)) is not None:
            coming.came(prefill_s, now)

    def uncame(self, tier: Tier, prefill_s: float, at: float, now: float) -> None:
        """What came at `at` went away again."""
        if (coming := self._coming.get(tier.name)) is not None and prefill_s > 0:
            coming.came(-prefill_s * exp(-max(0.0, min(now - at, 1e4)) / PACE_S), now)

    # -- ceilings

    def part(self, tier: Tier) -> float:
        """Of what the highest tier may find at an endpoint."""
        return 1 - self._at.get(tier.name, 0) * (1 - LEAST_CEILING) / max(1, self._last)

    def opens(self, tier: Tier, ahead_s: float, in_flight: int, *, short: bool) -> bool:
        """Whether an endpoint gets more of a tier's work. `short`: the tier gets less than its least share."""
        if not self._at.get(tier.name, 0):
            return ahead_s <= START_S
        part = self.part(tier)
        return ahead_s <= START_S * part and (short or in_flight < self.rooms[tier.name] * part)

    def saw(self, tier: Tier, took_s: float | None, objective_s: float | None, of_itself_s: float = 0.0) -> None:
        """How long something took that an objective is set for. Requests that take as long by themselves say
        nothing."""
        if took_s is None or objective_s is None or of_itself_s > objective_s / 2 or tier.rank == self.tiers[-1].rank:
            return
        seen = self._seen[tier.name]
        seen[0] += 1
        seen[1] += took_s > NEAR * objective_s

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


def learnt(rates: Rates) -> bool:
    """Whether predictions are worth enough to refuse somebody for."""
    return rates.prefills >= OBSERVED
