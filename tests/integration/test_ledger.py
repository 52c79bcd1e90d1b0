from decimal import Decimal
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Ledger, Price, PriceConflictError, Quantities, Status, UsageQuery, total
from forebay.metering.tables import metadata
from tests.metered import T0, attempt, record


def price(version: str, output: str, at: float = 0.0, model: str = "smol") -> Price:
    return Price(model, version, at, "USD", Decimal("1.5"), Decimal(output), Decimal("0.15"), Decimal("1.5"))


async def test_the_tables_are_those_of_the_migration(engine: AsyncEngine) -> None:
    def differences(connection: Connection) -> Any:
        options = {
            "compare_type": True,
            "include_name": lambda name, kind, _: kind != "table" or name in metadata.tables,
        }
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_record_arrives_once_and_whole(engine: AsyncEngine) -> None:
    ledger = Ledger(engine)
    odd = record(
        attempt(2, model="a 'quoted' \"name\" ü", started_at=T0 + 0.123456),
        Quantities(1, 2, 3, 4, 2), status=Status.CANCELLED, measured=False, first_byte_s=None, finish_reason=None,
        error="client_gone", billable=Quantities(),
    )  # fmt: skip
    assert await ledger.insert([record(1), odd]) == 2
    assert await ledger.insert([odd, record(1), record(3)]) == 1
    async with engine.connect() as connection:
        row = (await connection.execute(text("SELECT * FROM usage_records WHERE NOT measured"))).one()
        (count,) = (await connection.execute(text("SELECT count(*) FROM usage_records"))).one()
    assert count == 3
    assert row.model == "a 'quoted' \"name\" ü"
    assert row.started_at.timestamp() == T0 + 0.123456
    assert (row.status, row.error, row.first_byte_s, row.finish_reason) == ("cancelled", "client_gone", None, None)
    assert (row.engine_input_uncached, row.engine_cache_read, row.engine_cache_write) == (1, 2, 3)
    assert (row.engine_output, row.engine_reasoning, row.billable_output) == (4, 2, 0)


@pytest.mark.parametrize("statement", [
    "UPDATE usage_records SET billable_output = 0",
    "DELETE FROM usage_records",
    "TRUNCATE usage_records",
    "DELETE FROM price_versions",
])  # fmt: skip
async def test_the_ledger_is_append_only(engine: AsyncEngine, statement: str) -> None:
    await Ledger(engine).insert([record(1)])
    with pytest.raises(DBAPIError, match="append-only"):
        async with engine.begin() as connection:
            await connection.execute(text(statement))


async def test_a_price_version_never_changes(engine: AsyncEngine) -> None:
    ledger = Ledger(engine)
    await ledger.register_prices([price("v1", "6")])
    await ledger.register_prices([price("v1", "6.00"), price("v2", "7", T0)])
    with pytest.raises(PriceConflictError, match="'v1' of model 'smol' is registered with output 6, and cannot be"):
        await ledger.register_prices([price("v3", "8"), price("v1", "5")])
    assert sorted(version for _, version in await ledger.prices()) == ["v1", "v2"]


async def test_a_report_groups_counts_and_prices(engine: AsyncEngine) -> None:
    """litellm#39455: a request is one, however many attempts it took."""
    ledger = Ledger(engine)
    await ledger.register_prices([price("v1", "6"), price("v2", "12")])
    await ledger.insert([
        record(attempt(1), Quantities(20, 10, 0, 5)),
        record(attempt(2, price_version="v2"), Quantities(20, 10, 0, 5)),
        # One request in two attempts, of which the first failed and bills nothing.
        record(attempt(3), status=Status.FAILED, billable=Quantities()),
        record(attempt(3, attempt=2, price_version="v2"), Quantities(1, 0, 0, 1)),
        record(attempt(4, model="free", price_version=""), Quantities(7, 0, 0, 3)),
        record(attempt(5, tenant_id="ten_b", project_id="proj_b"), Quantities(100, 0, 0, 0)),
        record(attempt(6, started_at=T0 + 3600), Quantities(50, 0, 0, 0)),
    ])  # fmt: skip
    query = UsageQuery(start=T0, end=T0 + 86400, bucket=3600, group_by=("model",), tenants=("ten_a",))
    lines = await ledger.usage(query)
    seen = [(item.start - T0, item.group["model"], item.requests, item.attempts) for item in lines]
    assert [(*seen, item.used.input_total, item.used.output) for seen, item in zip(seen, lines, strict=True)] == [
        (0, "free", 1, 1, 7, 3), (0, "smol", 3, 4, 61, 11), (3600, "smol", 1, 1, 50, 0)
    ]  # fmt: skip
    assert lines[0].costs == {}
    assert lines[0].unpriced == 10
    # 41 uncached at 1.5, 20 cached at 0.15, 5 output at 6 and 6 at 12 a million
    assert lines[1].exact == {"USD": (41 * Decimal("1.5") + 20 * Decimal("0.15") + 30 + 72) / 1_000_000}
    assert lines[1].costs == {"USD": Decimal("0.000167")}  # 0.0001665
    assert total(lines).requests == 5

    everything = await ledger.usage(UsageQuery(start=T0, end=T0 + 86400))
    assert [(item.requests, item.used.input_total) for item in everything] == [(6, 218)]
    by_tenant = await ledger.usage(UsageQuery(start=T0, end=T0 + 86400, group_by=("tenant", "project")))
    assert [(item.group, item.requests) for item in by_tenant] == [
        ({"tenant": "ten_a", "project": "proj_a"}, 5), ({"tenant": "ten_b", "project": "proj_b"}, 1)
    ]  # fmt: skip


async def test_each_record_costs_by_the_multiplier_it_names(engine: AsyncEngine) -> None:
    ledger = Ledger(engine)
    await ledger.register_prices([price("v1", "6")])
    used = Quantities(20, 10, 0, 5)  # 20 at 1.5, 10 at 0.15, 5 at 6 a million
    plain = (20 * Decimal("1.5") + 10 * Decimal("0.15") + 30) / 1_000_000
    multipliers = [Decimal(text) for text in ("1", "1", "2.5", "0.1234567890123", "0")]
    await ledger.insert([
        record(attempt(number, tier_used=f"x{multiplier}", price_multiplier=multiplier), used)
        for number, multiplier in enumerate(multipliers, 1)
    ])  # fmt: skip
    (line,) = await ledger.usage(UsageQuery(start=T0, end=T0 + 86400))
    assert (line.requests, line.attempts, line.used.output, line.unpriced) == (5, 5, 25, 0)
    assert line.exact == {"USD": plain * sum(multipliers)}
    assert sum(tokens for tokens, _ in line.by_class.values()) == 5 * 35
    by_tier = await ledger.usage(UsageQuery(start=T0, end=T0 + 86400, group_by=("tier",)))
    assert {item.group["tier"]: item.exact["USD"] for item in by_tier} == {
        "x1": 2 * plain, **{f"x{multiplier}": multiplier * plain for multiplier in multipliers[2:]}
    }  # fmt: skip
    async with engine.connect() as connection:
        kept = await connection.execute(text("SELECT price_multiplier FROM usage_records ORDER BY started_at"))
        assert [row.price_multiplier for row in kept] == multipliers


async def test_a_record_without_a_multiplier_costs_its_price(engine: AsyncEngine) -> None:
    """The previous version of the program runs on the new schema, and its records name none."""
    ledger = Ledger(engine)
    await ledger.register_prices([price("v1", "6")])
    await ledger.insert([record(1)])
    async with engine.begin() as connection:
        columns = (await connection.execute(text(
            "SELECT string_agg(column_name, ', ') FROM information_schema.columns WHERE table_name = 'usage_records' "
            "AND column_name NOT IN ('price_multiplier', 'attempt') AND is_generated = 'NEVER'"
        ))).scalar_one()  # fmt: skip
        await connection.execute(text(
            f"INSERT INTO usage_records (attempt, {columns}) SELECT attempt + 1, {columns} FROM usage_records"
        ))  # fmt: skip
    (line,) = await ledger.usage(UsageQuery(start=T0, end=T0 + 86400))
    once = (20 * Decimal("1.5") + 10 * Decimal("0.15") + 30) / 1_000_000
    assert (line.attempts, line.exact) == (2, {"USD": 2 * once})


async def test_the_end_of_a_report_is_exclusive_and_nothing_makes_an_empty_one(engine: AsyncEngine) -> None:
    ledger = Ledger(engine)
    await ledger.insert([record(attempt(1), ended_at=T0 + 60)])
    assert await ledger.usage(UsageQuery(start=T0, end=T0 + 60)) == []
    assert len(await ledger.usage(UsageQuery(start=T0 + 60, end=T0 + 61))) == 1


async def test_records_are_durable_even_where_the_server_does_not_wait_for_its_disk(engine: AsyncEngine) -> None:
    async with engine.begin() as db:
        assert (await db.execute(text("SHOW synchronous_commit"))).scalar_one() == "off"
        for statement in (
            "CREATE TABLE seen AS SELECT ''::text AS setting",
            """CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               UPDATE seen SET setting = current_setting('synchronous_commit'); RETURN NULL; END $$""",
            "CREATE TRIGGER look AFTER INSERT ON usage_records EXECUTE FUNCTION look()",
        ):
            await db.execute(text(statement))
    await Ledger(engine).insert([record()])
    async with engine.connect() as db:
        assert (await db.execute(text("SELECT setting FROM seen"))).scalar_one() == "on"
        assert (await db.execute(text("SHOW synchronous_commit"))).scalar_one() == "off"


async def test_a_tenants_records_come_whole_and_in_order_however_many(engine: AsyncEngine) -> None:
    ledger = Ledger(engine)
    mine = [record(number, ended_at=T0 + number % 7) for number in range(1, 1202)]
    await ledger.insert([*reversed(mine), record(attempt(5000, tenant_id="ten_b"))])
    found = [row async for row in ledger.records_of("ten_a")]
    expected = sorted((one.ended_at, one.attempt.request_id) for one in mine)
    assert [(row["ended_at"].timestamp(), row["request_id"]) for row in found] == expected
    assert found[0]["billable_output"] == 5
    assert not {"pool", "endpoint"} & found[0].keys()
