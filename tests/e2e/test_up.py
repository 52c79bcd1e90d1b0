"""`forebay up` and `forebay demo` as a newcomer runs them: real engines, real stores, the OpenAI SDK, Ctrl-C."""

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from forebay.platform.local.paths import Paths
from forebay.platform.local.probe import any_port, is_free
from forebay.platform.local.stack import Running, read_running
from tests.e2e.engines import state_with_engines
from tests.eventually import eventually

pytestmark = pytest.mark.engine
UP_WITHIN = 400.0  # seconds; half a minute on an idle machine


class Up:
    """A `forebay up` in the background, its output in a file."""

    def __init__(self, where: Paths, port: int) -> None:
        self.where = where
        self.port = port
        self.output = where.state / f"up-{time.monotonic_ns()}.txt"
        (where.state / "forebay.yaml.mine").write_text(
            "apiVersion: forebay.dev/v1\nserver: {drainTimeout: 5}\nlocal: {firstPort: 19201}\n"
        )
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                [*FOREBAY, "up", "--config", str(where.state / "forebay.yaml.mine"), "--port", str(port)],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment(where), cwd=where.state,
                start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def key(self) -> str:
        found = re.search(r"^  key +(\S+)$", self.said, re.MULTILINE)
        assert found, self.said
        return found[1]

    @property
    def running(self) -> Running:
        found = read_running(self.where)
        assert found is not None
        return found

    async def ready(self) -> None:
        def is_up() -> bool:
            assert self.process.poll() is None, self.said
            return "Ctrl-C stops everything" in self.said

        await eventually(is_up, UP_WITHIN, every=0.2)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def interrupt(self, timeout: float = 60.0) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


FOREBAY = (sys.executable, "-m", "forebay.platform.cli")


def environment(where: Paths) -> dict[str, str]:
    return os.environ | {"FOREBAY_STATE_DIR": str(where.state), "PYTHONUNBUFFERED": "1"}


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def where() -> Iterator[Paths]:
    with state_with_engines() as where:
        yield where


@pytest.fixture
def start(where: Paths) -> Iterator["Start"]:
    started = Start(where)
    yield started
    for one in started.all:
        one.end()


class Start:
    def __init__(self, where: Paths) -> None:
        self.where = where
        self.all: list[Up] = []

    def __call__(self, port: int | None = None) -> Up:
        self.all.append(Up(self.where, port or any_port()))
        return self.all[-1]


def ask(up: Up) -> str:
    with openai.OpenAI(base_url=f"{up.running.base_url}/v1", api_key=up.key, max_retries=0) as client:
        stream = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "What is the capital of Italy?"}],
            max_tokens=12, temperature=0, stream=True,
        )  # fmt: skip
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


async def test_a_newcomer_starts_talks_reads_the_bill_and_stops(start: Start, where: Paths) -> None:
    first = start()
    await first.ready()
    assert "Rome" in ask(first)
    if shutil.which("curl"):
        assert _pasted(first, "curl -N").startswith("data: {")
    assert _pasted(first, f"{sys.executable} - <<").strip()
    for private in (where.demo, where.config, where.running):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600

    demo = subprocess.run([*FOREBAY, "demo"], env=environment(where), cwd=where.state, capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for tenant in ("demo-a", "demo-b"):
        assert len(re.findall(rf"{tenant} \d  \[engine-[01], .* cached", demo.stdout)) == 4, demo.stdout
        assert re.search(rf"{tenant}  4 requests, .* cost 0\.\d+ USD", demo.stdout), demo.stdout
    assert first.key not in demo.stdout

    doctor = subprocess.run([*FOREBAY, "doctor"], env=environment(where), cwd=where.state, capture_output=True,
                            text=True, timeout=60, check=False)  # fmt: skip
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr

    family = first.family()
    assert len(family) >= 5  # two engines with their workers, the front door, two stores
    assert first.interrupt() == 0
    assert alive(family) == []
    assert is_free(first.port)
    assert read_running(where) is None

    second = start(first.port)
    await second.ready()
    assert second.key == first.key
    assert "installing" not in second.said
    assert "converting" not in second.said
    await _front_door_comes_back(second)
    assert "Rome" in ask(second)
    second.interrupt()


def _pasted(up: Up, first_words: str) -> str:
    """What a snippet that `forebay up` printed answers when it is pasted into a shell."""
    start = up.said.index(f"\n{first_words}") + 1
    snippet = up.said[start:].split("\n\n")[0]
    return subprocess.run(["bash", "-c", snippet], capture_output=True, text=True, timeout=60, check=True).stdout


async def _front_door_comes_back(up: Up) -> None:
    pid = up.running.pids["front-door"]
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: "done: starting again" in up.said, 60, every=0.2)
    assert "front-door was ended by SIGKILL" in re.sub(" +", " ", up.said)


async def test_a_second_start_on_the_same_state_is_refused_and_ctrl_c_during_a_start_leaves_nothing(
    start: Start,
) -> None:
    first = start()
    await eventually(lambda: "engine-1   starting" in first.said, 60, every=0.1)
    second = start()
    assert second.process.wait(30) == 1
    assert "Forebay runs already" in second.said
    family = first.family()
    assert family
    assert first.interrupt() == 0
    assert alive(family) == []


def test_a_port_in_use_is_an_error_that_names_its_holder(start: Start) -> None:


    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        up = start(taken.getsockname()[1])
        assert up.process.wait(30) == 1
    assert f"is in use by {psutil.Process().name()} (pid {os.getpid()}" in up.said
    assert "--port" in up.said


def test_the_key_is_in_no_log(where: Paths) -> None:
    keys = re.findall(r'"key":\s*"([^"]+)"', where.demo.read_text())
    assert len(keys) == 3
    for log in [*where.logs.glob("*.log*"), *Path(where.state).glob("postgres/server.log")]:
        assert not any(key in log.read_text(errors="replace") for key in keys), log
