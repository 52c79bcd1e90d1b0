"""`forebay ledger` over a real ledger."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from forebay.metering import Ledger
from forebay.platform.cli.ledger import ledger
from forebay.platform.stores.database import create_engine
from tests.metered import attempt, record

REQUEST = f"req_{1:032x}"


async def fill(url: str) -> None:
    engine = create_engine(url)
    await Ledger(engine).insert([record(attempt(1, started_at=1_790_848_800.0))])  # October 2026
    await engine.dispose()


@pytest.fixture
def run(database: str, tmp_path: Path) -> Any:
    asyncio.run(fill(database))
    config = tmp_path / "forebay.yaml"
    config.write_text(f"apiVersion: forebay.dev/v1\nstores: {{postgres: '{database}'}}\n")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(ledger, [*arguments, "--config", str(config)])

    return run


def test_a_month_is_closed_and_corrected_in_the_next(run: Any) -> None:
    closed = run("close", "2026-10", "--by", "ann")
    assert (closed.exit_code, closed.output) == (0, "closed 2026-10: 1 requests, 1 attempts\n")
    corrected = run("correct", REQUEST, "--output", "0", "--reason", "empty")
    assert corrected.output == "output: 5 -> 0, billed in 2026-11\n"
    found = json.loads(run("periods", "--json").output)
    assert [(one["period"], one["closed"], one["requests"]) for one in found] == [
        ("2026-10", True, 1), ("2026-11", False, 0)
    ]  # fmt: skip
    assert run("verify").output == "the rollup is what the records say\n"
    assert run("rebuild", "--period", "2026-11").output == "rebuilt: 1 rows\n"
    assert "2026-10  closed" in run("periods").output


@pytest.mark.parametrize(("arguments", "status", "says"), [
    (("close", "2026-13"), 2, "is not a period; write a month as 2026-11"),
    (("close", "2400-01"), 1, "is not over (UTC)"),
    (("correct", REQUEST, "--reason", "x"), 2, "name at least one count"),
    (("correct", REQUEST, "--output", "-1", "--reason", "x"), 1, "output must be from 0"),
    (("correct", "req_0", "--output", "1", "--reason", "x"), 1, "has no attempt 1 of request 'req_0'"),
    (("correct", REQUEST, "--output", "1", "--reason", " "), 1, "'reason' must say something"),
])  # fmt: skip
def test_what_cannot_be_done_is_explained(run: Any, arguments: tuple[str, ...], status: int, says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == status
    assert says in result.output
