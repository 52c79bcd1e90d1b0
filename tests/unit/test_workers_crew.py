"""Workers as processes: started, kept, given up and ended. Small scripts stand in for what serves."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from forebay.platform.config.model import Config
from forebay.platform.local.supervisor import Limits
from forebay.platform.workers.crew import Crew, WorkerError
from forebay.platform.workers.orders import Orders
from tests.eventually import eventually

QUICK = Limits(restarts=2, window=60.0, pause=0.01)
WELL = "import sys; sys.stdin.readline(); print('ready', flush=True); sys.stdin.read()"
DRAINS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
sys.stdin.readline(); print('ready', flush=True); sys.stdin.read()
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WELL


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def crew(script: str, listener: socket.socket, *, count: int = 2, stop_timeout: float = 5.0) -> Crew:
    orders = [Orders(n, count, Config(), "postgresql://", "", listener.fileno(), "", 20) for n in range(count)]
    return Crew(orders, stop_timeout=stop_timeout, limits=QUICK, command=(sys.executable, "-c", script))


async def test_a_worker_gets_its_orders_and_the_listening_socket(listener: socket.socket, tmp_path: Path) -> None:
    script = f"""
import json, pathlib, socket, sys
orders = json.loads(sys.stdin.readline())
port = socket.socket(fileno=orders["listener"]).getsockname()[1]
pathlib.Path({str(tmp_path)!r}, str(orders["worker"])).write_text(f"{{orders['of']}} {{port}}")
print("ready", flush=True)
sys.stdin.read()
"""
    async with crew(script, listener) as workers:
        assert set(workers.pids) == {"0", "1"}
        said = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert said == {name: f"2 {listener.getsockname()[1]}" for name in ("0", "1")}


async def test_one_that_is_killed_is_started_again_and_the_other_left_alone(listener: socket.socket) -> None:
    async with crew(WELL, listener) as workers:
        keeping = asyncio.create_task(workers.run())
        before = workers.pids
        os.kill(before["0"], 9)
        await eventually(lambda: workers.pids.get("0") not in (None, before["0"]))
        assert workers.pids["1"] == before["1"]
        keeping.cancel()


async def test_one_that_keeps_ending_is_given_up_with_its_reason(listener: socket.socket) -> None:
    script = "import sys; sys.stdin.readline(); print('ready\\nfault the disk is full', flush=True); sys.exit(3)"
    async with crew(script, listener, count=1) as workers:
        with pytest.raises(WorkerError, match=r"worker 0 ended with status 3, 3 times within 60 s: the disk is full"):
            await asyncio.wait_for(workers.run(), 10)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("print('fault no room here', flush=True); raise SystemExit(1)", "^no room here$"),
        ("raise SystemExit(7)", "worker 0 ended with status 7 before it was ready"),
    ],
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(
    script: str, reason: str, listener: socket.socket
) -> None:
    started = {child.pid for child in psutil.Process().children()}
    with pytest.raises(WorkerError, match=reason):
        async with crew(script, listener, count=1):
            pass
    assert {child.pid for child in psutil.Process().children()} == started


async def test_stopping_lets_workers_end_by_themselves(listener: socket.socket) -> None:
    async with crew(DRAINS, listener) as workers:
        keeping = asyncio.create_task(workers.run())
        await workers.stop()
        await keeping  # none of them counts as lost
        assert workers.pids == {}


async def test_one_that_does_not_stop_is_killed(listener: socket.socket) -> None:
    async with crew(STUBBORN, listener, stop_timeout=0.2) as workers:
        pids = list(workers.pids.values())
        await workers.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_one_that_drains_can_be_told_to_end_now(listener: socket.socket) -> None:
    async with crew(STUBBORN, listener, stop_timeout=60.0) as workers:
        stopping = asyncio.create_task(workers.stop())
        await asyncio.sleep(0)
        assert len(workers.pids) == 2
        workers.hurry()
        await asyncio.wait_for(stopping, 10)
        assert workers.pids == {}


async def test_workers_end_with_the_process_that_started_them(listener: socket.socket, tmp_path: Path) -> None:
    """Killed, it can tell them nothing: the kernel does."""
    starter = f"""
import asyncio, pathlib, socket, sys
from tests.unit.test_workers_crew import WELL, crew
async def main():
    with socket.socket() as bound:
        async with crew(WELL, bound) as workers:
            pathlib.Path({str(tmp_path)!r}, "pids").write_text(" ".join(map(str, workers.pids.values())))
            print("up", flush=True)
            await asyncio.Event().wait()
asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", starter, stdout=asyncio.subprocess.PIPE, cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 20) == b"up\n"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    process.kill()
    await process.wait()
    await eventually(lambda: not any(_lives(pid) for pid in pids))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
