"""The supervisor against real child processes: they come up, come back, go away, and nothing of them stays."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from forebay.platform.announced import holder
from forebay.platform.config.engines import Announced
from forebay.platform.local.probe import free_ports, is_free
from forebay.platform.local.process import Announcement, Part
from forebay.platform.local.progress import Progress
from forebay.platform.local.supervisor import Limits, PartError, Supervisor
from tests.eventually import eventually

QUICK = Limits(restarts=2, window=60.0, pause=0.05, probe_every=0.05, leave=0.05)

SERVER = """
import http.server, sys, subprocess, time
print("loading", flush=True)
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


def part(name: str, code: str, *args: str, **more: object) -> Part:
    return Part(name=name, argv=(sys.executable, "-c", textwrap.dedent(code), *args), **more)  # type: ignore[arg-type]


def server(name: str = "web", **more: object) -> Part:
    (port,) = free_ports(23_000 + os.getpid() % 1000, 1)
    return part(name, SERVER, str(port), ready_url=f"http://127.0.0.1:{port}/", **more)


def members(pgid: int) -> list[int]:
    """Processes of a group, wherever they were re-parented to."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pgid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
async def supervisor(tmp_path: Path, said: io.StringIO) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(tmp_path, Progress(said, every=0.1), QUICK)
    yield supervisor
    await supervisor.stop()


async def test_a_part_is_ready_when_it_answers_and_leaves_nothing_behind(supervisor: Supervisor) -> None:
    web = server()
    await supervisor.start(web)
    pid = supervisor.pids["web"]
    assert len(members(pid)) == 2  # the server and its helper
    await supervisor.stop()
    assert members(pid) == []
    assert is_free(int(web.argv[-1]))


async def test_a_part_that_was_killed_comes_back_without_its_orphans(
    supervisor: Supervisor, said: io.StringIO
) -> None:
    await supervisor.start(server())
    first = supervisor.pids["web"]
    running = asyncio.create_task(supervisor.run())
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: supervisor.pids.get("web") not in {None, first}, 10)
    await eventually(lambda: "done: starting again" in said.getvalue(), 10)
    assert members(first) == []
    assert "was ended by SIGKILL" in said.getvalue()
    supervisor.request_stop()
    await running


async def test_a_part_that_keeps_ending_takes_everything_down(supervisor: Supervisor) -> None:
    await supervisor.start(server())
    web = supervisor.pids["web"]
    await supervisor.start(part("flaky", "import time; print('out of cheese'); time.sleep(0.1); raise SystemExit(3)"))
    with pytest.raises(PartError, match=r"flaky ended with status 3 for the 3th time") as caught:
        await asyncio.wait_for(supervisor.run(), 20)
    assert "out of cheese" in str(caught.value)
    assert "flaky.log" in str(caught.value)
    await supervisor.stop()
    assert members(web) == []


async def test_a_part_that_never_comes_up_is_not_tried_again(supervisor: Supervisor) -> None:
    bad = part("bad", "raise SystemExit('no such model')", ready_url="http://127.0.0.1:9/")
    with pytest.raises(PartError, match=r"bad ended with status 1 before it was ready[\s\S]*no such model"):
        await supervisor.start(bad)


async def test_readiness_has_a_deadline_and_progress_says_what_is_going_on(
    supervisor: Supervisor, said: io.StringIO
) -> None:
    slow = part("slow", "import time; print('step 7 of 9', flush=True); time.sleep(600)",
                ready_url="http://127.0.0.1:9/", ready_timeout=1.0)  # fmt: skip
    with pytest.raises(PartError, match="not ready within 1 s"):
        await supervisor.start(slow)
    assert "starting: step 7 of 9" in said.getvalue()


async def test_a_deaf_part_is_killed_after_its_time_or_at_the_second_request(supervisor: Supervisor) -> None:
    await supervisor.start(part("deaf", STUBBORN, stop_timeout=600.0))
    pid = supervisor.pids["deaf"]
    await eventually(lambda: supervisor._children["deaf"].doing() == "deaf", 5)
    supervisor.request_stop()
    stopping = asyncio.create_task(supervisor.stop())
    await asyncio.sleep(0.3)
    supervisor.request_stop()
    await asyncio.wait_for(stopping, 5)
    assert members(pid) == []


async def test_lower_ranks_stop_first(supervisor: Supervisor, said: io.StringIO) -> None:
    await supervisor.start(part("engine", "import time; time.sleep(600)", rank=1))
    await supervisor.start(part("door", "import time; time.sleep(600)", rank=0))
    await supervisor.stop()
    order = [line.split()[1] for line in said.getvalue().splitlines() if line.endswith("stopping")]
    assert order == ["door", "engine"]


async def test_a_long_log_is_bounded_while_the_part_goes_on_writing(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.platform.local.process.LOG_LIMIT", 1000)
    code = "import time\nfor i in range(10_000): print('line', i, flush=True); time.sleep(0.001)"
    await supervisor.start(part("chatty", code))
    child = supervisor._children["chatty"]
    log = tmp_path / "chatty.log"
    await eventually(lambda: log.stat().st_size > 1000)
    child.bound_log()
    assert (tmp_path / "chatty.log.1").stat().st_size > 1000
    await eventually(lambda: log.stat().st_size > 0)
    assert b"\0" not in log.read_bytes()


PARENT = """
import asyncio, sys
from pathlib import Path
from forebay.platform.announced import holder
from forebay.platform.config.engines import Announced
from forebay.platform.local.process import Announcement, Part
from forebay.platform.local.progress import Progress
from forebay.platform.local.supervisor import Supervisor
async def main():
    supervisor = Supervisor(Path(sys.argv[1]), Progress())
    await supervisor.start(Part("child", (sys.executable, "-c", "import time; time.sleep(600)")))
    print("PID", supervisor.pids["child"], flush=True)
    await supervisor.run()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
async def test_children_do_not_outlive_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = next(int(line.split()[1]) for line in parent.stdout if line.startswith("PID"))
        await eventually(lambda: "sleep(600)" in " ".join(psutil.Process(pid).cmdline()[:3]), 5)
        parent.send_signal(signal.SIGKILL)
        await eventually(_gone(pid), 5)
    finally:
        parent.kill()
        parent.communicate()


def _gone(pid: int) -> Callable[[], bool]:
    return lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def announcing(tmp_path: Path, port: int) -> Announcement:
    return Announcement(tmp_path / "engines" / "web.json", Announced(url=f"http://127.0.0.1:{port}", pid=1))


async def test_a_part_is_announced_while_it_answers(supervisor: Supervisor, tmp_path: Path) -> None:
    (port,) = free_ports(24_000 + os.getpid() % 1000, 1)
    announced = announcing(tmp_path, port)
    url = f"http://127.0.0.1:{port}/"
    await supervisor.start(part("web", SERVER, str(port), ready_url=url, announced=announced))
    first = holder(announced.path)
    assert first == supervisor.pids["web"]
    assert announced.path.stat().st_mode & 0o777 == 0o600
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: not announced.path.exists())
    await eventually(lambda: holder(announced.path) == supervisor.pids.get("web") != first, 20.0)
    await supervisor.stop()
    assert not announced.path.exists()


async def test_an_announcement_of_another_process_that_runs_is_not_taken_over(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    announced = announcing(tmp_path, 1)
    announced.make(os.getpid())
    with pytest.raises(PartError, match=f"web cannot be announced in .*: process {os.getpid()} is announced there"):
        await supervisor.start(part("web", "import time; time.sleep(600)", announced=announced))
    await supervisor.stop()
    assert holder(announced.path) == os.getpid()
