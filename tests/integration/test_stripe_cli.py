"""`forebay stripe`, against the double."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import insert

from forebay.platform.cli.stripe import stripe
from forebay.platform.stores.database import create_engine
from forebay.platform.tenancy.tables import tenants
from tests.doubles.stripe.server import KEY, StripeDouble, serving
from tests.integration.told import stocked, telling

Run = Callable[..., Result]


@pytest.fixture
def double() -> Iterator[StripeDouble]:
    double = stocked()
    double._frozen = None  # by the machine's time, as the commands are
    with serving(double):
        yield double


@pytest.fixture
def hour() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)


@pytest.fixture
def run(database: str, double: StripeDouble, tmp_path: Path, hour: datetime) -> Run:
    asyncio.run(_fill(database, double, hour))
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    config = tmp_path / "forebay.yaml"
    config.write_text(
        f"apiVersion: forebay.dev/v1\nstores: {{postgres: '{database}'}}\n"
        f"stripe: {{secretKey: '{key}', since: '{hour - timedelta(days=2):%Y-%m-%dT%H:%M:%SZ}', "
        f"apiBase: '{double.url}', meterEventsBase: '{double.url}'}}\n"
    )

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(stripe, [*arguments, "--config", str(config)])

    return run


async def _fill(database: str, double: StripeDouble, hour: datetime) -> None:
    async with telling(database, double) as told:
        await told.use(hour, output=1_500, input_uncached=10)
        await told.use(hour, "ten_b", output=7)
    engine = create_engine(database)
    async with engine.begin() as connection:
        await connection.execute(insert(tenants).values({"id": "ten_a", "name": "Acme", "status": "active"}))
    await engine.dispose()


def test_from_nothing_to_equal(run: Run, double: StripeDouble) -> None:
    shown = run("sync")
    assert shown.exit_code == 0, shown.output
    assert "told: 0" in shown.output
    assert "mapped to no meter (forebay stripe map model)" in shown.output
    assert run("map", "model", "smol", "output", "output").exit_code == 0
    assert run("map", "model", "smol", "input_uncached", "--none").exit_code == 0
    lines = [line.split() for line in run("sync").output.splitlines()]
    assert ["customer", "ten_a", "smol", "default", "output", "1500"] in lines
    mapped = run("map", "tenant", "Acme", "cus_1", "--json")
    assert json.loads(mapped.output)["tenant_id"] == "ten_a"
    assert run("map", "tenant", "ten_b", "--none").exit_code == 0
    status = json.loads(run("status", "--json").output)
    assert [(one["tenant"], one["tokens"]) for one in status["outstanding"]] == [("ten_a", 1500)]
    assert "told: 1 " in run("sync").output
    assert "told: 0 " in run("sync").output
    assert run("status").output == "Stripe was told everything.\n"
    compared = run("reconcile")
    assert (compared.exit_code, "1,500 tokens" in compared.output, "equal" in compared.output) == (0, True, True)
    listed = run("map").output
    assert "cus_1" in listed
    assert "any" in listed


def test_a_difference_is_named_and_can_be_resolved(run: Run, double: StripeDouble) -> None:
    run("map", "model", "smol", "output", "output")
    run("map", "tenant", "Acme", "cus_1")
    run("sync")
    event = double.metering.events[-1]
    event.counted = False  # as if Stripe had refused it, and told nobody
    shown = run("reconcile")
    assert shown.exit_code == 1
    assert f"told 1,500, counted 0; suspect {event.identifier}" in shown.output
    answer = json.loads(run("resolve", event.identifier, "--as", "void", "--json").output)
    assert answer["state"] == "void"
    assert "told: 1 " in run("sync").output
    assert sum(int(one.value) for one in double.metering.events if one.counted) == 1500


@pytest.mark.parametrize(("arguments", "problem"), [
    (("map", "tenant", "Acme", "cus_9"), "Stripe has no customer 'cus_9'"),
    (("map", "tenant", "Nobody", "cus_1"), "there is no tenant 'Nobody'"),
    (("map", "tenant", "Acme"), "give a customer (cus_…), or --none"),
    (("map", "tenant", "Acme", "cus_1", "--from", "2026-12-01T00:30"), "whole hours"),
    (("map", "model", "smol", "output", "words"), "Stripe has no meter with the event name 'words'"),
    (("map", "model", "smol", "reasoning", "output"), "'reasoning' is not one of"),
    (("resolve", "fb_nothing", "--as", "void"), "there is no posting 'fb_nothing'"),
])  # fmt: skip
def test_what_is_wrong_is_said(run: Run, arguments: tuple[str, ...], problem: str) -> None:
    shown = run(*arguments)
    assert shown.exit_code != 0
    assert problem in shown.output


def test_meters_must_add_up(run: Run, double: StripeDouble) -> None:
    double.metering.create_meter(
        {"display_name": "x", "event_name": "newest", "default_aggregation": {"formula": "last"}}
    )
    assert "aggregates by last" in run("map", "model", "smol", "output", "newest").output
    double.metering.meters["mtr_1"]["status"] = "inactive"
    assert "not active" in run("map", "model", "smol", "output", "input").output


def test_stripe_away(run: Run, double: StripeDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.metering.stripe.stream._TRIES", 1)
    double.fail("/v1/billing/meters", "500")
    shown = run("sync")
    assert shown.exit_code == 1
    assert "what was not told is told later" in shown.output


def test_a_key_that_others_can_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "key").chmod(0o644)
    shown = run("sync")
    assert shown.exit_code == 1
    assert "can be read by others" in shown.output
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "key").write_text("pk_live_secret\n")
    shown = run("sync")
    assert "write sk_… or rk_…" in shown.output
    assert "secret\n" not in shown.output


def test_without_the_library_the_command_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stripe", None)
    shown = run("sync")
    assert shown.exit_code == 1
    assert "install forebay[stripe]" in shown.output


def test_without_a_section_the_command_says_so(database: str, tmp_path: Path) -> None:
    config = tmp_path / "forebay.yaml"
    config.write_text(f"apiVersion: forebay.dev/v1\nstores: {{postgres: '{database}'}}\n")
    shown = CliRunner().invoke(stripe, ["sync", "--config", os.fspath(config)])
    assert "no stripe: section" in shown.output


