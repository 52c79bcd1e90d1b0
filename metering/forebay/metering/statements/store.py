"""Statements from the rollup in Postgres, and those of closed periods, which are kept as they were.

All that a closed period's statement is made of never changes, so it is the same whenever it is made: it is stored when
the period closes (`close`), or when somebody first asks for it.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.metering.books import BookError
from forebay.metering.pricing.store import plans_of, prices_of
from forebay.metering.records import Quantities
from forebay.metering.statements.build import Line, Statement, build, digest, encoded
from forebay.metering.statements.monthly import Kind, StatementError, Used
from forebay.metering.statements.tables import statements
from forebay.metering.tables import CLASSES, billing_periods, usage_hourly, usage_records

_decode = msgspec.json.Decoder(Statement).decode
_TENANTS = text("""
    SELECT tenant_id FROM usage_hourly WHERE period = :period
    UNION SELECT tenant_id FROM plan_versions WHERE effective_from <= :period ORDER BY 1
""")
_PERIODS = text("""
    SELECT DISTINCT period FROM usage_hourly WHERE tenant_id = :tenant
    UNION SELECT period FROM statements WHERE tenant_id = :tenant ORDER BY 1
""")


class Told(Struct, frozen=True):
    """A statement, whether it is final, and its hash (SHA-256 of its canonical JSON, hex)."""

    closed: bool
    digest: str
    statement: Statement


class Part(Struct, frozen=True):
    """A record that a line is made of. `entry` odd takes tokens back, even above 0 puts others in their place."""

    request_id: str
    attempt: int
    entry: int
    ended_at: float
    project_id: str
    key_id: str
    tokens: int


class Statements:
    """Raises `StatementError`, and while the database is away `SQLAlchemyError` or `OSError`."""

    def __init__(self, engine: AsyncEngine, currency: str) -> None:
        self._engine = engine
        self._currency = currency

    async def of(self, tenant_id: str, period: date) -> Told:
        """Of an open period, as far as it is known now."""
        async with self._engine.begin() as db:
            return await self._of(db, tenant_id, period)

    async def all_of(self, tenant_id: str) -> list[Told]:
        """By period: of each in which it used something, and each that closed with a statement of it."""
        async with self._engine.begin() as db:
            periods = (await db.scalars(_PERIODS, {"tenant": tenant_id})).all()
            return [await self._of(db, tenant_id, period) for period in periods]

    async def close(self, connection: AsyncConnection, period: date) -> None:
        """Freeze everybody's, in the transaction that closes `period` (a `Closing` of the books)."""
        for tenant_id in (await connection.scalars(_TENANTS, {"period": period})).all():
            try:
                await self._of(connection, tenant_id, period, closing=True)
            except StatementError as error:
                raise BookError("statement_unavailable", f"period {period:%Y-%m} cannot close: {error}") from None

    async def parts(self, tenant_id: str, line: Line, period: date, limit: int) -> list[Part]:
        """The records of a line of usage, oldest first: their tokens add up to the line's. Those of included tokens are
        those of the usage that they are a part of; a minimum has none."""
        if line.kind is Kind.MINIMUM:
            return []
        records = usage_records.c
        tokens = records[f"billable_{line.token_class}"]
        statement = (
            select(records.request_id, records.attempt, records.entry, records.ended_at, records.project_id,
                   records.key_id, tokens.label("tokens"))
            .where(records.tenant_id == tenant_id, records.period == period, *_in_month(records, line.charge_month),
                   records.model == line.model, records.price_version == line.price_version,
                   records.price_multiplier == line.multiplier, tokens != 0)
            .order_by(records.ended_at, records.request_id, records.attempt, records.entry).limit(limit)
        )  # fmt: skip
        async with self._engine.connect() as db:
            rows = (await db.execute(statement)).all()
        return [
            Part(row.request_id, row.attempt, row.entry, row.ended_at.timestamp(), row.project_id, row.key_id,
                 row.tokens)
            for row in rows
        ]  # fmt: skip

    async def _of(self, db: AsyncConnection, tenant_id: str, period: date, *, closing: bool = False) -> Told:
        kept = statements.c
        chosen = select(statements).where(kept.tenant_id == tenant_id, kept.period == period)
        found = (await db.execute(chosen)).one_or_none()
        if found is not None:
            told = _decode(found.body)
            if digest(told) != found.digest:
                raise StatementError(f"the statement of {tenant_id} for {period:%Y-%m} is not what was stored")
            return Told(closed=True, digest=found.digest, statement=told)
        closed = closing or await _closed(db, period)
        made = await self._built(db, tenant_id, period)
        told_ = Told(closed=closed, digest=digest(made), statement=made)
        if closed:
            values = {"tenant_id": tenant_id, "period": period, "currency": made.currency, "total": made.total,
                      "body": encoded(made).decode(), "digest": told_.digest}  # fmt: skip
            await db.execute(insert(statements).values(values).on_conflict_do_nothing())
        return told_

    async def _built(self, db: AsyncConnection, tenant_id: str, period: date) -> Statement:
        prices = {(one.model, one.version): one for one in await prices_of(db)}
        plans = await plans_of(db, tenant_id)
        rows = await _rows(db, tenant_id, period)
        return build(tenant_id, period, rows, prices=prices, plans=plans, currency=self._currency)


async def _closed(db: AsyncConnection, period: date) -> bool:
    """They close in order."""
    found = await db.execute(select(billing_periods.c.period).where(billing_periods.c.period >= period).limit(1))
    return found.one_or_none() is not None


async def _rows(db: AsyncConnection, tenant_id: str, period: date) -> Sequence[Used]:
    """What is billed in the period, and what was billed before of the months that these rows are of."""
    hourly = usage_hourly.c
    month = func.date_trunc("month", func.timezone("UTC", hourly.charge_hour))
    concerned = select(month).where(hourly.tenant_id == tenant_id, hourly.period == period).distinct()
    keys = [hourly.period, hourly.charge_hour, hourly.model, hourly.price_version, hourly.price_multiplier]
    sums = [func.sum(hourly[f"billable_{name}"]).label(name) for name in CLASSES]
    statement = (
        select(*keys, *sums, func.sum(hourly.requests).label("requests"))
        .where(hourly.tenant_id == tenant_id, hourly.period <= period, month.in_(concerned))
        .group_by(*keys)
    )
    return [
        Used(row.period, int(row.charge_hour.timestamp()), row.model, row.price_version, row.price_multiplier,
             Quantities(*(int(getattr(row, name)) for name in CLASSES)), int(row.requests))
        for row in await db.execute(statement)
    ]  # fmt: skip


def _in_month(records: Any, month: date) -> list[ColumnElement[bool]]:
    begin = datetime(month.year, month.month, 1, tzinfo=UTC)
    end = datetime(month.year + month.month // 12, month.month % 12 + 1, 1, tzinfo=UTC)
    return [records.ended_at >= begin, records.ended_at < end]
