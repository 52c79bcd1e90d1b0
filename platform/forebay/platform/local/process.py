"""One child process: a session of its own, a bounded log, and an end that leaves nothing behind."""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from forebay.platform.announced import holder, life
from forebay.platform.config.engines import Announced
from forebay.platform.local.paths import write_private

LOG_LIMIT = 16 << 20  # bytes; one older log of this size is kept
WRAPPER = Path(__file__).parent / "inside" / "child.py"


class Part(Struct, frozen=True):
    """What to run and how to tell that it is ready. `rank`: parts of a lower rank are stopped first."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    ready_url: str | None = None  # ready when GET answers 200; None: ready once started
    ready_timeout: float = 300.0
    stop_timeout: float = 15.0  # from SIGTERM to SIGKILL
    rank: int = 0
    describe: Callable[[str], str | None] = lambda line: line  # a log line in a reader's words, or None
    announced: "Announcement | None" = None  # there while it is ready, for front doors that look for engines


class Announcement(Struct, frozen=True):
    """The file that says of a process which engine it is. `pid` of `engine` is filled in."""

    path: Path
    engine: Announced

    def make(self, pid: int) -> None:
        """Never half written, and never to be read by others. Raises `OSError`."""
        if (other := holder(self.path)) not in (None, pid):
            raise FileExistsError(errno.EEXIST, f"process {other} is announced there")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = msgspec.structs.replace(self.engine, pid=pid, life=life(pid))
        text = msgspec.json.format(msgspec.json.encode(engine), indent=2)
        write_private(self.path, text.decode() + "\n")

    def withdraw(self, pid: int) -> None:
        if holder(self.path) in (None, pid):
            self.path.unlink(missing_ok=True)


class Child:
    """A started process. `code` is its exit status once it has ended, negative for a signal."""

    def __init__(self, part: Part, log: Path, process: asyncio.subprocess.Process, offset: int) -> None:
        self.part = part
        self.log = log
        self.pid = process.pid
        self._process = process
        self._offset = offset

    def __repr__(self) -> str:
        state = "running" if self.code is None else f"ended {self.code}"
        return f"<Child {self.part.name} pid={self.pid} {state}>"

    @property
    def code(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """Its exit status, after whatever it left in its process group was killed."""
        code = await self._process.wait()
        self.kill()
        await self._until_gone()
        return code

    def terminate(self) -> None:
        """Asks the leader only: an engine's workers are stopped by their parent, after what it still serves."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the whole group. Safe after the leader's end: a group lives as long as its last member."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _until_gone(self, timeout: float = 5.0) -> None:
        """Orphans of a killed group take a moment to die, and until then they hold ports and memory. Their zombies
        hold nothing, and stay where nobody reaps them (a container without an init)."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, 0)
            except (ProcessLookupError, PermissionError):
                return
            if not await asyncio.to_thread(_living_members, self.pid):
                return
            await asyncio.sleep(0.02)

    def doing(self) -> str | None:
        """The newest line of this run's log that `describe` has words for."""
        for line in reversed(self._recent().splitlines()):
            if words := self.part.describe(line.strip()):
                return words
        return None

    def _recent(self) -> str:
        with contextlib.suppress(OSError), self.log.open("rb") as source:
            source.seek(max(self._offset, self.log.stat().st_size - 32_768))
            return source.read().decode("utf-8", "replace")
        return ""

    def bound_log(self) -> None:
        """Copies a log that has grown too long aside and empties it in place: the child keeps its descriptor, and
        appends to it whether we live or not."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_LIMIT:
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
                os.truncate(self.log, 0)
                self._offset = 0


def _living_members(group: int) -> bool:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _open(log: Path) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


async def spawn(part: Part, logs: Path) -> Child:
    log = logs / f"{part.name}.log"
    descriptor = _open(log)
    try:
        offset = os.fstat(descriptor).st_size
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(WRAPPER), str(os.getpid()), *part.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env=os.environ | dict(part.env),
            start_new_session=True,  # a Ctrl-C goes to the supervisor alone, which stops parts in order
        )  # fmt: skip
    finally:
        os.close(descriptor)
    return Child(part, log, process, offset)
