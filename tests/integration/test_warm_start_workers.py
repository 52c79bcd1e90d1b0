"""Warm starts of front doors with several workers: the router process has the snapshot, any worker hands it out."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.door import MODEL
from tests.processes import Door, front_door
from tests.stores import state_directory
from tests.virtual import tokens

EVENTS = Settings(kv_events="tcp://127.0.0.1:*", kv_replay="tcp://127.0.0.1:*", kv_replay_steps=4)
TALK = tokens(("a conversation", 640)).tolist()
NEXT = [*TALK, *tokens(("its next turn", 64)).tolist()]


class Doors:
    def __init__(self, directory: Path, database: str, valkey: str) -> None:
        self._directory = directory
        self._database, self._valkey = database, valkey
        self._key: str | None = None

    @asynccontextmanager
    async def open(self, name: str, engine: EngineDouble, **changes: Any) -> AsyncIterator[Door]:
        """Two workers. All share the secrets that the first one made."""
        state = self._directory / name
        state.mkdir(exist_ok=True)
        assert engine.events is not None
        first = self._directory / "a" / "secrets"
        secrets = {"cacheSalt": f"{first}/cache-salt", "keyHash": f"{first}/key-hash"} if self._key else {}
        async with front_door(
            state, [engine.url], model=MODEL, key=self._key, server={"workers": 2}, secrets=secrets,
            postgres=self._database, valkey=self._valkey,
            endpoint={"kvEvents": engine.events.endpoint, "kvReplay": engine.events.replay},
            **changes,
        ) as door:  # fmt: skip
            self._key = door.key
            await eventually(lambda: _ready(door), timeout=15.0)
            yield door


@pytest.fixture
def doors(database: str, valkey: str) -> Any:
    with state_directory() as directory:
        yield Doors(directory, database, valkey)


async def _ready(door: Door) -> bool:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{door.url}/ready")).status_code == 200


async def post(door: Door, path: str, prompt: list[int], **body: Any) -> httpx.Response:
    """On a connection of its own, so that any worker may take it."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {door.key}"}) as client:
        response = await client.post(f"{door.url}{path}", json={"model": MODEL, "prompt": prompt, **body})
        assert response.status_code == 200, response.text
        return response


async def cached(door: Door) -> int:
    (candidate,) = (await post(door, "/v1/explain/completions", NEXT)).json()["candidates"]
    return int(candidate["cached"])


async def talk(door: Door) -> None:
    await post(door, "/v1/completions", TALK, max_tokens=1)
    for number in range(8):
        await post(door, "/v1/completions", tokens((f"somebody else {number}", 64)).tolist(), max_tokens=1)
    assert await cached(door) == 640
    await asyncio.sleep(0.5)  # its events have come by then


async def test_a_peer_with_workers_is_read_and_a_restart_finds_its_own(doors: Doors) -> None:
    async with EngineDouble(EVENTS) as engine:
        async with doors.open("a", engine) as a:
            await talk(a)
            async with doors.open("b", engine, router={"peers": [a.url]}) as b:
                assert await cached(b) == 640
            a.process.send_signal(signal.SIGTERM)
            assert await a.process.wait() == 0
        async with doors.open("a", engine) as a:
            assert await cached(a) == 640
            a.process.kill()
            await a.process.wait()
