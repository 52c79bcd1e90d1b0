"""A front door of two workers and a router process beside them, as processes of their own."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from forebay.platform.stores.database import create_engine
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.processes import Door, front_door
from tests.stores import state_directory

MODEL = "smollm2-135m-instruct"
SLOW = Settings(token_seconds=0.2, answer_tokens=None)
OpenDoor = Callable[..., AbstractAsyncContextManager[Door]]


@pytest.fixture
def state() -> Any:
    with state_directory() as path:
        yield path


@pytest.fixture
def open_door(database: str, valkey: str, state: Path) -> OpenDoor:
    @asynccontextmanager
    async def open_(*engines: EngineDouble, workers: int = 2, **server: Any) -> AsyncIterator[Door]:
        again = {name: server.pop(name) for name in ("port", "key") if name in server}
        async with front_door(
            state, [engine.url for engine in engines], model=MODEL, postgres=database, valkey=valkey,
            server={"workers": workers, **server}, **again,
        ) as door:  # fmt: skip
            yield door

    return open_


class Tenant:
    """Requests on connections of their own, so that any worker may accept them."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._streams = AsyncExitStack()
        self.ended: list[str] = []
        self.identifiers: list[str] = []
        self._reading: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Tenant":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._streams.aclose()

    async def ask(self, **body: Any) -> httpx.Response:
        async with self._client() as client:
            return await client.post("/v1/chat/completions", json=chat(**body))

    async def get(self, path: str) -> httpx.Response:
        async with self._client() as client:
            return await client.get(path)

    async def stream(self, **body: Any) -> str:
        """Start one and go on reading it. Returns its request id once it is answered."""
        client = await self._streams.enter_async_context(self._client())
        response = await self._streams.enter_async_context(
            client.stream("POST", "/v1/chat/completions", json=chat(stream=True, **body))
        )
        assert response.status_code == 200
        identifier: str = response.headers["x-request-id"]
        self.identifiers.append(identifier)
        self._reading.append(asyncio.create_task(self._read(response, identifier)))
        return identifier

    async def metric(self, name: str, **labels: str) -> dict[str, float]:
        """By process."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families((await self.get("/metrics")).text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    found[sample.labels["worker"]] = found.get(sample.labels["worker"], 0.0) + sample.value
        return found

    async def in_flight(self) -> dict[str, float]:
        """Requests by worker."""
        found = await self.metric("forebay_requests_in_flight")
        return {worker: count for worker, count in found.items() if worker != "router"}

    async def booked(self) -> float:
        """Requests that the router knows of, at all endpoints."""
        return (await self.metric("forebay_endpoint_in_flight")).get("router", 0.0)

    async def pids(self) -> dict[str, int]:
        workers = (await self.get("/health")).json()["workers"]
        return {name: worker["pid"] for name, worker in workers.items() if "pid" in worker}

    async def on_both_workers(self, **body: Any) -> None:
        """Streams until each worker has some: who is woken for a connection is the kernel's choice."""
        for _ in range(16):
            await asyncio.gather(*(self.stream(**body) for _ in range(8)))
            if all((await self.in_flight()).values()):
                return
        raise AssertionError(f"one worker took everything: {await self.in_flight()}")

    async def _read(self, response: httpx.Response, identifier: str) -> None:
        try:
            lines: list[str] = [line async for line in response.aiter_lines()]
        except httpx.TransportError:
            self.ended.append("cut")
        else:
            self.ended.append("error" if any(line.startswith('data: {"error"') for line in lines) else "done")

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._door.url, headers={"authorization": f"Bearer {self._door.key}"}, timeout=30.0
        )


def chat(**members: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{os.urandom(8).hex()} hello"}],
        "max_tokens": 1500,
        **members,
    }


async def records(database: str, *, at_least: int) -> list[dict[str, Any]]:
    engine = create_engine(database)

    async def enough() -> list[dict[str, Any]] | None:
        async with engine.connect() as db:
            found = [dict(row) for row in (await db.execute(text("SELECT * FROM usage_records"))).mappings()]
        return found if len(found) >= at_least else None

    try:
        return await eventually(enough, timeout=15.0, every=0.1) or []
    finally:
        await engine.dispose()


async def test_two_workers_are_one_front_door(open_door: OpenDoor) -> None:
    """Any of them tells of all, their requests see each other's load, and bounds hold for both together."""
    async with (
        EngineDouble(SLOW) as one,
        EngineDouble(SLOW) as other,
        open_door(one, other, maxInFlightPerProject=24) as door,
        Tenant(door) as tenant,
    ):
        health = (await tenant.get("/health")).json()
        assert health["status"] == "ok"
        assert health["router"] == {"status": "ok"}
        assert {name: worker["status"] for name, worker in health["workers"].items()} == {"0": "ok", "1": "ok"}
        assert health["pools"] == {"main": {"engine-0": {"status": "up"}, "engine-1": {"status": "up"}}}
        assert (await tenant.get("/ready")).status_code == 200
        for _ in range(10):
            assert (await tenant.ask(max_tokens=1)).status_code == 200
        assert sum((await tenant.metric("forebay_requests_total", status="200")).values()) == 10
        assert set(await tenant.metric("process_open_fds")) == {"router", "0", "1"}

        await tenant.on_both_workers()
        while len(tenant.identifiers) < 24:
            await tenant.stream()
        assert one.scheduler.in_flight == other.scheduler.in_flight == 12
        assert await tenant.booked() == 24

        async def refused() -> bool:
            return {await _code(tenant) for _ in range(8)} == {"concurrency_limit_exceeded"}

        await eventually(refused)


async def test_a_worker_that_dies_takes_its_own_streams_and_bookings_only(
    open_door: OpenDoor, database: str
) -> None:
    async with EngineDouble(SLOW) as engine, open_door(engine) as door, Tenant(door) as tenant:
        await tenant.on_both_workers()
        before, pids = await tenant.in_flight(), await tenant.pids()
        await asyncio.sleep(1.5)  # past a checkpoint
        os.kill(pids["0"], signal.SIGKILL)
        await eventually(lambda: len(tenant.ended) == before["0"])
        assert set(tenant.ended) == {"cut"}
        await eventually(lambda: engine.scheduler.in_flight == before["1"])
        await eventually(lambda: _is(tenant.booked, before["1"]))
        again = await eventually(tenant.pids, timeout=20.0)
        await eventually(lambda: _is(lambda: _count(tenant.pids), 2), timeout=20.0)
        again = await tenant.pids()
        assert again["1"] == pids["1"]
        assert again["0"] != pids["0"]
        found = await records(database, at_least=int(before["0"]))
        assert {(r["status"], r["terminated_by"]) for r in found} == {("lost", "front_door")}
        assert len(found) == before["0"]
        assert len(tenant.ended) == before["0"]  # the other worker's go on
        assert (await tenant.ask(max_tokens=1)).status_code == 200


async def test_workers_end_with_the_router_process(open_door: OpenDoor, database: str) -> None:
    async with EngineDouble(SLOW) as engine, open_door(engine) as door, Tenant(door) as tenant:
        await tenant.on_both_workers()
        pids = list((await tenant.pids()).values())
        door.process.kill()
        await eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), timeout=10.0)
        assert len(tenant.ended) == len(tenant.identifiers)
        found = await records(database, at_least=len(tenant.identifiers))
        assert {(r["status"], r["terminated_by"]) for r in found} == {("failed", "front_door")}


async def test_after_all_were_killed_one_alone_takes_the_port_and_ships_every_spool(
    open_door: OpenDoor, database: str
) -> None:
    async with EngineDouble(SLOW) as engine:
        async with open_door(engine) as door, Tenant(door) as tenant:
            await tenant.on_both_workers()
            for pid in ((await tenant.pids()).values()):
                os.kill(pid, signal.SIGKILL)
            door.process.kill()
            await door.process.wait()
        async with open_door(engine, workers=1, port=door.port, key=door.key):
            found = await records(database, at_least=len(tenant.identifiers))
    assert sorted(r["request_id"] for r in found) == sorted(tenant.identifiers)
    assert {r["status"] for r in found} == {"lost"}


async def test_sigterm_lets_streams_of_both_workers_finish_and_takes_no_new_ones(
    open_door: OpenDoor, database: str
) -> None:
    async with EngineDouble(SLOW) as engine, open_door(engine, drainTimeout=20.0) as door, Tenant(door) as tenant:
        await tenant.on_both_workers(max_tokens=20)
        door.process.send_signal(signal.SIGTERM)
        await eventually(lambda: _is(lambda: _code(tenant), "shutting_down"))
        assert (await tenant.get("/ready")).status_code == 503
        await eventually(lambda: len(tenant.ended) == len(tenant.identifiers), timeout=15.0)
        assert set(tenant.ended) == {"done"}
        assert await asyncio.wait_for(door.process.wait(), 15) == 0
        found = await records(database, at_least=len(tenant.identifiers))
        assert {r["status"] for r in found} == {"completed"}


async def test_a_second_sigterm_ends_streams_with_an_error_frame(open_door: OpenDoor, database: str) -> None:
    async with EngineDouble(SLOW) as engine, open_door(engine, drainTimeout=60.0) as door, Tenant(door) as tenant:
        await tenant.on_both_workers()
        door.process.send_signal(signal.SIGTERM)
        await eventually(lambda: _is(lambda: _code(tenant), "shutting_down"))
        door.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(door.process.wait(), 15) == 0
        assert tenant.ended == ["error"] * len(tenant.identifiers)
        found = await records(database, at_least=len(tenant.identifiers))
        assert {(r["status"], r["terminated_by"]) for r in found} == {("failed", "front_door")}
        assert engine.scheduler.in_flight == 0


async def test_a_worker_that_cannot_start_ends_the_start_with_its_reason(
    database: str, valkey: str, state: Path
) -> None:
    (state / "spool").write_text("in the way")
    with pytest.raises(RuntimeError, match="ended before it was ready"):
        async with front_door(
            state, [], model=MODEL, postgres=database, valkey=valkey, key="k", server={"workers": 2}
        ):
            pass


async def _is(ask: Callable[[], Any], value: Any) -> bool:
    return bool(await ask() == value)


async def _count(ask: Callable[[], Any]) -> int:
    return len(await ask())


async def _code(tenant: Tenant) -> str:
    response = await tenant.ask(max_tokens=1)
    return "ok" if response.status_code == 200 else json.loads(response.text)["error"]["code"]
