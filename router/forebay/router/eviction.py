"""What is stopped so that a higher tier keeps its promise (pure): a few at a time, and each is told once."""

from collections.abc import Iterable, Mapping

from forebay.router.loads import Booking
from forebay.router.tiers import Tier, Tiers

MOST = 2  # of one decision
LATE = 0.5  # of an objective: who has waited as long for a first token may miss it; who has missed it is not helped
NEAR = 0.8  # of an objective: who is predicted to begin sooner needs nobody to be stopped
ENDING_S = 5.0  # within which one that is told has ended; who has not cannot be reached, and others are told


def may_miss(tier: Tier, since: float, own_s: float, now: float) -> bool:
    """Whether it has waited so long for a first token that it matters when that is predicted. `own_s`: of prefill."""
    ttft_s = tier.ttft_s
    return ttft_s is not None and own_s < ttft_s and LATE * ttft_s <= now - since < ttft_s


def misses(tier: Tier, since: float, first_at: float) -> bool:
    """Whether one whose first token is predicted for then is to be helped."""
    return tier.ttft_s is not None and first_at - since > NEAR * tier.ttft_s


def victims(tiers: Tiers, needy: Mapping[str, int], running: Iterable[Booking], now: float) -> list[Booking]:
    """`needy`: the rank of the highest tier that needs it, by endpoint. `running`: what may be stopped. Those without
    a first token go first, since nothing is lost but their prefill, then the newest."""
    running = list(running)
    found = [
        one
        for one in running
        if one.told_at is None and one.endpoint in needy and tiers[one.tier].rank > needy[one.endpoint]
    ]
    found.sort(key=lambda one: (-tiers[one.tier].rank, not one.waiting, -one.id))
    ending = sum(one.told_at is not None and now - one.told_at < ENDING_S for one in running)
    return found[: max(0, MOST - ending)]
