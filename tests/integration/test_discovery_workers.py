"""Two workers and a router process that finds its engines: each worker knows of an engine in time."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.doubles.kubernetes import KubernetesDouble
from tests.eventually import eventually
from tests.integration.test_discovery import POOLS, engine_pod
from tests.processes import Door, front_door
from tests.stores import state_directory

MODEL = "smollm2-135m-instruct"
STREAMS = Settings(token_seconds=0.01, answer_tokens=None)


async def ask(door: Door, content: str, **body: Any) -> httpx.Response:
    """On a connection of its own, so that any worker may accept it."""
    base, key = f"http://127.0.0.1:{door.port}", door.key
    async with httpx.AsyncClient(base_url=base, headers={"authorization": f"Bearer {key}"}, timeout=30.0) as client:
        message = {"role": "user", "content": content}
        return await client.post("/v1/chat/completions", json={"model": MODEL, "messages": [message], **body})


async def health(door: Door) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.port}") as client:
        found: dict[str, Any] = (await client.get("/health")).json()
        return found


async def test_engines_are_replaced_under_load_and_no_request_fails(
    database: str, valkey: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        KubernetesDouble() as api, EngineDouble(STREAMS) as one, EngineDouble(STREAMS) as two,
        EngineDouble(STREAMS) as three,
    ):  # fmt: skip
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        await api.set("pods", engine_pod("e-0", one))
        stores = {"postgres": database, "valkey": valkey}
        settings: dict[str, Any] = {"model": MODEL, "server": {"workers": 2}, "pools": POOLS, **stores}
        with state_directory() as state:
            async with front_door(state, [], **settings) as door:
                answers: list[httpx.Response] = []
                stop = asyncio.Event()

                async def load(number: int) -> None:
                    while not stop.is_set():
                        answers.append(await ask(door, f"{number}", max_tokens=15, stream=number % 2 == 0))

                loading = [asyncio.create_task(load(number)) for number in range(8)]
                await asyncio.sleep(1.0)
                for turn in range(6):  # a stateful set whose pods change places, and one more that comes and goes
                    engine = (two, one)[turn % 2]
                    await api.set("pods", engine_pod("extra", three, uid=f"extra {turn}"))
                    await asyncio.sleep(0.3)
                    await api.set("pods", engine_pod("e-0", (one, two)[turn % 2], deleted=True, uid=f"{turn - 1}"))
                    await api.remove("pods", "e-0")
                    await api.set("pods", engine_pod("e-0", engine, uid=f"{turn}"))
                    await asyncio.sleep(0.3)
                    await api.remove("pods", "extra")
                    await asyncio.sleep(0.1)
                stop.set()
                await asyncio.gather(*loading)
                assert [one.text for one in answers if one.status_code != 200 or '"error"' in one.text] == []
                assert len(answers) > 40
                assert min(len(one.requests), len(two.requests), len(three.requests)) > 5

                async def settled() -> bool:
                    found = await health(door)
                    return (found["pools"], found["status"]) == ({"main": {"e-0": {"status": "up"}}}, "ok")

                await eventually(settled, 10.0)
                assert (await health(door))["router"]["discovery"]["main"]["endpoints"] == 1


async def test_engines_of_this_machine_come_and_go_under_load_and_no_request_fails(database: str, valkey: str) -> None:
    pools = [{"name": "main", "discovery": {"local": {}}}]
    settings: dict[str, Any] = {"model": MODEL, "server": {"workers": 2}, "pools": pools}
    async with EngineDouble(STREAMS) as one, EngineDouble(STREAMS) as two:
        with state_directory() as state:
            directory = state / "run" / "engines" / "main"
            directory.mkdir(parents=True)
            said = [json.dumps({"url": engine.url, "pid": os.getpid(), "servedModel": MODEL}) for engine in (one, two)]
            (directory / "e-0.json").write_text(said[0])
            async with front_door(state, [], postgres=database, valkey=valkey, **settings) as door:
                answers: list[httpx.Response] = []
                stop = asyncio.Event()

                async def load(number: int) -> None:
                    while not stop.is_set():
                        answers.append(await ask(door, f"{number}", max_tokens=15, stream=number % 2 == 0))

                async def known(*names: str) -> bool:
                    return set((await health(door))["pools"]["main"]) == set(names)

                loading = [asyncio.create_task(load(number)) for number in range(8)]
                for coming, going in ((1, 0), (0, 1)):
                    (directory / f"e-{coming}.json").write_text(said[coming])
                    await eventually(lambda: known("e-0", "e-1"), 10.0)
                    (directory / f"e-{going}.json").unlink()
                    await eventually(lambda coming=coming: known(f"e-{coming}"), 10.0)  # type: ignore[misc]
                    await asyncio.sleep(0.5)
                stop.set()
                await asyncio.gather(*loading)
                assert [one.text for one in answers if one.status_code != 200 or '"error"' in one.text] == []
                assert min(len(one.requests), len(two.requests)) > 5
