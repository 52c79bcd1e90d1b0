"""Which of Stripe's customers a tenant is, and which meter counts a model's tokens of a class.

A mapping holds for usage from an hour on, until the next of the same. What was told to Stripe stays as it was mapped: a
change begins after it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct
from sqlalchemy import Table, and_, func, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.metering.stripe.records import TOKEN_CLASSES, Meter
from forebay.metering.stripe.tables import stripe_customers, stripe_meters, stripe_postings

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)


class MappingError(ValueError):
    """A mapping that cannot be made; the message says why, and what can."""


class CustomerMapping(Struct, frozen=True):
    """`customer_id` '': not billed through Stripe."""

    tenant_id: str
    effective_from: datetime
    customer_id: str


class MeterMapping(Struct, frozen=True):
    """`tier` '': of every tier that has none of its own. `event_name` '': not billed through Stripe."""

    model: str
    tier: str
    token_class: str
    effective_from: datetime
    event_name: str


class Mappings:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def customers(self) -> list[CustomerMapping]:
        table = stripe_customers.c
        asked = select(table.tenant_id, table.effective_from, table.customer_id)
        async with self._engine.connect() as connection:
            rows = await connection.execute(asked.order_by(table.tenant_id, table.effective_from))
            return [CustomerMapping(*row) for row in rows]

    async def meters(self) -> list[MeterMapping]:
        table = stripe_meters.c
        asked = select(table.model, table.tier, table.token_class, table.effective_from, table.event_name)
        async with self._engine.connect() as connection:
            rows = await connection.execute(
                asked.order_by(table.model, table.tier, table.token_class, table.effective_from)
            )
            return [MeterMapping(*row) for row in rows]

    async def map_customer(
        self, tenant_id: str, customer_id: str, now: datetime, since: datetime | None = None
    ) -> CustomerMapping:
        """Raises `MappingError`."""
        told = stripe_postings.c.tenant_id == tenant_id
        async with self._engine.begin() as connection:
            start = await _start(connection, stripe_customers, {"tenant_id": tenant_id}, told, now=now, since=since)
            made = CustomerMapping(tenant_id, start, customer_id)
            await _add(connection, stripe_customers, made)
        return made

    async def map_meter(
        self, model: str, token_class: str, event_name: str, now: datetime, *, tier: str = "",
        since: datetime | None = None,
    ) -> MeterMapping:  # fmt: skip
        """Raises `MappingError`."""
        if token_class not in TOKEN_CLASSES:
            raise MappingError(f"there is no token class {token_class!r}; they are {', '.join(TOKEN_CLASSES)}")
        place = {"model": model, "tier": tier, "token_class": token_class}
        mapped = select(stripe_meters.c.event_name).where(
            stripe_meters.c.model == model, stripe_meters.c.token_class == token_class
        )
        async with self._engine.begin() as connection:
            told = stripe_postings.c.event_name.in_(mapped)
            start = await _start(connection, stripe_meters, place, told, now=now, since=since)
            made = MeterMapping(model, tier, token_class, start, event_name)
            await _add(connection, stripe_meters, made)
        return made


def fit(meter: Meter | None, event_name: str) -> None:
    """Raises `MappingError` unless a meter adds up what it is sent."""
    if meter is None:
        raise MappingError(f"Stripe has no meter with the event name {event_name!r}")
    if not meter.active:
        raise MappingError(f"the meter {event_name!r} is not active at Stripe; reactivate it, or name another")
    if meter.formula != "sum":
        raise MappingError(f"the meter {event_name!r} aggregates by {meter.formula}; Forebay needs one of formula sum")


async def _start(
    connection: AsyncConnection, table: Table, place: dict[str, str], told: Any, *, now: datetime,
    since: datetime | None,
) -> datetime:  # fmt: skip
    """From which hour on a mapping holds: as asked, else the first from the beginning, and a change from the next hour
    that nothing was told of."""
    if since is not None and since != since.replace(minute=0, second=0, microsecond=0):
        raise MappingError("a mapping holds for whole hours; give a time such as 2026-12-01T00:00")
    here = and_(*(table.c[name] == value for name, value in place.items()))
    newest = (await connection.execute(select(func.max(table.c.effective_from)).where(here))).scalar()
    last = (await connection.execute(select(func.max(stripe_postings.c.hour)).where(told))).scalar()
    first = max([at + _HOUR for at in (newest, last) if at is not None], default=BEGINNING)
    if since is not None and since < first:
        raise MappingError(
            f"usage before {first.astimezone(UTC):%Y-%m-%dT%H:%M} is mapped already, or was told to Stripe; "
            "a change can begin then"
        )
    if since is not None:
        return since
    return BEGINNING if newest is None and last is None else max(first, now.replace(minute=0, second=0, microsecond=0))


async def _add(connection: AsyncConnection, table: Table, made: CustomerMapping | MeterMapping) -> None:
    row: dict[str, Any] = {name: getattr(made, name) for name in made.__struct_fields__}
    if not (await connection.execute(upsert(table).values(row).on_conflict_do_nothing())).rowcount:
        raise MappingError("somebody else has just mapped the same; look at it with: forebay stripe map")


def newest(mappings: Sequence[CustomerMapping], tenant_id: str) -> CustomerMapping | None:
    return next((one for one in reversed(mappings) if one.tenant_id == tenant_id), None)
