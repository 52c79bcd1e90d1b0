"""Who is let in, as predicted (pure): one pool's pace, what comes of each tier, and who would wait too long.

A newcomer waits for the seconds of prefill that stand before it in the order, at the pace at which the line was worked
off lately, less what comes of higher tiers. Where somebody is to be refused, a conversation that goes on is let in
before one that begins: what it brings is cached here, and lost if it goes away.
"""

from collections.abc import Callable
from math import exp, inf

from msgspec import Struct

from forebay.router.fairness import STARVED_S
from forebay.router.line import Ahead
from forebay.router.placement import Option
from forebay.router.rates import Rates
from forebay.router.routing import Candidate, Refused, Why
from forebay.router.tiers import Shed, Tier, Tiers
from forebay.router.waiting import Waiting

PACE_S = 10.0  # over which the pace and what comes are averaged
PRIOR_S = 1.0  # of a pace of one second of prefill a second at each endpoint, that is taken to be seen
FASTEST = 1.25  # seconds of prefill a second at an endpoint: predictions may be long
LEAST_PACE = 0.02  # of the pace, that is left for the lowest
SURE = 0.75  # of what is allowed: predictions err, and a line that is full to the brim serves everybody too late
KEPT, MOST_KEPT_S = 0.6, 20.0  # of that, what is kept for those who go on: predictions vary by as much
OBSERVED = 3  # prefills to be learnt before what they take is believed
SEEN_S = 3.0  # that some have waited for, by which the pace is known whatever prefills take
LONGEST_RETRY_S = 600.0
APART = 0.25  # of the time to come back in, by which those who are refused together are kept apart
_GOLDEN = 0.618034  # of whole numbers' multiples the fractions are spread evenly


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

    def rate(self, able: int, *, learnt: bool = True) -> float:
        """Before rates are learnt a second of prefill is of any length, and only the pace says what it is worth."""
        if not learnt:
            return max(1e-6, self.worked / max(self.time, 1e-6))
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


def refused(waiting: Waiting, why: Why, seconds: float) -> Refused:
    """`seconds`: until there should be room for it, if as much goes on to come of others. That is less sure the longer
    it is, so nobody is told to stay away for longer than he may wait."""
    tier = waiting.tier
    again_s = min(max(1.0, seconds), max(1.0, tier.queue_s), LONGEST_RETRY_S)
    return Refused(why, again_s * (1 + APART * (waiting.number * _GOLDEN % 1)), tier.name)


class Gate:
    """`rates`: of the pool, as they are known now."""

    def __init__(self, tiers: Tiers, rates: Callable[[], Rates]) -> None:
        self.tiers = list(tiers)
        self.pace = Pace()
        self._rates = rates
        self._coming = {tier.name: Coming() for tier in self.tiers}

    def __repr__(self) -> str:
        return f"<Gate {self.pace}>"

    @property
    def learnt(self) -> bool:
        """Whether it is known what prefills take."""
        return self._rates().prefills >= OBSERVED

    @property
    def predicts(self) -> bool:
        """Whether enough was seen to refuse somebody for what is predicted."""
        return self.learnt or self.pace.time >= SEEN_S

    def rate(self, tier: Tier, able: int, now: float) -> float:
        """Seconds of prefill a second that a tier gets, as much as there is: of the pace what higher ones leave."""
        pace = self.pace.rate(able, learnt=self.learnt)
        higher = sum(self._coming[one.name].rate(now) for one in self.tiers if one.rank < tier.rank)
        return max(pace - higher, tier.share * pace, LEAST_PACE * pace)

    def wait_s(self, tier: Tier, ahead: Ahead, able: int, now: float) -> float:
        """Seconds until it would begin. What goes first for a tier's share is counted as far as that share lets it, in
        just that time."""
        pace = self.pace.rate(able, learnt=self.learnt)
        rate = self.rate(tier, able, now)
        before, shorts = ahead.higher_s + ahead.own_s, list(ahead.shorts)
        while True:
            taken = sum(short.share for short in shorts) * pace
            at_once = sum(min(short.seconds, short.lacking_s * pace) for short in shorts)
            wait_s = (before + at_once) / max(rate - taken, LEAST_PACE * pace)
            done = [one for one in shorts if one.seconds <= (one.lacking_s + one.share * wait_s) * pace]
            if not done:
                return wait_s
            before += sum(one.seconds for one in done)
            shorts = [one for one in shorts if one not in done]

    def share_s(self, tier: Tier, ahead: Ahead, able: int) -> float:
        """Seconds until one of a tier that is short of its share would begin for that, whatever is before the tier."""
        if tier.share <= 0 or ahead.lacking_s <= 0:
            return inf
        pace = self.pace.rate(able, learnt=self.learnt)
        return STARVED_S + max(0.0, ahead.own_s / pace - ahead.lacking_s) / tier.share

    def number(self, ahead: Ahead, wait_s: float, able: int) -> int:
        """How many begin before one that waits so long."""
        pace = self.pace.rate(able, learnt=self.learnt)
        first = ahead.number
        for one in ahead.shorts:
            part = (one.lacking_s + one.share * wait_s) * pace / max(one.seconds, 1e-6)
            first += round(min(1.0, part) * one.number)
        return first

    def refusal(
        self, waiting: Waiting, best: Option | Candidate, ahead: Ahead, able: int, now: float, *, new: bool = False
    ) -> Refused | None:
        """Why a request is not let in to its tier, if it is not: it would wait longer than it may, or, where its tier
        is not held, come later than its objective. `new`: it begins a conversation."""
        tier, sure = waiting.tier, SURE
        wait_s = self.wait_s(tier, ahead, able, now)
        allowed = sure * max(0.0, waiting.until - now)
        if tier.shed is not Shed.HOLD and tier.ttft_s is not None:
            own_s, queued_s = (best.prefill_s, best.queued_s) if self.learnt else (0.0, 0.0)
            allowed = min(allowed, sure * max(tier.ttft_s - own_s, 0.25 * own_s) - queued_s)
        if self.share_s(tier, ahead, able) <= allowed:
            return None
        if new:
            allowed -= KEPT * min(allowed, MOST_KEPT_S)
        if wait_s <= max(0.0, allowed):
            return None
        alone = self.wait_s(tier, Ahead(own_s=ahead.own_s), able, now)
        why = Why.DEADLINE if alone > max(0.0, allowed) else Why.CAPACITY
        return refused(waiting, why, wait_s - max(0.0, allowed))

    def came(self, tier: Tier, prefill_s: float, now: float) -> None:
        if (coming := self._coming.get(tier.name)) is not None:
            coming.came(prefill_s, now)

    def uncame(self, tier: Tier, prefill_s: float, at: float, now: float) -> None:
        """What came at `at` went away again."""
        if (coming := self._coming.get(tier.name)) is not None and prefill_s > 0:
            coming.came(-prefill_s * exp(-max(0.0, min(now - at, 1e4)) / PACE_S), now)
