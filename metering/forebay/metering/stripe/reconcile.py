"""The ledger, what Stripe was told of it, and what Stripe says that it counted: by customer, meter and hour.

Stripe's error reports name samples only. This finds the others.
"""

from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from forebay.metering.stripe import plan
from forebay.metering.stripe.client import RefusedError
from forebay.metering.stripe.journal import Journal
from forebay.metering.stripe.records import Key, Kind, Meter, Posting, State, delivered
from forebay.metering.stripe.stream import Caller

HOUR = plan.HOUR


class Difference(Struct, frozen=True):
    """One hour of a customer's meter, by Stripe's time, that is not as it should be. `suspects` are postings that alone
    make the difference up. `settling`: something was told less than an hour ago, and Stripe may still count."""

    customer_id: str
    event_name: str
    at: datetime
    told: int
    counted: int
    postings: tuple[str, ...]
    suspects: tuple[str, ...]
    settling: bool


class Untold(Struct, frozen=True):
    """A cell of which the ledger says another number than Stripe was told."""

    key: Key
    ledger: int
    told: int


class Reconciliation(Struct, frozen=True):
    """`told`: what counts for something at Stripe, credit notes included. `hours`: of a customer's meter, compared."""

    ledger: int
    told: int
    counted: int
    credited: int
    hours: int
    postings: int
    differences: list[Difference]
    untold: list[Untold]

    @property
    def equal(self) -> bool:
        return not self.differences and not self.untold


async def reconcile(journal: Journal, caller: Caller, since: datetime, until: datetime) -> Reconciliation:
    """Of charge hours and of Stripe's hours from `since` to `until`. Raises `StripeError`."""
    since, until = plan.hour_of(since), plan.hour_of(until - timedelta(microseconds=1)) + HOUR
    meters: dict[str, Meter] = await caller.call(caller.api.meters)
    cells = await journal.cells(since, until)
    told: dict[Key, int] = defaultdict(int)
    for one in await journal.of_hours(since, until):
        if one.state in {State.DELIVERED, State.CANCELLING}:
            told[one.key] += one.value
    untold = [
        Untold(key, cells.get(key, 0), told.get(key, 0))
        for key in sorted(cells.keys() | told.keys()) if cells.get(key, 0) != told.get(key, 0)
    ]  # fmt: skip
    billed = await journal.billed(since, until)
    hours, counted, differences = await _compare(billed, caller, meters, since, until)
    credited = -sum(one.value for one in billed if one.kind is Kind.CREDIT_NOTE and one.state is State.DELIVERED)
    return Reconciliation(
        sum(cells.values()), sum(told.values()), counted, credited, hours, len(billed), differences, untold
    )


async def _compare(
    billed: list[Posting], caller: Caller, meters: dict[str, Meter], since: datetime, until: datetime
) -> tuple[int, int, list[Difference]]:
    places: dict[tuple[str, str], dict[datetime, list[Posting]]] = defaultdict(lambda: defaultdict(list))
    for one in billed:
        places[one.customer_id, one.key.event_name][plan.hour_of(one.billed_at)].append(one)
    hours = counted = 0
    differences = []
    for (customer, event), by_hour in sorted(places.items()):
        found: dict[datetime, int] = {}
        if event in meters:
            with suppress(RefusedError):  # of a customer that Stripe does not know any more it counts nothing
                found = await caller.call(caller.api.summaries, meters[event].id, customer, since, until)
        for at in sorted(by_hour.keys() | {at for at, value in found.items() if value}):
            hours += 1
            counted += found.get(at, 0)
            some = by_hour.get(at, [])
            if delivered(some) != found.get(at, 0):
                differences.append(
                    _difference(customer, event, at, some, counted=found.get(at, 0), now=caller.now())
                )
    return hours, counted, differences


def _difference(
    customer: str, event: str, at: datetime, some: list[Posting], *, counted: int, now: datetime
) -> Difference:
    events = [one for one in some if one.kind is Kind.EVENT and one.state is not State.VOID]
    missing = delivered(some) - counted
    return Difference(
        customer, event, at.astimezone(UTC), delivered(some), counted,
        tuple(one.identifier for one in events),
        tuple(one.identifier for one in events if one.value == missing and one.state is State.DELIVERED)
        + tuple(one.identifier for one in events if one.value == -missing and one.state is not State.DELIVERED),
        any(one.changed_at is not None and now - one.changed_at < plan.SETTLES for one in events),
    )  # fmt: skip
