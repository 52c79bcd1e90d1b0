"""Overrides and plans in Postgres: added, never changed."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.metering.prices import Price
from forebay.metering.pricing.book import check_override
from forebay.metering.pricing.plans import Included, Plan, check_plan
from forebay.metering.pricing.preview import Past
from forebay.metering.pricing.tables import plan_versions
from forebay.metering.records import Quantities
from forebay.metering.tables import CLASSES, billing_periods, price_versions, usage_records

# The lock of all changes that front doors follow: taken first, so that they cannot deadlock.
_LOCK = text("SELECT pg_advisory_xact_lock(7378413942531512066)")
_NONE_CLOSES = text("SELECT pg_advisory_xact_lock_shared(x'666f726562617903'::bigint)")  # as where usage is inserted
_NOW = text("SELECT extract(epoch FROM clock_timestamp())::float8")


class Pricing:
    """Methods raise `RefusedError`, and while the database is away `SQLAlchemyError` or `OSError`. Whether a tenant and
    a model exist is asked before."""

    def __init__(self, engine: AsyncEngine, currency: str) -> None:
        self._engine = engine
        self.currency = currency

    async def add_override(self, new: Price) -> Price:
        """In force on every front door within a second, from its `effective_from` on. Adding the same twice is once."""
        async with self._engine.begin() as db:
            await db.execute(_LOCK)
            book = await prices_of(db, price_versions.c.model == new.model)
            now = float((await db.execute(_NOW)).scalar_one())
            closed = await closed_periods(db)
            if check_override(new, book, currency=self.currency, now=now, closed=closed):
                row = msgspec.structs.asdict(new)
                row["effective_from"] = datetime.fromtimestamp(new.effective_from, UTC)
                await db.execute(insert(price_versions).values(row))
        return new

    async def prices(self, *, tenant_id: str | None = None, model: str | None = None) -> list[Price]:
        """By model, then whose, then time. With a tenant, its overrides and the prices of everybody."""
        clauses: list[ColumnElement[bool]] = []
        if tenant_id is not None:
            clauses.append(price_versions.c.tenant_id.in_(("", tenant_id)))
        if model is not None:
            clauses.append(price_versions.c.model == model)
        async with self._engine.connect() as db:
            return await prices_of(db, *clauses)

    async def add_plan(self, new: Plan) -> Plan:
        async with self._engine.begin() as db:
            await db.execute(_LOCK)
            known, closed = await plans_of(db, new.tenant_id), await closed_periods(db)
            if check_plan(new, known, currency=self.currency, closed=closed):
                row = msgspec.structs.asdict(new)
                row["included"] = msgspec.to_builtins(new.included)
                await db.execute(insert(plan_versions).values(row))
        return new

    async def plans(self, tenant_id: str | None = None) -> list[Plan]:
        """By tenant, then time."""
        async with self._engine.connect() as db:
            return await plans_of(db, tenant_id)

    async def past(self, model: str, start: float, end: float, tenants: Sequence[str] = ()) -> list[Past]:
        """What was used of a model in attempts that ended in [start, end), Unix seconds. No tenants: all."""
        records = usage_records.c
        keys = [records.tenant_id, records.model, records.price_version, records.price_multiplier]
        sums = [func.sum(records[f"billable_{name}"]).label(name) for name in CLASSES]
        begin, until = (datetime.fromtimestamp(moment, UTC) for moment in (start, end))
        statement = select(*keys, *sums).group_by(*keys).order_by(*keys)
        statement = statement.where(records.model == model, records.ended_at >= begin, records.ended_at < until)
        if tenants:
            statement = statement.where(records.tenant_id.in_(tenants))
        async with self._engine.connect() as db:
            rows = (await db.execute(statement)).all()
        return [
            Past(row.tenant_id, row.model, row.price_version, row.price_multiplier,
                 Quantities(*(int(getattr(row, name)) for name in CLASSES)))
            for row in rows
        ]  # fmt: skip


async def prices_of(db: AsyncConnection, *clauses: Any) -> list[Price]:
    order = (price_versions.c.model, price_versions.c.tenant_id, price_versions.c.effective_from)
    rows = await db.execute(select(price_versions).where(*clauses).order_by(*order))
    return [price_of(row) for row in rows]


def price_of(row: Row[Any]) -> Price:
    return Price(
        row.model, row.version, row.effective_from.timestamp(), row.currency,
        row.input, row.output, row.cache_read, row.cache_write, row.tenant_id,
    )  # fmt: skip


async def closed_periods(db: AsyncConnection) -> list[date]:
    """Read behind the lock under which rows are inserted and periods close: none closes before the transaction ends."""
    await db.execute(_NONE_CLOSES)
    return list((await db.scalars(select(billing_periods.c.period))).all())


async def plans_of(db: AsyncConnection, tenant_id: str | None = None) -> list[Plan]:
    statement = select(plan_versions).order_by(plan_versions.c.tenant_id, plan_versions.c.effective_from)
    if tenant_id is not None:
        statement = statement.where(plan_versions.c.tenant_id == tenant_id)
    return [
        Plan(row.tenant_id, row.version, row.effective_from, row.currency, row.minimum,
             msgspec.convert(row.included, tuple[Included, ...]), row.session_hour)
        for row in await db.execute(statement)
    ]  # fmt: skip
