"""Rows into the ledger, in one transaction: COPY into a stage, from there what is new into the records, from there on.

The stage and what was posted are temporary tables that outlive the transaction empty, one pair for each connection.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from forebay.metering.rows import COLUMNS
from forebay.metering.tables import usage_records

_NAMES = ", ".join(COLUMNS)
_ALL = ", ".join(column.name for column in usage_records.c)  # by name: a newer schema may have more
_TABLES = (
    text("CREATE TEMP TABLE IF NOT EXISTS stage (LIKE usage_records INCLUDING DEFAULTS) ON COMMIT DELETE ROWS"),
    text("ALTER TABLE pg_temp.stage ALTER period DROP NOT NULL, ALTER charge_hour DROP NOT NULL"),
    text("CREATE TEMP TABLE IF NOT EXISTS posted (LIKE usage_records) ON COMMIT DELETE ROWS"),
)
_THERE = text("SELECT to_regclass('pg_temp.stage') IS NOT NULL AND to_regclass('pg_temp.posted') IS NOT NULL")
# In the order of the key, so that two who bring the same records never wait for each other.
_POST = text(f"""
    WITH new AS (
        INSERT INTO usage_records ({_NAMES}, entry)
        SELECT {_NAMES}, entry FROM pg_temp.stage ORDER BY request_id, attempt, entry, started_at
        ON CONFLICT DO NOTHING
        RETURNING {_ALL}
    )
    INSERT INTO pg_temp.posted ({_ALL}) SELECT * FROM new
""")  # noqa: S608 - ours


class Posting(Protocol):
    """What else follows from new rows, in the same transaction: exactly once, as they are."""

    async def post(self, connection: AsyncConnection) -> None:
        """`pg_temp.posted` holds the new rows, as `usage_records` does. Writes in the order of a key of its own."""


async def post(
    connection: AsyncConnection,
    rows: Iterable[tuple[Any, ...]],
    postings: Sequence[Posting],
    extra: Sequence[str] = (),
) -> int:
    """Insert rows (of `COLUMNS`, then of `extra`) within the caller's transaction. How many were new."""
    if not (await connection.execute(_THERE)).scalar_one():
        for statement in _TABLES:
            await connection.execute(statement)
    driver: Any = (await connection.get_raw_connection()).driver_connection
    await driver.copy_records_to_table("stage", schema_name="pg_temp", records=rows, columns=[*COLUMNS, *extra])
    added = (await connection.execute(_POST)).rowcount
    if added:
        for posting in postings:
            await posting.post(connection)
    return added
