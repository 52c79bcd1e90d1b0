"""The ledger in Postgres: usage records, each exactly once, and the immutable versions of prices."""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy import select, text, tuple_
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.metering import report
from forebay.metering.partitions import Partitions
from forebay.metering.posting import Posting, post
from forebay.metering.prices import Price
from forebay.metering.records import UsageRecord
from forebay.metering.report import Line, UsageQuery
from forebay.metering.rows import moment, month, row
from forebay.metering.tables import price_versions, usage_records

# A server that confirms commits it has not written yet would lose records that have left the spool.
_DURABLE = text("""
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
""")
_CHUNK = 500
_PRICE_FIELDS = ("tenant_id", "effective_from", "currency", "input", "output", "cache_read", "cache_write")
_SHOWN = [column for column in usage_records.c if column.name not in {"pool", "endpoint"}]
_ORDER = (usage_records.c.ended_at, usage_records.c.request_id, usage_records.c.attempt, usage_records.c.entry)


class PriceConflictError(ValueError):
    """A price version that is already registered was given other contents."""


class Ledger:
    """All methods raise `sqlalchemy.exc.SQLAlchemyError` or `OSError` while the database is away."""

    def __init__(self, engine: AsyncEngine, postings: Sequence[Posting] = ()) -> None:
        """`postings`: what else is done with new rows, in the transaction that inserts them."""
        self._engine = engine
        self._postings = postings
        self._partitions = Partitions(engine)

    async def prepare(self) -> None:
        """Make the partitions of this month and the next ones."""
        await self._partitions.ahead()

    async def insert(self, records: Sequence[UsageRecord]) -> int:
        """Add records in one transaction; those already there are left alone. Durable when it returns how many were
        new. May raise `asyncpg.PostgresError` as well, and `UnfitError` for a record that can never be here."""
        rows = [row(one) for one in records]
        await self._partitions.ensure({month(moment(one.attempt.started_at)) for one in records})
        async with self._engine.begin() as connection:
            await connection.execute(_DURABLE)
            return await post(connection, rows, self._postings)

    async def register_prices(self, prices: Iterable[Price]) -> None:
        """Add the price versions that are new. Raises `PriceConflictError`, and adds none, if one exists with other
        contents: a new price is a new version."""
        async with self._engine.begin() as connection:
            for price in prices:
                values = _price_row(price)
                await connection.execute(upsert(price_versions).values(values).on_conflict_do_nothing())
                await _refuse_change(connection, values)

    async def prices(self) -> dict[tuple[str, str], Price]:
        """Every registered price by (model, version)."""
        async with self._engine.connect() as connection:
            return await _prices(connection)

    async def usage(self, query: UsageQuery) -> list[Line]:
        """The lines of a report, ordered by time, then group."""
        async with self._engine.connect() as connection:
            rows = (await connection.execute(report.statement(query))).all()
            return report.fold(query, rows, await _prices(connection))

    async def records_of(self, tenant_id: str) -> AsyncIterator[dict[str, Any]]:
        """A tenant's usage records as rows, oldest first, without what is the operator's (where they ran). Read in
        batches: no connection is held while whoever wants them is slow."""
        statement = select(*_SHOWN).where(usage_records.c.tenant_id == tenant_id).order_by(*_ORDER).limit(_CHUNK)
        after: tuple[Any, ...] | None = None
        while True:
            batch = statement if after is None else statement.where(tuple_(*_ORDER) > tuple_(*after))
            async with self._engine.connect() as connection:
                rows = (await connection.execute(batch)).all()
            for one in rows:
                yield dict(one._mapping)  # noqa: SLF001 - SQLAlchemy's public name for it
            if len(rows) < _CHUNK:
                return
            after = (rows[-1].ended_at, rows[-1].request_id, rows[-1].attempt, rows[-1].entry)


async def _prices(connection: AsyncConnection) -> dict[tuple[str, str], Price]:
    rows = await connection.execute(select(price_versions))
    return {
        (row.model, row.version): Price(
            row.model, row.version, row.effective_from.timestamp(), row.currency,
            row.input, row.output, row.cache_read, row.cache_write, row.tenant_id,
        )
        for row in rows
    }  # fmt: skip


async def _refuse_change(connection: AsyncConnection, row: dict[str, Any]) -> None:
    table = price_versions.c
    found = (
        await connection.execute(
            select(price_versions).where(table.model == row["model"], table.version == row["version"])
        )
    ).one()
    changed = [name for name in _PRICE_FIELDS if getattr(found, name) != row[name]]
    if changed:
        name = changed[0]
        raise PriceConflictError(
            f"price version {row['version']!r} of model {row['model']!r} is registered with {name} "
            f"{_show(getattr(found, name))}, and cannot become {_show(row[name])}: give the new price a new version"
        )


def _price_row(price: Price) -> dict[str, Any]:
    row = msgspec.structs.asdict(price)
    # Postgres keeps microseconds; comparing anything finer would see a change where there is none.
    row["effective_from"] = datetime.fromtimestamp(price.effective_from, UTC)
    return row


def _show(value: Decimal | datetime | str) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value) or "''"
