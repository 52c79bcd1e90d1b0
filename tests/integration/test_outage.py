"""Stores that are killed or hang while requests run, and a disk that fills: nobody notices but /health."""

import asyncio
import os
import resource
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from forebay.platform.stores import embedded
from forebay.platform.stores.database import create_engine
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.processes import Door, front_door, make_key
from tests.stores import Databases, state_directory

MODEL = "smollm2-135m-instruct"
NOWHERE = "valkey://127.0.0.1:1/0"


class Load:
    """Twelve clients that ask without pause; `answered` are the ids of whole answers, `refused` the errors' codes."""

    def __init__(self, door: Door) -> None:
        self.answered: list[str] = []
        self.refused: Counter[str] = Counter()
        self.stop = False
        self._http = httpx.AsyncClient(base_url=door.url, headers={"authorization": f"Bearer {door.key}"}, timeout=30.0)

    async def run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(12)))
        await self._http.aclose()

    async def _client(self, number: int) -> None:
        while not self.stop:
            messages = [{"role": "user", "content": f"{number} {len(self.answered)}"}]
            body = {"model": MODEL, "messages": messages, "max_tokens": 20, "stream": number % 2 == 0}
            response = await self._http.post("/v1/chat/completions", json=body)
            if response.status_code == 200 and '"error"' not in response.text:
                self.answered.append(response.headers["x-request-id"])
            else:
                self.refused[response.text] += 1
                await asyncio.sleep(0.05)


@asynccontextmanager
async def loaded(door: Door) -> AsyncIterator[Load]:
    load = Load(door)
    task = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(0.5)
        yield load
    finally:
        load.stop = True
        await asyncio.wait_for(task, 30)


async def get(door: Door, path: str, key: str = "none") -> httpx.Response:
    async with httpx.AsyncClient(base_url=door.url, headers={"authorization": f"Bearer {key}"}) as client:
        return await client.get(path)


async def until_store(door: Door, name: str, status: str) -> None:
    async def reported() -> bool:
        return bool((await get(door, "/health")).json()["stores"][name]["status"] == status)

    await eventually(reported, every=0.1)


async def until_status(status: int, door: Door, path: str, key: str = "none") -> httpx.Response:
    async def answered() -> httpx.Response | None:
        response = await get(door, path, key)
        return response if response.status_code == status else None

    response = await eventually(answered, every=0.1)
    assert response is not None
    return response


async def booked(database: str) -> list[str]:
    engine = create_engine(database)
    async with engine.connect() as db:
        found = [row.request_id for row in await db.execute(text("SELECT request_id FROM usage_records"))]
    await engine.dispose()
    return found


async def all_booked(database: str, ids: list[str]) -> bool:
    """Every one of `ids` has exactly one record, and nothing else has any."""
    return sorted(await booked(database)) == sorted(ids)


async def test_postgres_killed_while_requests_run_costs_neither_requests_nor_records() -> None:
    with state_directory() as state:
        server = await asyncio.to_thread(embedded.start_postgres, state, fast=True)
        database = await asyncio.to_thread(Databases(server).create)
        (state / "door").mkdir()
        async with (
            EngineDouble(token_seconds=0.01, answer_tokens=None) as engine,
            front_door(state / "door", [engine.url], model=MODEL, postgres=database, valkey=NOWHERE) as door,
        ):
            stranger = await make_key(state / "door", database)
            async with loaded(door) as load:
                assert server.process
                server.process.kill()
                await asyncio.to_thread(server.process.wait)
                await until_store(door, "postgres", "down")
                assert (await get(door, "/ready")).status_code == 200
                assert (await get(door, "/v1/models", stranger)).status_code == 503
                again = await asyncio.to_thread(embedded.start_postgres, state, fast=True)
                await until_store(door, "postgres", "up")
                await until_status(200, door, "/v1/models", stranger)
            assert not load.refused
            await eventually(lambda: all_booked(database, load.answered), timeout=10.0, every=0.2)
        await asyncio.to_thread(server.release)
        await asyncio.to_thread(again.release)  # the last holder, which also started it


async def test_a_valkey_that_hangs_is_noticed_only_by_health(database: str, tmp_path: Path) -> None:
    with state_directory() as state, embedded.start_valkey(state) as server:
        async with (
            EngineDouble(token_seconds=0.01, answer_tokens=None) as engine,
            front_door(tmp_path, [engine.url], model=MODEL, postgres=database, valkey=server.url) as door,
        ):
            async with loaded(door) as load:
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    await until_store(door, "valkey", "down")
                    assert (await get(door, "/ready")).status_code == 200
                finally:
                    os.kill(server.pid, signal.SIGCONT)
            assert not load.refused


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs another process's limits")
async def test_a_full_disk_refuses_new_requests_and_loses_nothing(database: str, tmp_path: Path) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    async with (
        EngineDouble(token_seconds=0.01, answer_tokens=None) as engine,
        front_door(tmp_path, [engine.url], model=MODEL, postgres=database, valkey=NOWHERE) as door,
    ):
        async with loaded(door) as load:
            resource.prlimit(door.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            try:
                report = await until_status(503, door, "/ready")
                assert report.json()["spool"]["status"] == "refusing"
                before = len(load.answered)
            finally:
                resource.prlimit(door.pid, resource.RLIMIT_FSIZE, unlimited)
            await eventually(lambda: len(load.answered) > before + 50, timeout=10.0)
        assert all("metering_unavailable" in answer for answer in load.refused)
        await eventually(lambda: all_booked(database, load.answered), timeout=10.0, every=0.2)
