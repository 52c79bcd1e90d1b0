"""The front door as a process of its own: killed, stopped, restarted; and the command line beside it."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from forebay.platform.stores.database import create_engine
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.processes import Door, front_door
from tests.stores import state_directory

MODEL = "smollm2-135m-instruct"
SLOW = Settings(token_seconds=0.02, answer_tokens=None)


@pytest.fixture
def state() -> Any:
    with state_directory() as path:
        yield path


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


def body(**members: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, **members}


async def started(door: Door, ready: set[str], **members: Any) -> str:
    """Start a stream, add its request id to `ready` when it is answered, and return that when the door has died."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {door.key}"}, timeout=30.0) as client:
        stream = client.stream("POST", f"{door.url}/v1/chat/completions", json=body(stream=True, **members))
        async with stream as response:
            identifier: str = response.headers["x-request-id"]
            ready.add(identifier)
            try:
                async for _ in response.aiter_lines():
                    pass
            except httpx.TransportError:
                pass
            return identifier


async def test_sigkill_in_the_middle_of_streams_loses_no_usage_record(database: str, valkey: str, state: Path) -> None:
    """litellm#38157, #34805, #37734, #35958."""
    ready: set[str] = set()
    async with EngineDouble(SLOW) as engine:
        async with front_door(state, [engine.url], model=MODEL, postgres=database, valkey=valkey) as door:
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {door.key}"}) as client:
                whole = [
                    (await client.post(f"{door.url}/v1/chat/completions", json=body())).headers["x-request-id"]
                    for _ in range(5)
                ]
            streams = [asyncio.create_task(started(door, ready, max_tokens=2000)) for _ in range(8)]
            await eventually(lambda: len(ready) == 8)
            await asyncio.sleep(1.5)  # past a checkpoint
            door.process.kill()
            cut = await asyncio.gather(*streams)
            await door.process.wait()
        async with front_door(
            state, [engine.url], model=MODEL, postgres=database, valkey=valkey, port=door.port, key=door.key
        ):
            found = await records(database, at_least=13)
    assert sorted(r["request_id"] for r in found) == sorted([*whole, *cut])
    lost = [r for r in found if r["request_id"] in cut]
    assert {(r["status"], r["terminated_by"]) for r in lost} == {("lost", "front_door")}
    assert all(r["engine_output"] > 0 for r in lost)
    assert all(r["billable_output"] == 0 for r in lost)
    assert engine.scheduler.in_flight == 0


async def test_sigterm_lets_streams_finish_and_takes_no_new_ones(database: str, valkey: str, state: Path) -> None:
    """preloop#217."""
    async with (
        EngineDouble(SLOW) as engine,
        front_door(state, [engine.url], model=MODEL, postgres=database, valkey=valkey) as door,
        httpx.AsyncClient(headers={"authorization": f"Bearer {door.key}"}, timeout=30.0) as client,
    ):
        running = asyncio.create_task(
            client.post(f"{door.url}/v1/chat/completions", json=body(max_tokens=80, stream=True))
        )
        await eventually(lambda: engine.scheduler.in_flight)
        door.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        refused = await client.post(f"{door.url}/v1/chat/completions", json=body())
        assert refused.json()["error"]["code"] == "shutting_down"
        assert (await client.get(f"{door.url}/ready")).status_code == 503
        assert (await running).text.endswith("data: [DONE]\n\n")
        assert await asyncio.wait_for(door.process.wait(), 10) == 0
        (record,) = await records(database, at_least=1)
        assert record["status"] == "completed"


async def test_streams_that_outlive_the_drain_end_in_an_error_frame(database: str, valkey: str, state: Path) -> None:
    async with (
        EngineDouble(SLOW) as engine,
        front_door(
            state, [engine.url], model=MODEL, postgres=database, valkey=valkey, server={"drainTimeout": 0.5}
        ) as door,
        httpx.AsyncClient(headers={"authorization": f"Bearer {door.key}"}, timeout=30.0) as client,
    ):
        running = asyncio.create_task(
            client.post(f"{door.url}/v1/chat/completions", json=body(max_tokens=2000, stream=True))
        )
        await eventually(lambda: engine.scheduler.in_flight)
        door.process.send_signal(signal.SIGTERM)
        frames = (await running).text.split("\n\n")
        assert json.loads(frames[-3].removeprefix("data: "))["error"]["code"] == "shutting_down"
        await asyncio.wait_for(door.process.wait(), 15)
        (record,) = await records(database, at_least=1)
        assert (record["status"], record["terminated_by"]) == ("failed", "front_door")
        assert engine.scheduler.in_flight == 0


async def test_the_command_line_revokes_a_key_within_a_second_while_requests_run(
    database: str, valkey: str, state: Path
) -> None:
    async with (
        EngineDouble(SLOW) as engine,
        front_door(state, [engine.url], model=MODEL, postgres=database, valkey=valkey) as door,
        httpx.AsyncClient(headers={"authorization": f"Bearer {door.key}"}, timeout=30.0) as client,
    ):
        assert (await client.post(f"{door.url}/v1/chat/completions", json=body())).status_code == 200
        running = asyncio.create_task(
            client.post(f"{door.url}/v1/chat/completions", json=body(max_tokens=150, stream=True))
        )
        tenant = json.loads(await forebay(door, "tenant", "list", "--json"))[0]["id"]
        key = json.loads(await forebay(door, "key", "list", tenant, "--json"))[0]["id"]
        await forebay(door, "key", "revoke", key)
        revoked = asyncio.get_running_loop().time()
        while (await client.post(f"{door.url}/v1/chat/completions", json=body(max_tokens=1))).status_code != 401:
            assert asyncio.get_running_loop().time() - revoked < 1.0
        assert (await running).text.endswith("data: [DONE]\n\n")
        usage = json.loads(await forebay(door, "usage", "--json"))
        assert usage


async def forebay(door: Door, *arguments: str) -> bytes:
    """Run the command line against the door's configuration; returns what it prints."""
    config = next(Path(door.state).glob("forebay-*.yaml"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "forebay.platform.cli",
        *arguments,
        "--config",
        str(config),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out
    return out
