"""Stores that stop and return while a tenant does its worst: others are answered, and every answer is recorded."""

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from forebay.platform.stores import embedded
from tests.bench.seen import exposed, get, total
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.hostile import CHAT, chat, send_unread
from tests.integration.test_outage import MODEL, booked, loaded, until_store
from tests.processes import Door, front_door, make_key
from tests.stores import Databases, state_directory

SLOWLY = Settings(token_seconds=0.01, answer_tokens=None, max_running=1000, cache_blocks=20_000)
BOUNDS = {"maxInFlightPerProject": 64, "stallTimeout": 2.0}
WIDE = Fault(kind="large_frame", size=2_000_000, after=3, path="/v1/chat", stream=True, probability=0.2)


def _request(key: str, body: bytes) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def besieged(door: Door, key: str) -> AsyncIterator[None]:
    """Meanwhile one tenant opens streams that it does not read, leaves at random, and retries all at once."""
    over = False

    async def hold(number: int) -> None:
        while not over:
            with socket.socket() as end, contextlib.suppress(OSError):
                await send_unread(end, door.port, _request(key, chat(stream=True, max_tokens=2000)))
                await asyncio.sleep(1 + number % 3)

    async def come_and_go(number: int) -> None:
        chance = random.Random(number)
        while not over:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                writer.write(_request(key, chat(stream=number % 2 == 0, max_tokens=50)))
                if number % 3:
                    await asyncio.sleep(chance.random() * 0.3)
                else:
                    await reader.read(4096)
                writer.transport.abort()

    tasks = [asyncio.create_task(hold(n)) for n in range(20)]
    tasks += [asyncio.create_task(come_and_go(n)) for n in range(20)]
    try:
        await asyncio.sleep(1.0)
        yield
    finally:
        over = True
        for task in tasks[:20]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _rests(door: Door) -> bool:
    """Nothing is booked, open or held."""
    seen = exposed(await get(door.url, "/metrics"))
    return not any(
        total(seen, name)
        for name in (
            "forebay_requests_in_flight", "forebay_endpoint_in_flight", "forebay_requests_waiting",
            "forebay_spool_open_attempts", "forebay_spool_unshipped_records", "forebay_held_bytes",
        )
    )  # fmt: skip


async def test_postgres_stops_and_returns_under_siege() -> None:
    with state_directory() as state:
        server = await asyncio.to_thread(embedded.start_postgres, state, fast=True)
        database = await asyncio.to_thread(Databases(server).create)
        (state / "door").mkdir()
        async with (
            EngineDouble(SLOWLY, faults=(WIDE,)) as bad,
            EngineDouble(SLOWLY) as engine,
            front_door(
                state / "door", [engine.url, bad.url], model=MODEL, postgres=database, valkey="valkey://127.0.0.1:1/0",
                server=BOUNDS,
            ) as door,
        ):  # fmt: skip
            async with loaded(door) as load, besieged(door, await make_key(state / "door", database)):
                assert server.process
                server.process.kill()
                await asyncio.to_thread(server.process.wait)
                await until_store(door, "postgres", "down")
                before = len(load.answered)
                await eventually(lambda: len(load.answered) > before + 20, 20.0)
                again = await asyncio.to_thread(embedded.start_postgres, state, fast=True)
                await until_store(door, "postgres", "up")
            assert not load.refused
            await eventually(lambda: _rests(door), 20.0, every=0.2)
            found = await booked(database)
            assert len(found) == len(set(found))
            assert set(load.answered) <= set(found)
        await asyncio.to_thread(server.release)
        await asyncio.to_thread(again.release)


async def test_valkey_stops_and_returns_under_siege(database: str, tmp_path: Path) -> None:
    with state_directory() as state, embedded.start_valkey(state) as server:
        async with (
            EngineDouble(SLOWLY, faults=(WIDE,)) as bad,
            EngineDouble(SLOWLY) as engine,
            front_door(
                tmp_path, [engine.url, bad.url], model=MODEL, postgres=database, valkey=server.url, server=BOUNDS
            ) as door,
        ):
            async with loaded(door) as load, besieged(door, await make_key(tmp_path, database)):
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    await until_store(door, "valkey", "down")
                    before = len(load.answered)
                    await eventually(lambda: len(load.answered) > before + 20, 20.0)
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                await until_store(door, "valkey", "up")
            assert not load.refused
            await eventually(lambda: _rests(door), 20.0, every=0.2)
            found = await booked(database)
            assert len(found) == len(set(found))
            assert set(load.answered) <= set(found)
