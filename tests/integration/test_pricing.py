"""Prices and plans of tenants: set by an operator, in force at the front door, kept for ever."""

import asyncio
import csv
import io
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Ledger, Price, Quantities
from forebay.platform.cli import main
from forebay.platform.stores.database import create_engine
from forebay.platform.tenancy.principal import Scope
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.test_usage_cli import name_tenants
from tests.metered import T0, attempt, record

ACME = f"ten_{0:024x}"


async def admin(door: Door) -> httpx.AsyncClient:
    secret = (await door.service.tenancy.create_admin_key()).secret
    return httpx.AsyncClient(base_url=f"{door.url}/admin/v1", headers={"authorization": f"Bearer {secret}"})


async def tenant_of(door: Door) -> str:
    key = await door.service.tenancy.key(door.key_id)
    assert key.tenant_id is not None
    return key.tenant_id


def override(version: str = "own", **changes: Any) -> dict[str, Any]:
    given = {"model": MODEL, "version": version, "effective_from": time.time(), "input": "0.25", "output": "1"}
    return {**given, **changes}


async def test_an_override_is_what_the_next_request_is_charged_and_only_its_tenants(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door, await admin(door) as operator:
        assert (await door.chat()).status_code == 200
        answer = await operator.post(f"/tenants/{await tenant_of(door)}/prices", json=override())
        assert answer.status_code == 201, answer.text
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        await eventually(lambda: door.service.auth.feed.contact > began)
        assert (await door.chat()).status_code == 200
        stranger = await door.new_key((Scope.INFERENCE,))
        other = await door.http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": [{"role": "user", "content": "hello"}]},
            headers={"authorization": f"Bearer {stranger}"},
        )  # fmt: skip
        assert other.status_code == 200
        assert [row["price_version"] for row in await door.records(3)] == ["v1", "own", "v1"]


async def test_an_override_that_begins_later_is_known_before(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door, await admin(door) as operator:
        at = f"/tenants/{await tenant_of(door)}/prices"
        begins = time.time() + 86_400
        assert (await operator.post(at, json=override(effective_from=begins))).status_code == 201
        found = (await operator.get(at)).json()["data"]
        assert [(one["version"], one["effective_from"], one["cache_read"]) for one in found] == [
            ("own", pytest.approx(begins), "0.25")
        ]
        principal = await door.service.auth.authenticate(door.key.encode())
        assert [one.version for one in principal.prices] == ["own"]
        assert (await door.chat()).status_code == 200
        assert (await door.records(1))[0]["price_version"] == "v1"


@pytest.mark.parametrize(("changes", "param", "says"), [
    ({"version": "v1"}, "version", "of the catalogue"),
    ({"currency": "EUR"}, "currency", "everything here is priced in USD"),
    ({"effective_from": 1_700_000_000}, "effective_from", "which has passed"),
    ({"input": "-1"}, "input", "between 0 and"),
    ({"model": "smollm2-135m-instruc"}, None, "smollm2-135m-instruct"),
    ({"version": " "}, "version", "1 to 128 printable characters"),
    ({"inptu": "1"}, "inptu", "Did you mean 'input'?"),
])  # fmt: skip
async def test_what_cannot_be_a_price_is_refused_and_changes_nothing(
    open_door: OpenDoor, changes: dict[str, Any], param: str | None, says: str
) -> None:
    async with EngineDouble() as engine, open_door(engine) as door, await admin(door) as operator:
        at = f"/tenants/{await tenant_of(door)}/prices"
        answer = await operator.post(at, json=override(**changes))
        error = answer.json()["error"]
        assert answer.status_code == 400, answer.text
        assert says in error["message"]
        if param is not None:
            assert error["param"] == param
        assert (await operator.get(at)).json()["data"] == []


async def test_plans_are_added_and_listed(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door, await admin(door) as operator:
        at = f"/tenants/{await tenant_of(door)}/plans"
        included = [{"model": MODEL, "token_class": "output", "tokens": 1000}]
        body = {"version": "basic", "effective_from": "2027-01-01", "minimum": "25", "included": included}
        assert (await operator.post(at, json=body)).status_code == 201
        assert (await operator.post(at, json=body)).status_code == 201  # twice is once
        (found,) = (await operator.get(at)).json()["data"]
        assert (found["version"], found["minimum"], found["included"]) == ("basic", "25", included)
        late = await operator.post(at, json={**body, "version": "next", "effective_from": "2027-01-15"})
        assert late.json()["error"]["param"] == "effective_from"


async def test_prices_and_plans_never_change(engine: AsyncEngine) -> None:
    for statement in ("UPDATE plan_versions SET minimum = 0", "TRUNCATE plan_versions", "DELETE FROM price_versions"):
        with pytest.raises(DBAPIError, match="append-only"):
            async with engine.begin() as db:
                await db.execute(text(statement))


async def fill(url: str) -> None:
    engine = create_engine(url)
    ledger = Ledger(engine)
    listed = Price("smol", "v1", 0.0, "USD", Decimal(1), Decimal(10), Decimal("0.1"), Decimal(1))
    await ledger.register_prices([listed])
    await ledger.insert([
        record(attempt(1, tenant_id=ACME), Quantities(20, 10, 0, 5, 2)),
        record(attempt(2, tenant_id="ten_b", project_id="proj_b"), Quantities(1_000_000, 0, 0, 1)),
        record(attempt(3, tenant_id=ACME, started_at=T0 + 7200), Quantities(6, 0, 0, 1)),
    ])  # fmt: skip
    await engine.dispose()


@pytest.fixture
async def run(database: str, tmp_path: Path) -> Any:
    await fill(database)
    await name_tenants(database, **{ACME: "acme"})
    config = tmp_path / "forebay.yaml"
    config.write_text(
        f"apiVersion: forebay.dev/v1\nstores: {{postgres: '{database}', stateDir: '{tmp_path}'}}\ncurrency: USD\n"
    )

    def run(*arguments: str) -> Result:
        return CliRunner(env={"COLUMNS": "160"}).invoke(main, [*arguments, "--config", str(config)])

    return run


async def in_thread(run: Any, *arguments: str) -> Result:
    found: Result = await asyncio.to_thread(run, *arguments)
    return found


AMOUNTS = ("--model", "smol", "--input", "2", "--output", "10")


async def test_the_command_sets_lists_and_previews(run: Any) -> None:
    done = await in_thread(run, "price", "set", "acme", *AMOUNTS, "--version", "acme-1", "--cache-read", "0.2")
    assert done.exit_code == 0, done.output
    listed = await in_thread(run, "price", "list", "--tenant", "acme", "--json")
    assert [(one["version"], one["tenant_id"], one["cache_read"]) for one in msgspec.json.decode(listed.output)] == [
        ("v1", "", "0.1"), ("acme-1", ACME, "0.2"),
    ]  # fmt: skip
    preview = await in_thread(run, "price", "preview", *AMOUNTS, "--since", "2026-10-01", "--csv")
    rows = list(csv.DictReader(io.StringIO(preview.output)))
    assert {(row["tenant"], row["class"]): (row["charged"], row["draft"], row["change"]) for row in rows} == {
        (ACME, "input_uncached"): ("0.000026", "0.000052", "0.000026"),
        (ACME, "cache_read"): ("0.000001", "0.000020", "0.000019"),
        (ACME, "output"): ("0.000060", "0.000060", "0.000000"),
        ("ten_b", "input_uncached"): ("1.000000", "2.000000", "1.000000"),
        ("ten_b", "output"): ("0.000010", "0.000010", "0.000000"),
    }
    one = await in_thread(run, "price", "preview", *AMOUNTS, "--since", "2026-10-01", "--tenant", "acme")
    assert "acme" in one.output
    assert "ten_b" not in one.output


async def test_the_command_refuses_in_one_line(run: Any) -> None:
    past = await in_thread(run, "price", "set", "acme", *AMOUNTS, "--version", "x", "--from", "2026-01-01")
    assert past.exit_code == 1
    assert "which has passed" in past.output
    odd = await in_thread(run, "price", "set", "acme", "--model", "smol", "--input", "a", "--output", "1")
    assert "'a' is not a decimal amount like 0.15" in odd.output


async def test_the_command_sets_and_lists_plans(run: Any) -> None:
    done = await in_thread(
        run, "plan", "set", "acme", "--version", "basic", "--from", "2027-01", "--minimum", "25",
        "--include", "smol:output:1000000",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    listed = (await in_thread(run, "plan", "list", "acme")).output
    assert all(part in listed for part in ("basic", "2027-01-01", "25", "smol:output:1000000", "USD"))
    odd = await in_thread(run, "plan", "set", "acme", "--version", "b", "--from", "2027-13")
    assert "'2027-13' is not a month like 2026-12" in odd.output
