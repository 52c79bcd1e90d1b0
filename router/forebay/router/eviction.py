"""What is stopped so that a higher tier keeps its promise (pure): only of tiers that are declared to be shed, a few
at a time, and each is told once."""

from collections.abc import Iterable

from forebay.router.loads import Booking
from forebay.router.tiers import Shed, Tiers
from forebay.router.waiting import Waiting

MOST = 2  # of one decision
LATE = 0.5  # of an objective: who has waited as long for a first token may miss it; who has missed it is not helped


def victims(tiers: Tiers, waiting: Iterable[Waiting], running: Iterable[Booking], now: float) -> list[Booking]:
    """`running`: what is booked in the pool. Its stopping must help: it is at the endpoint where somebody of a higher
    tier waits for a first token, there or in the line before it. Those without a first token go first, since nothing
    is lost but their prefill, then the newest."""
    running = list(running)
    needy: dict[str, int] = {}  # the rank of the highest tier that waits there, by endpoint

    def needs(endpoint: str, tier: str, since: float, own_s: float) -> None:
        found = tiers[tier]
        if found.ttft_s is not None and own_s < found.ttft_s and LATE * found.ttft_s <= now - since < found.ttft_s:
            needy[endpoint] = min(found.rank, needy.get(endpoint, found.rank))

    for one in waiting:
        needs(one.home, one.tier.name, one.since, one.prefill_s)
    for booking in running:
        if booking.waiting and booking.tells:
            needs(booking.endpoint, booking.tier, booking.since, booking.prefill_s)
    if not needy:
        return []
    found = [
        one
        for one in running
        if not one.told
        and one.endpoint in needy
        and tiers[one.tier].shed is Shed.SHED
        and tiers[one.tier].rank > needy[one.endpoint]
    ]
    found.sort(key=lambda one: (-tiers[one.tier].rank, not one.waiting, -one.id))
    told = sum(one.told for one in running)  # not ended yet: what they free is still to come
    return found[: max(0, MOST - told)]
