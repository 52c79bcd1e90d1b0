"""`forebay serve` where something it needs is away, wrong or taken: it waits in words, or ends with one clear line."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from forebay.platform.local.probe import any_port
from forebay.platform.stores.contact import first_contact
from forebay.platform.stores.daemon import StoreError
from forebay.platform.stores.database import create_engine

NOBODY = "postgresql://forebay:s3cret@127.0.0.1:1/forebay"


def configuration(state: Path, postgres: str, **price: str) -> Path:
    price = {"version": "v1", "effectiveFrom": "2026-01-01T00:00:00Z", "input": "0.5", "output": "1.5", **price}
    config = {
        "apiVersion": "forebay.dev/v1",
        "server": {"port": any_port()},
        "stores": {"postgres": postgres, "valkey": "valkey://127.0.0.1:1/0", "stateDir": str(state)},
        "pools": [{"name": "main", "endpoints": [{"url": "http://127.0.0.1:1"}]}],
        "models": [{"name": "m", "pool": "main", "prices": [price]}],
    }
    path = state / f"forebay-{os.urandom(4).hex()}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@asynccontextmanager
async def serve(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay.platform.cli", "serve", "--config", str(path),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), 15)


async def until(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        while text not in (line := (await process.stdout.readline()).decode()):
            assert line, f"ended before it said {text!r}"


async def last_line(path: Path) -> str:
    """What a start that fails says last; it exits with 1, and shows no traceback."""
    async with serve(path) as process:
        out, _ = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 1, out
    assert b"Traceback" not in out
    return out.decode().splitlines()[-1]


async def test_a_price_that_changed_under_its_version_is_refused(database: str, tmp_path: Path) -> None:
    async with serve(configuration(tmp_path, database)) as process:
        await until(process, "Forebay serves")
    said = await last_line(configuration(tmp_path, database, input="0.6"))
    assert said.startswith("Error: price version 'v1' of model 'm' is registered with input 0.5")


async def test_a_state_directory_has_one_front_door(database: str, tmp_path: Path) -> None:
    async with serve(configuration(tmp_path, database)) as process:
        await until(process, "Forebay serves")
        assert "belongs to another running process" in await last_line(configuration(tmp_path, database))


async def test_a_state_directory_that_cannot_hold_the_spool_is_named(database: str, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("in the way")
    assert str(tmp_path / "spool") in await last_line(configuration(tmp_path, database))


async def test_sigterm_ends_the_wait_for_postgres(tmp_path: Path) -> None:
    async with serve(configuration(tmp_path, NOBODY)) as process:
        await until(process, "waiting for Postgres")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 5) == 0


@pytest.mark.parametrize(("change", "reason"), [
    (lambda url: url.set(database="nope"), 'database "nope" does not exist'),
    (lambda url: url.set(username="nobody"), "nobody"),
])  # fmt: skip
async def test_an_account_or_a_database_that_is_not_there_is_not_waited_for(
    database: str, change: Callable[[Any], Any], reason: str
) -> None:
    engine = create_engine(change(make_url(database)).render_as_string(False))
    with pytest.raises(StoreError, match=reason):
        await asyncio.wait_for(first_contact(engine), 5)
    await engine.dispose()


async def test_the_wait_for_postgres_ends_and_keeps_the_password(caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(NOBODY)
    with pytest.raises(StoreError, match="no answer within 1 s"):
        await asyncio.wait_for(first_contact(engine, wait=1.0), 10)
    await engine.dispose()
    assert "waiting for Postgres" in caplog.text
    assert "s3cret" not in caplog.text
