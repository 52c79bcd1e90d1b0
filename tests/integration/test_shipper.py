import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Ledger, Quantities, Shipper, Spool
from forebay.platform.stores.database import create_engine, parse_url
from forebay.platform.tasks import end
from tests.eventually import eventually
from tests.metered import attempt, record
from tests.stores import Databases


@asynccontextmanager
async def spooling(directory: Path) -> AsyncIterator[Spool]:
    spool = Spool(directory, 1 << 30)
    await spool.start()
    try:
        yield spool
    finally:
        await spool.stop()


@asynccontextmanager
async def shipping(spool: Spool, engine: AsyncEngine) -> AsyncIterator[Shipper]:
    shipper = Shipper(spool, Ledger(engine))
    task = asyncio.create_task(shipper.run())
    try:
        yield shipper
    finally:
        await end(task)


async def spend(spool: Spool, numbers: range) -> None:
    """Complete one attempt for each number; number n writes n tokens."""
    for number in numbers:
        spool.open(attempt(number))
    await asyncio.gather(*(spool.close(record(number, Quantities(output=number))) for number in numbers))


async def booked(engine: AsyncEngine) -> tuple[int, int]:
    """Rows and output tokens in the ledger."""
    async with engine.connect() as connection:
        statement = "SELECT count(*), coalesce(sum(billable_output), 0)::bigint FROM usage_records"
        rows, tokens = (await connection.execute(text(statement))).one()
        return rows, tokens


async def test_records_reach_the_ledger_within_a_second_and_leave_the_spool(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    async with spooling(tmp_path / "a") as spool, shipping(spool, engine) as shipper:
        await booked(engine)
        started = time.monotonic()
        await spend(spool, range(1, 1201))
        await eventually(lambda: spool.unshipped == 0)
        assert time.monotonic() - started < 1.0
        assert await booked(engine) == (1200, sum(range(1, 1201)))
        assert (shipper.last_error, shipper.backlog_age()) == (None, 0.0)


async def test_a_crash_between_the_two_commits_books_nothing_twice(tmp_path: Path, engine: AsyncEngine) -> None:
    """litellm#35531, #34820."""
    async with spooling(tmp_path / "a") as spool:
        await spend(spool, range(1, 101))
        # The ledger commits, and the process dies before the spool knows.
        await Ledger(engine).insert([item for _, item in await spool.pending(60)])
    async with spooling(tmp_path / "a") as spool, shipping(spool, engine) as shipper:
        assert await shipper.drain(5)
    assert await booked(engine) == (100, 5050)


async def test_connections_killed_while_shipping_lose_and_double_nothing(
    tmp_path: Path, engine: AsyncEngine, database: str
) -> None:
    assassin = create_engine(database, pool_size=1, name="assassin").execution_options(isolation_level="AUTOCOMMIT")
    kill = text("""
        SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
    """)
    async with spooling(tmp_path / "a") as spool, shipping(spool, engine) as shipper:
        killed = 0
        async with assassin.connect() as connection:
            for start in range(1, 4001, 400):
                await spend(spool, range(start, start + 400))
                await asyncio.sleep(0.1)
                killed += (await connection.execute(kill)).scalar_one()
        assert killed
        assert await shipper.drain(20)
    await assassin.dispose()
    assert await booked(engine) == (4000, sum(range(1, 4001)))


async def test_records_wait_while_the_database_is_away_and_arrive_when_it_is_back(
    tmp_path: Path, engine: AsyncEngine, database: str, postgres: Databases
) -> None:
    name = parse_url(database).database
    async with spooling(tmp_path / "a") as spool, shipping(spool, engine) as shipper:
        await spend(spool, range(1, 11))
        await eventually(lambda: spool.unshipped == 0)
        await command(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await command(postgres, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        await spend(spool, range(11, 21))
        await eventually(lambda: shipper.last_error)
        assert not await shipper.drain(0.5)
        assert spool.accepting
        assert spool.unshipped == 10
        assert shipper.backlog_age() > 0.4
        await command(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert await shipper.drain(10)
        assert shipper.last_error is None
    assert await booked(engine) == (20, 210)


@pytest.mark.parametrize(
    ("of_attempt", "of_record"),
    [
        ({"model": "nul\0byte"}, {}),
        ({"price_multiplier": Decimal("NaN")}, {}),
        ({"price_multiplier": Decimal(-1)}, {}),
        ({}, {"billable": Quantities(output=2**62)}),
        ({}, {"billable": Quantities(output=-1)}),
    ],
)
async def test_a_record_that_the_ledger_refuses_is_parked_and_holds_up_no_other(
    tmp_path: Path, engine: AsyncEngine, of_attempt: dict[str, Any], of_record: dict[str, Any]
) -> None:
    async with spooling(tmp_path / "a") as spool, shipping(spool, engine) as shipper:
        await spend(spool, range(1, 4))
        poison = attempt(4, **of_attempt)
        spool.open(poison)
        await spool.close(replace(record(poison), **of_record))
        await spend(spool, range(5, 8))
        assert await shipper.drain(5)
        assert spool.unshipped == 0
    assert await booked(engine) == (6, 1 + 2 + 3 + 5 + 6 + 7)


async def command(postgres: Databases, statement: str) -> None:
    engine = create_engine(postgres.server.url).execution_options(isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(statement))
    await engine.dispose()
