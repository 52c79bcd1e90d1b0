"""A tenant's usage records for its export, oldest first."""

from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering.tables import usage_records as table

_BATCH = 1000
_INTERNAL = frozenset({"pool", "endpoint"})  # where a request ran is not the tenant's
_COLUMNS = [column for column in table.c if column.name not in _INTERNAL]
_ORDER = (table.c.ended_at, table.c.request_id, table.c.attempt)


async def usage_of(engine: AsyncEngine, tenant_id: str) -> AsyncIterator[dict[str, Any]]:
    """Rows as the ledger has them, read in batches: no connection is held while a slow client downloads."""
    statement = select(*_COLUMNS).where(table.c.tenant_id == tenant_id).order_by(*_ORDER).limit(_BATCH)
    last: tuple[Any, ...] | None = None
    while True:
        batch = statement if last is None else statement.where(tuple_(*_ORDER) > tuple_(*last))
        async with engine.connect() as db:
            rows = (await db.execute(batch)).all()
        for row in rows:
            yield dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name for it
        if len(rows) < _BATCH:
            return
        last = (rows[-1].ended_at, rows[-1].request_id, rows[-1].attempt)
