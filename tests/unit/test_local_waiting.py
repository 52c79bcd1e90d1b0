"""What is said of a platform that is still on its way up, and who waits for it."""

import asyncio
import io
import os
from pathlib import Path

import msgspec

from forebay.platform.local import vllm
from forebay.platform.local.paths import Paths, try_lock, write_private
from forebay.platform.local.progress import Progress
from forebay.platform.local.stack import Running, await_running
from tests.eventually import eventually


async def test_a_demo_waits_for_a_platform_that_is_still_starting(tmp_path: Path) -> None:
    where, said = Paths(tmp_path), io.StringIO()
    lock = try_lock(where.state / "up.lock")
    assert lock is not None
    found = asyncio.create_task(await_running(where, Progress(said)))
    await eventually(lambda: "waiting for the one that starts" in said.getvalue(), 5)
    running = Running(os.getpid(), "http://127.0.0.1:8080", "forebay.yaml")
    write_private(where.running, msgspec.json.encode(running).decode())
    assert await asyncio.wait_for(found, 5) == running
    os.close(lock)


async def test_a_platform_that_gives_up_starting_is_not_waited_for(tmp_path: Path) -> None:
    where, said = Paths(tmp_path), io.StringIO()
    lock = try_lock(where.state / "up.lock")
    assert lock is not None
    found = asyncio.create_task(await_running(where, Progress(said)))
    await eventually(lambda: said.getvalue() != "", 5)
    os.close(lock)
    assert await asyncio.wait_for(found, 5) is None


async def test_nothing_is_waited_for_where_nothing_runs(tmp_path: Path) -> None:
    said = io.StringIO()
    assert await await_running(Paths(tmp_path), Progress(said)) is None
    assert said.getvalue() == ""
    assert list(tmp_path.iterdir()) == []


def test_a_warning_that_speaks_of_errors_is_none() -> None:
    warning = "(APIServer pid=1) WARNING 11-30 09:05:42 [u.py:255] This can cause `OSError: [Errno 24]`. Consider"
    assert vllm.doing(warning) is None
    assert vllm.doing("(EngineCore pid=2) ERROR 11-30 09:05:42 EngineCore failed") == "an error, see its log"
