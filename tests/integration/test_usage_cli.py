"""`forebay usage` over a real ledger."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import insert

from forebay.metering import Ledger, Price, Quantities
from forebay.platform.cli.usage import usage
from forebay.platform.stores.database import create_engine
from forebay.platform.tenancy.tables import tenants
from tests.metered import T0, attempt, record


async def fill(url: str) -> None:
    engine = create_engine(url)
    ledger = Ledger(engine)
    charged, output, read, write = (Decimal(text) for text in ("1", "10", "0.1", "1"))
    await ledger.register_prices([Price("smol", "v1", 0.0, "USD", charged, output, read, write)])
    await ledger.insert([
        record(attempt(1), Quantities(20, 10, 0, 5, 2)),
        record(attempt(2, tenant_id="ten_b", project_id="proj_b"), Quantities(1_000_000, 0, 0, 1)),
        record(attempt(3, started_at=T0 + 7200), Quantities(6, 0, 0, 1)),
    ])  # fmt: skip
    await engine.dispose()


async def name_tenants(url: str, **names: str) -> None:
    engine = create_engine(url)
    async with engine.begin() as db:
        rows = [{"id": tenant, "name": name, "status": "active"} for tenant, name in names.items()]
        await db.execute(insert(tenants).values(rows))
    await engine.dispose()


@pytest.fixture
def run(database: str, tmp_path: Path) -> Any:
    asyncio.run(fill(database))
    config = tmp_path / "forebay.yaml"
    config.write_text(f"apiVersion: forebay.dev/v1\nstores: {{postgres: '{database}'}}\n")

    def run(*arguments: str, columns: str = "160") -> Result:
        return CliRunner(env={"COLUMNS": columns}).invoke(usage, [*arguments, "--config", str(config)])

    return run


def test_the_table_shows_each_tenant_and_the_sum(run: Any) -> None:
    result = run("--since", "2026-10-01")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines() if line.strip()]
    assert ["ten_a", "smol", "2", "26", "10", "0", "6", "0.000087", "USD"] in rows
    assert ["ten_b", "smol", "1", "1,000,000", "0", "0", "1", "1.000010", "USD"] in rows
    assert ["total", "3", "1,000,026", "10", "0", "7", "1.000097", "USD"] in rows


def test_json_is_exact_and_filtered(run: Any) -> None:
    result = run("--since", str(int(T0)), "--tenant", "ten_a", "--group-by", "project,hour", "--json")
    answer = json.loads(result.output)
    assert [(line["start"], line["project"], line["output_tokens"]) for line in answer["lines"]] == [
        ("2026-11-01T00:00:00+00:00", "proj_a", 5), ("2026-11-01T02:00:00+00:00", "proj_a", 1)
    ]  # fmt: skip
    assert answer["total"]["cost"] == {"USD": "0.000087"}
    assert (answer["total"]["requests"], answer["total"]["cache_read_tokens"]) == (2, 10)


@pytest.mark.parametrize(("arguments", "says"), [
    (("--since", "last week"), "neither a time like"),
    (("--since", "99999w"), "out of range"),
    (("--since", "999999999999999999"), "out of range"),
    (("--group-by", "user"), "'user' is not a group"),
    (("--group-by", "hour,day"), "one time unit is enough"),
    (("--since", "1h", "--until", "2h"), "--until must be after --since"),
])  # fmt: skip
def test_what_cannot_be_meant_is_explained(run: Any, arguments: tuple[str, ...], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_nothing_used_is_said_so(run: Any) -> None:
    assert "No usage in this time." in run("--since", "2020-01-01", "--until", "2020-01-02").output


def test_a_narrow_terminal_cuts_and_wraps_nothing(run: Any) -> None:
    wide = run("--since", "2026-10-01", "--group-by", "tenant,project,key,model,hour")
    narrow = run("--since", "2026-10-01", "--group-by", "tenant,project,key,model,hour", columns="40")
    assert narrow.output == wide.output
    assert "…" not in narrow.output


def test_tenants_go_by_name_in_the_table_and_by_id_in_json(run: Any, database: str) -> None:
    asyncio.run(name_tenants(database, ten_a="Acme Corp"))
    assert "Acme Corp  smol" in run("--since", "2026-10-01").output
    assert "ten_b " in run("--since", "2026-10-01").output  # nobody knows its name
    named = run("--since", "2026-10-01", "--tenant", "Acme Corp", "--tenant", "ten_b", "--json")
    assert [line["tenant"] for line in json.loads(named.output)["lines"]] == ["ten_a", "ten_b"]
    unknown = run("--since", "2026-10-01", "--tenant", "Acme")
    assert (unknown.exit_code, unknown.output.strip()) == (1, "Error: there is no tenant 'Acme'")
