"""Keeping the ledger's books: periods that close, the rollup checked and rebuilt, records corrected.

Raises what `Ledger` does while the database is away, and `BookError` for what may not be done.
"""

import re
from collections.abc import Sequence
from datetime import date
from typing import Any, Protocol

from msgspec import Struct
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.metering import metrics
from forebay.metering.posting import Posting, post
from forebay.metering.records import Quantities
from forebay.metering.rows import COLUMNS
from forebay.metering.tables import CLASSES, billing_periods, usage_corrections, usage_hourly, usage_records
from forebay.metering.usage import MAX_TOKENS

_KEY = tuple(column.name for column in usage_hourly.primary_key)
_MEASURES = tuple(column.name for column in usage_hourly.c if column.name not in _KEY)
_ALL = ", ".join((*_KEY, *_MEASURES))
# One statement sees one state of both sides, so that rows which come meanwhile are no difference.
_DIFFERENT = text(f"""
    SELECT coalesce(sum(abs(n)), 0) AS rows, count(DISTINCT period) AS periods, min(charge_hour) AS first FROM (
        SELECT period, charge_hour, count(*) AS n FROM (
            (SELECT {_ALL} FROM usage_hourly WHERE period BETWEEN :first AND :last
             EXCEPT ALL SELECT {_ALL} FROM usage_hourly_of_records WHERE period BETWEEN :first AND :last)
            UNION ALL
            (SELECT {_ALL} FROM usage_hourly_of_records WHERE period BETWEEN :first AND :last
             EXCEPT ALL SELECT {_ALL} FROM usage_hourly WHERE period BETWEEN :first AND :last)
        ) AS apart GROUP BY period, charge_hour
    ) AS hours
""")  # noqa: S608 - ours
_REBUILD = text(f"""
    INSERT INTO usage_hourly ({_ALL}) SELECT {_ALL} FROM usage_hourly_of_records WHERE period BETWEEN :first AND :last
""")  # noqa: S608
_DIGEST = text(f"""
    SELECT coalesce(sum(requests), 0)::bigint AS requests, coalesce(sum(attempts), 0)::bigint AS attempts,
        encode(sha256(convert_to(coalesce(string_agg(
            concat_ws('|', {_ALL.replace("charge_hour", "extract(epoch FROM charge_hour)::bigint")}), E'\\n'
            ORDER BY {", ".join(_KEY)}), ''), 'UTF8')), 'hex') AS digest
    FROM usage_hourly WHERE period = :period
""")  # noqa: S608
_ALONE = text("SELECT pg_advisory_xact_lock(x'666f726562617903'::bigint)")
_PATIENT = text("SELECT set_config('statement_timeout', '600s', true)")
_TODAY = text("SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date")
_EVER = (date.min, date.max)
_NAME = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
_MOST_TEXT = 500


class BookError(ValueError):
    """What is asked for may not be done. `code` is short and for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Period(Struct, frozen=True):
    """A month of charges. `digest` is that of its rollup when it was closed; of an open one all but counts is None."""

    period: date
    requests: int
    attempts: int
    closed_at: float | None = None
    closed_by: str | None = None
    digest: str | None = None


class Difference(Struct, frozen=True):
    """Rows of the rollup that records do not give, and the other way round, and the first hour with such a one."""

    rows: int
    first_hour: float | None


class Correction(Struct, frozen=True):
    """What a record says after it was corrected: `entry` is the replacement's."""

    request_id: str
    attempt: int
    entry: int
    period: date
    before: Quantities
    after: Quantities


class Closing(Protocol):
    """What else is done when a period closes, in the same transaction. May raise `BookError` to refuse."""

    async def close(self, connection: AsyncConnection, period: date) -> None: ...


class Books:
    def __init__(
        self, engine: AsyncEngine, postings: Sequence[Posting] = (), closings: Sequence[Closing] = ()
    ) -> None:
        self._engine = engine
        self._postings = postings
        self._closings = closings

    async def periods(self) -> list[Period]:
        """All that have usage or are closed, oldest first."""
        counts = select(
            usage_hourly.c.period, func.sum(usage_hourly.c.requests), func.sum(usage_hourly.c.attempts)
        ).group_by(usage_hourly.c.period)
        async with self._engine.connect() as connection:
            open_ = {row[0]: Period(row[0], int(row[1]), int(row[2])) for row in await connection.execute(counts)}
            rows = await connection.execute(select(billing_periods))
            closed = {
                row.period: Period(
                    row.period, row.requests, row.attempts, row.closed_at.timestamp(), row.closed_by, row.digest
                )
                for row in rows
            }
        return [found for _, found in sorted((open_ | closed).items())]

    async def close(self, period: date, by: str) -> Period:
        """Close a month that is over, for ever: what comes later is billed in the next open one. Refused over a
        difference between rollup and records, and while an earlier month with usage is open."""
        _text("by", by)
        await self._refuse_difference(period)
        async with self._engine.begin() as connection:
            await connection.execute(_PATIENT)
            await connection.execute(_ALONE)
            await self._refuse_closing(connection, period)
            found = (await connection.execute(_DIGEST, {"period": period})).one()
            for closing in self._closings:
                await closing.close(connection, period)
            values = {"period": period, "closed_by": by, **found._mapping}  # noqa: SLF001 - SQLAlchemy's public name
            insert = billing_periods.insert().values(values).returning(billing_periods.c.closed_at)
            at = (await connection.execute(insert)).scalar_one()
        return Period(period, found.requests, found.attempts, at.timestamp(), by, found.digest)

    async def _refuse_difference(self, period: date) -> None:
        found = await self.verify(period)
        if found.rows:
            raise BookError(
                "rollup_differs",
                f"period {named(period)} cannot close: {found.rows} rows of its rollup and its records differ; "
                "look into why, then `forebay ledger rebuild`",
            )

    async def _refuse_closing(self, connection: AsyncConnection, period: date) -> None:
        this = (await connection.execute(_TODAY)).scalar_one()
        if period >= this:
            raise BookError("period_not_over", f"period {named(period)} is not over (UTC) and cannot close")
        last = (await connection.execute(select(func.max(billing_periods.c.period)))).scalar_one()
        if last is not None and period <= last:
            raise BookError("period_closed", f"period {named(period)} is closed: {named(last)} and all before it are")
        earlier = select(func.min(usage_hourly.c.period)).where(usage_hourly.c.period < period)
        if last is not None:
            earlier = earlier.where(usage_hourly.c.period > last)
        first = (await connection.execute(earlier)).scalar_one()
        if first is not None:
            raise BookError("earlier_period_open", f"period {named(first)} has usage and is open: close it first")

    async def verify(self, period: date | None = None) -> Difference:
        """How rollup and records differ, of one period or of all."""
        async with self._engine.begin() as connection:
            await connection.execute(_PATIENT)
            row = (await connection.execute(_DIFFERENT, _span(period))).one()
        metrics.rollup_differs.set(int(row.rows))
        return Difference(int(row.rows), None if row.first is None else row.first.timestamp())

    async def rebuild(self, period: date | None = None) -> int:
        """The rollup anew from the records, while nobody inserts. How many rows it has."""
        async with self._engine.begin() as connection:
            await connection.execute(_PATIENT)
            await connection.execute(_ALONE)
            await connection.execute(
                text("DELETE FROM usage_hourly WHERE period BETWEEN :first AND :last"), _span(period)
            )
            return (await connection.execute(_REBUILD, _span(period))).rowcount

    async def correct(
        self, request_id: str, attempt: int, changes: dict[str, int], *, by: str, reason: str
    ) -> Correction:
        """Bill other tokens for an attempt: its last entry is taken back, and one with the `changes` (by class, of
        `billable`) put in its place. Both are billed in the period that is open."""
        _text("by", by)
        _text("reason", reason)
        table = usage_records.c
        async with self._engine.begin() as connection:
            lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:id, 7))")
            await connection.execute(lock, {"id": f"{request_id}/{attempt}"})
            last = select(usage_records).where(table.request_id == request_id, table.attempt == attempt)
            row = (await connection.execute(last.order_by(table.entry.desc()).limit(1))).one_or_none()
            if row is None:
                raise BookError("record_not_found", f"the ledger has no attempt {attempt} of request {request_id!r}")
            before = Quantities(*(getattr(row, f"billable_{name}") for name in CLASSES))
            after = _changed(before, changes)
            rows = [_entry(row, row.entry + 1, negated=True), _entry(row, row.entry + 2, after)]
            await post(connection, rows, self._postings, ("entry",))
            await connection.execute(usage_corrections.insert().values(
                request_id=request_id, attempt=attempt, entry=row.entry + 1, started_at=row.started_at,
                corrected_by=by, reason=reason,
            ))  # fmt: skip
            period = (await connection.execute(select(table.period).where(
                table.request_id == request_id, table.attempt == attempt, table.entry == row.entry + 2
            ))).scalar_one()  # fmt: skip
        metrics.corrections.inc()
        return Correction(request_id, attempt, row.entry + 2, period, before, after)


def named(period: date) -> str:
    return period.strftime("%Y-%m")


def period_of(name: str) -> date:
    """Of `2026-11`. Raises `BookError`."""
    if not _NAME.fullmatch(name) or name.startswith("0000"):
        raise BookError("invalid_period", f"{name[:32]!r} is not a period; write a month as 2026-11")
    return date(int(name[:4]), int(name[5:]), 1)


def _span(period: date | None) -> dict[str, date]:
    first, last = (period, period) if period else _EVER
    return {"first": first, "last": last}


def _text(name: str, value: str) -> None:
    if not value.strip() or len(value) > _MOST_TEXT or not value.isprintable():
        raise BookError("invalid_text", f"{name!r} must say something, in one line of at most {_MOST_TEXT} characters")


def _changed(before: Quantities, changes: dict[str, int]) -> Quantities:
    counts = {name: getattr(before, name) for name in CLASSES}
    for name, value in changes.items():
        if name not in counts:
            raise BookError("invalid_count", f"{name[:32]!r} is no class of tokens; they are {', '.join(CLASSES)}")
        if not 0 <= value <= MAX_TOKENS:
            raise BookError("invalid_count", f"{name} must be from 0 to {MAX_TOKENS}, not {value}")
    after = Quantities(**(counts | changes))
    if after.reasoning > after.output:
        raise BookError("invalid_count", "reasoning is a part of output and cannot be more")
    if after == before:
        raise BookError("nothing_changed", "the record says that already: nothing to correct")
    return after


def _entry(row: Any, entry: int, billable: Quantities | None = None, *, negated: bool = False) -> tuple[Any, ...]:
    """`row` again, as another entry: taken back, or with other `billable` counts."""
    values = {name: getattr(row, name) for name in COLUMNS}
    for name in CLASSES:
        if negated:
            values[f"engine_{name}"] *= -1
            values[f"billable_{name}"] *= -1
        elif billable is not None:
            values[f"billable_{name}"] = getattr(billable, name)
    return (*values.values(), entry)
