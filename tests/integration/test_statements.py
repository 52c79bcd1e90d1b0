"""Statements over a real ledger: what is owed, what is frozen, and the records behind each line."""

import asyncio
import csv
import io
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Books, Included, Ledger, Plan, Price, Pricing, Quantities, StatementError, Statements
from forebay.platform.cli import main
from tests.doubles.engine.server import EngineDouble
from tests.integration.conftest import OpenDoor
from tests.metered import attempt, record

NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)


@pytest.fixture
async def statements(engine: AsyncEngine) -> Statements:
    ledger = Ledger(engine)
    await ledger.register_prices([Price("smol", "v1", 0.0, "USD", Decimal(1), Decimal(10), Decimal("0.1"), Decimal(1))])
    await ledger.insert([
        record(attempt(1), Quantities(20, 10, 0, 5, 2)),
        record(attempt(2, price_multiplier=Decimal("1.50")), Quantities(output=1_000_000)),
        record(attempt(3, tenant_id="ten_b"), Quantities(output=7)),
    ])  # fmt: skip
    return Statements(engine, "USD")


async def close(engine: AsyncEngine, period: date) -> None:
    async with engine.begin() as db:
        values = {"period": period}
        await db.execute(text("INSERT INTO billing_periods VALUES (:period, now(), 'test', 0, 0, '')"), values)


async def reverse(engine: AsyncEngine, number: int) -> None:
    """As a correction does."""
    async with engine.begin() as db:
        await db.execute(text("""
            INSERT INTO usage_records (request_id, attempt, entry, tenant_id, project_id, key_id, api, model, pool,
                endpoint, engine, stream, tier_requested, tier_used, price_version, price_multiplier, started_at,
                ended_at, status, terminated_by, measured, engine_input_uncached, engine_cache_read,
                engine_cache_write, engine_output, engine_reasoning, billable_input_uncached, billable_cache_read,
                billable_cache_write, billable_output, billable_reasoning)
            SELECT request_id, attempt, 1, tenant_id, project_id, key_id, api, model, pool,
                endpoint, engine, stream, tier_requested, tier_used, price_version, price_multiplier, started_at,
                ended_at, status, terminated_by, measured, 0, 0, 0, 0, 0, -billable_input_uncached,
                -billable_cache_read, -billable_cache_write, -billable_output, -billable_reasoning
            FROM usage_records WHERE request_id = :request
        """), {"request": attempt(number).request_id})


async def test_a_statement_is_a_tenants_month_line_by_line(statements: Statements) -> None:
    told = await statements.of("ten_a", NOVEMBER)
    assert not told.closed
    lines = told.statement.lines
    assert [(line.token_class, str(line.multiplier), line.tokens, str(line.amount)) for line in lines] == [
        ("cache_read", "1", 10, "0.000001"), ("input_uncached", "1", 20, "0.000020"), ("output", "1", 5, "0.000050"),
        ("output", "1.5", 1_000_000, "15.000000"),
    ]  # fmt: skip
    assert told.statement.total == Decimal("15.000071")


async def test_a_closed_statement_is_kept_and_what_comes_later_is_the_next_ones(
    statements: Statements, engine: AsyncEngine
) -> None:
    await close(engine, NOVEMBER)
    kept = await statements.of("ten_a", NOVEMBER)
    assert kept.closed
    await reverse(engine, 2)
    await Ledger(engine).insert([record(attempt(4), Quantities(output=100))])
    assert await statements.of("ten_a", NOVEMBER) == kept
    december = (await statements.of("ten_a", DECEMBER)).statement
    assert [(line.charge_month, line.late, line.tokens, str(line.amount)) for line in december.lines] == [
        (NOVEMBER, True, 100, "0.001000"), (NOVEMBER, True, -1_000_000, "-15.000000"),
    ]  # fmt: skip
    assert [one.statement.period for one in await statements.all_of("ten_a")] == [NOVEMBER, DECEMBER]


async def test_all_of_a_period_is_frozen_in_the_transaction_that_closes_it(
    statements: Statements, engine: AsyncEngine
) -> None:
    await Books(engine, closings=[statements]).close(NOVEMBER, "ann")
    async with engine.connect() as db:
        frozen = (await db.scalars(text("SELECT tenant_id FROM statements ORDER BY 1"))).all()
    assert frozen == ["ten_a", "ten_b"]
    for change in ("UPDATE statements SET total = 0", "DELETE FROM statements", "TRUNCATE statements"):
        with pytest.raises(DBAPIError, match="append-only"):
            async with engine.begin() as db:
                await db.execute(text(change))


async def test_a_statement_that_was_tampered_with_is_not_shown(statements: Statements, engine: AsyncEngine) -> None:
    await close(engine, NOVEMBER)
    await statements.of("ten_a", NOVEMBER)
    async with engine.begin() as db:
        await db.execute(text("SET LOCAL session_replication_role = replica"))  # triggers are off: a superuser's way
        await db.execute(text("UPDATE statements SET body = replace(body, '\"15.000000\"', '\"14.000000\"')"))
    with pytest.raises(StatementError, match="is not what was stored"):
        await statements.of("ten_a", NOVEMBER)


async def test_the_records_of_a_line_add_up_to_it(statements: Statements, engine: AsyncEngine) -> None:
    await close(engine, NOVEMBER)
    await reverse(engine, 2)
    for period in (NOVEMBER, DECEMBER):
        for line in (await statements.of("ten_a", period)).statement.lines:
            parts = await statements.parts("ten_a", line, period, 100)
            assert sum(part.tokens for part in parts) == line.tokens
    (part,) = parts
    assert (part.request_id, part.attempt, part.entry) == (attempt(2).request_id, 1, 1)


async def test_closed_months_take_no_price_and_no_plan(engine: AsyncEngine) -> None:
    pricing = Pricing(engine, "USD")
    given = (Included("smol", "output", 1_000_000),)
    await pricing.add_plan(Plan("ten_a", "one", date(2099, 1, 1), "USD", Decimal(3), given))
    await close(engine, date(2099, 2, 1))
    with pytest.raises(ValueError, match="2099-02 is closed; begin after it"):
        await pricing.add_plan(Plan("ten_a", "two", date(2099, 2, 1), "USD"))
    begins = 4_073_500_000.0  # in January 2099
    one = Decimal(1)
    with pytest.raises(ValueError, match="2099-01 is closed"):
        await pricing.add_override(Price("smol", "own", begins, "USD", one, one, one, one, "ten_a"))


async def test_the_command_shows_lists_and_explains(
    statements: Statements, database: str, tmp_path: Path
) -> None:
    config = tmp_path / "forebay.yaml"
    config.write_text(f"apiVersion: forebay.dev/v1\nstores: {{postgres: '{database}'}}\n")

    async def run(*arguments: str) -> Result:
        given = ["statement", *arguments, "--config", str(config)]
        return await asyncio.to_thread(CliRunner(env={"COLUMNS": "160"}).invoke, main, given)

    shown = await run("show", "ten_a", "2026-11")
    assert "total 15.000071 USD, open, sha256 " in shown.output
    rows = list(csv.DictReader(io.StringIO((await run("show", "ten_a", "2026-11", "--csv")).output)))
    assert sum(Decimal(row["amount"]) for row in rows) == Decimal("15.000071")
    told = msgspec.json.decode((await run("show", "ten_a", "2026-11", "--json")).output)
    assert told["statement"]["total"] == "15.000071"
    assert "2026-11" in (await run("list", "ten_a")).output
    explained = (await run("explain", "ten_a", "2026-11", "4")).output
    assert attempt(2).request_id in explained
    assert "there is no line 9" in (await run("explain", "ten_a", "2026-11", "9")).output


async def test_a_tenant_sees_its_own_statement_and_an_operator_any(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        assert (await door.chat()).status_code == 200
        await door.records(1)
        (summary,) = (await door.http.get("/v1/organization/statements")).json()["data"]
        assert summary["status"] == "open"
        at = f"/v1/organization/statements/{summary['period']}"
        mine: dict[str, Any] = (await door.http.get(at)).json()
        assert sum(Decimal(line["amount"]) for line in mine["lines"]) == Decimal(mine["total"]) > 0
        line = (await door.http.get(f"{at}/lines/1")).json()
        assert len(line["records"]) == 1
        tenant = (await door.service.tenancy.key(door.key_id)).tenant_id
        secret = (await door.service.tenancy.create_admin_key()).secret
        operators = await door.http.get(
            f"/admin/v1/tenants/{tenant}/statements/{summary['period']}", headers={"authorization": f"Bearer {secret}"}
        )
        assert operators.json() == mine
        stranger = {"authorization": f"Bearer {await door.new_key()}"}
        assert (await door.http.get("/v1/organization/statements", headers=stranger)).json()["data"] == []
        odd = await door.http.get("/v1/organization/statements/2026-13")
        assert (odd.status_code, odd.json()["error"]["param"]) == (400, "period")
