"""Engines of this machine that join a front door's pool and leave it while it serves, as an operator has them do it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.platform.local.probe import any_port
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import unbooked

POOLS = [{"name": "main", "discovery": {"local": {}}}]


def states(door: Door) -> dict[str, Any]:
    return door.service.router.states("main")


async def answered_by(door: Door, count: int) -> set[str]:
    answers = [await door.chat(f"{n}", max_tokens=2) for n in range(count)]
    assert {answer.status_code for answer in answers} == {200}
    return {answer.headers["x-forebay-endpoint"] for answer in answers}


@contextmanager
def announce(tmp_path: Path, port: int, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """`forebay announce` with an engine double, over a file like the door's configuration."""
    file = tmp_path / "forebay.yaml"
    stores = {"stateDir": str(tmp_path)}
    file.write_text(json.dumps({
        "apiVersion": "forebay.dev/v1", "stores": stores, "pools": POOLS, "models": [{"name": MODEL, "pool": "main"}],
    }))  # fmt: skip
    double = (sys.executable, "-m", "tests.doubles.engine", "--port", str(port), "--model", MODEL)
    command = (sys.executable, "-m", "forebay.platform.cli", "announce", "--config", str(file),
               "--url", f"http://127.0.0.1:{port}")  # fmt: skip
    with subprocess.Popen([*command, *options, "--", *double, "--token-seconds", "0.05", "--answer-tokens", "none"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def by_hand(directory: Path, name: str, engine: EngineDouble, pid: int | None = None) -> AsyncIterator[Path]:
    path = directory / f"{name}.json"
    path.write_text(json.dumps({"url": engine.url, "pid": pid or os.getpid()}))
    yield path
    path.unlink(missing_ok=True)


async def test_an_engine_joins_and_leaves_and_no_request_pays_for_it(open_door: OpenDoor, tmp_path: Path) -> None:
    port = any_port()
    async with EngineDouble() as one, open_door(pools=POOLS) as door:
        refused = await door.chat()
        assert refused.status_code == 503, "there is no engine yet"
        directory = tmp_path / "run" / "engines" / "main"
        async with by_hand(directory, "by-hand", one):
            await eventually(lambda: "by-hand" in states(door))
            assert await answered_by(door, 2) == {"by-hand"}
            with announce(tmp_path, port, "--name", "started", "--accelerator", "cpu") as announced:
                await eventually(lambda: "started" in states(door), 20.0)
                assert await answered_by(door, 6) == {"by-hand", "started"}
                kept = states(door)["by-hand"]
                (directory / "by-hand.json").unlink()
                await eventually(lambda: set(states(door)) == {"started"})
                streaming = asyncio.create_task(door.chat("long", max_tokens=80, stream=True))
                await eventually(lambda: states(door)["started"].in_flight)
                (directory / "by-hand.json").write_text(json.dumps({"url": one.url, "pid": os.getpid()}))
                await eventually(lambda: "by-hand" in states(door))
                announced.send_signal(signal.SIGINT)
                await eventually(lambda: set(states(door)) == {"by-hand"})
                assert await answered_by(door, 4) == {"by-hand"}
                answer = await streaming
                assert answer.text.endswith("data: [DONE]\n\n")
                assert '"error"' not in answer.text
                assert await asyncio.to_thread(announced.wait, 20) == 0
            assert kept.group.accelerator == ""
            assert not (directory / "started.json").exists()
            await eventually(lambda: unbooked(door))


async def test_an_engine_that_is_killed_is_out_until_it_was_started_again(open_door: OpenDoor, tmp_path: Path) -> None:
    with announce(tmp_path, any_port(), "--name", "started"):
        path = tmp_path / "run" / "engines" / "main" / "started.json"
        await eventually(path.exists, 20.0)
        first = json.loads(path.read_text())["pid"]
        async with open_door(pools=POOLS) as door:
            assert set(states(door)) == {"started"}, "what is announced at the start is there at the start"
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: not states(door))
            await eventually(lambda: "started" in states(door), 20.0)
            assert json.loads(path.read_text())["pid"] != first
            assert await answered_by(door, 2) == {"started"}


async def test_what_is_wrong_with_files_is_said_once_and_the_rest_serves(
    open_door: OpenDoor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run" / "engines" / "main"
    async with EngineDouble() as engine, open_door(pools=POOLS) as door, by_hand(directory, "good", engine):
        (directory / "half.json").write_text('{"url": "http://127.0')
        (directory / "foreign.json").write_text(json.dumps({"url": "http://10.0.0.5:8000", "pid": os.getpid()}))
        await eventually(lambda: "good" in states(door))
        endpoint = door.service.pools[0].endpoints["good"]

        async def said() -> Any:
            return (await door.http.get("/health")).json()["discovery"]["main"]

        report = await said()
        assert (report["synced"], report["endpoints"], report["left"]) == (True, 1, 2)
        assert report["left_out"]["foreign.json"].startswith("names http://10.0.0.5:8000, which is not on this machine")
        directory.chmod(0o777)

        async def away() -> bool:
            return "chmod o-w" in (await said())["away"]

        await eventually(away)
        assert 'forebay_discovery_up{pool="main"} 0.0' in (await door.http.get("/metrics")).text
        (directory / "good.json").unlink()
        assert await answered_by(door, 2) == {"good"}, "those known last stay"
        (directory / "good.json").write_text(json.dumps({"url": engine.url, "pid": os.getpid()}))
        directory.chmod(0o700)

        async def back() -> bool:
            return not (await said())["away"]

        await eventually(back)
        assert door.service.pools[0].endpoints["good"] is endpoint, "and nothing that was known of it is lost"
        assert caplog.text.count("half.json") == 1
        assert caplog.text.count("foreign.json") == 1


async def test_a_listed_engine_is_not_found_a_second_time(open_door: OpenDoor, tmp_path: Path) -> None:
    directory = tmp_path / "run" / "engines" / "main"
    async with EngineDouble() as listed, EngineDouble() as other:
        pools = [{**POOLS[0], "endpoints": [{"url": listed.url, "name": "listed", "servedModel": MODEL}]}]
        async with open_door(pools=pools) as door:
            assert set(states(door)) == {"listed"}
            async with by_hand(directory, "again", listed), by_hand(directory, "listed", other):

                async def seen() -> bool:
                    found = (await door.http.get("/health")).json()["discovery"]["main"]["endpoints"]
                    return bool(found == 2)

                await eventually(seen)
                assert set(states(door)) == {"listed"}
                assert door.service.pools[0].endpoints["listed"].spec.url == listed.url
