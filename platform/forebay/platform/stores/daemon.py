"""A server process that several Forebay processes share: whoever needs it first starts it, the last one stops it.

Holders keep a shared lock on `<name>.users`; a start or a stop holds `<name>.lock`. Locks vanish with their process,
and a guard beside each server (guard.py) stops it when the last holder was killed before it could.
"""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil
from msgspec import Struct

from forebay.platform.stores.account import Account

logger = logging.getLogger(__name__)
_POLL = 0.02
_LOG_LIMIT = 8 << 20
_INHERITED = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")  # our environment may hold secrets, and PG* settings
_guards: "list[subprocess.Popen[bytes]]" = []  # kept so that ended ones are reaped


class StoreError(Exception):
    """A store cannot be started, reached or used; the message says why and what to do."""


class Launch(Struct, frozen=True):
    """How to start one server, recognise it and stop it. `home` is the server's working directory: a recorded pid
    counts only if the process works there, since pids are reused."""

    name: str
    url: str
    argv: tuple[str, ...]
    home: Path
    log: Path
    account: Account
    environment: dict[str, str]
    pid_file: Path  # written by the server, the pid on its first line
    ready: Callable[[], bool]
    stop_signals: tuple[signal.Signals, ...]  # from polite to final
    lock_files: tuple[Path, ...] = ()  # others that it leaves behind when it is killed, and trusts when it starts


class Daemon:
    """A running server that this process holds. `process` is set only if we started it; `pid` always."""

    def __init__(
        self,
        launch: Launch,
        pid: int,
        users: IO[str],
        process: "subprocess.Popen[bytes] | None" = None,
        guard: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.name = launch.name
        self.url = launch.url
        self.pid = pid
        self.process = process
        self._launch = launch
        self._users = users
        self._guard = guard

    def __repr__(self) -> str:
        return f"<Daemon {self.name} pid={self.pid} {'started' if self.process else 'found'} {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def alive(self) -> bool:
        return _works_in(self.pid, self._launch.home) if self.process is None else self.process.poll() is None

    def release(self, timeout: float = 30.0) -> bool:
        """Give the server up, and stop it if nobody else holds it. True if it was stopped."""
        if self._users.closed:
            return False
        with _exclusive(_lock_path(self._users), timeout):
            last = _try_lock(self._users, fcntl.LOCK_EX)
            if last:
                self.stop(timeout)
            self._users.close()
        if last and self._guard is not None:
            _wait(lambda: self._guard is None or self._guard.poll() is not None, 2.0)
        return last

    def stop(self, timeout: float = 30.0) -> None:
        """Stop the server whoever else may hold it, and one that another holder has started in its place. Each signal
        gets its share of `timeout` seconds."""
        share = timeout / len(self._launch.stop_signals)
        for number in self._launch.stop_signals:
            for pid in self._pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if _wait(lambda: not self._pids(), share):
                return
        raise StoreError(f"{self.name} (pid {self.pid}) does not stop")

    def _pids(self) -> set[int]:
        pids = {self.pid} if self.alive() else set()
        successor = _recorded_pid(self._launch)
        return pids | {successor} if successor and _occupied(self._launch) else pids


def hold(name: str, directory: Path, prepare: Callable[[], Launch], timeout: float) -> Daemon:
    """Start the server or join the one that runs. `prepare` runs under the lock, so first-time set-up may be in it."""
    try:
        users = (directory / f"{name}.users").open("a")
    except PermissionError as error:
        raise StoreError(f"{error.filename} belongs to another user; use that account, or another stateDir") from error
    try:
        with _exclusive(_lock_path(users), timeout):
            if not _wait(lambda: _try_lock(users, fcntl.LOCK_SH), timeout):  # its guard may be stopping it
                raise StoreError(f"{name} in {directory} is being stopped by another process")
            launch = prepare()
            _wait(lambda: launch.ready() or not _occupied(launch), timeout)  # one may be recovering, or stopping
            pid = running(launch)
            if pid is not None:
                return Daemon(launch, pid, users)
            process = _spawn(launch, timeout)
            try:
                return Daemon(launch, process.pid, users, process, _guard(launch, process.pid, users))
            except BaseException:
                process.kill()  # unguarded, it might stay for ever
                process.wait()
                raise
    except BaseException:
        users.close()
        raise


def running(launch: Launch) -> int | None:
    """The pid of the server if it runs and accepts work."""
    pid = _recorded_pid(launch)
    return pid if pid is not None and _works_in(pid, launch.home) and launch.ready() else None


def workers_in(home: Path) -> list[int]:
    """Every process whose working directory is `home`: a dead server's orphans may still write there."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.cwd() == str(home):
                found.append(process.pid)
    return found


def _spawn(launch: Launch, timeout: float) -> "subprocess.Popen[bytes]":
    if not _wait(lambda: not workers_in(launch.home), 10.0):
        orphans = workers_in(launch.home)
        raise StoreError(f"{launch.name}: processes {orphans} of an earlier server still use {launch.home}")
    stale = _recorded_pid(launch)
    if stale is not None and psutil.pid_exists(stale):  # reused by a stranger, whom Postgres would take for a server
        logger.warning("removing %s: its pid %d is another process now", launch.pid_file, stale)
        for path in (launch.pid_file, *launch.lock_files):
            path.unlink(missing_ok=True)
    if launch.log.exists() and launch.log.stat().st_size > _LOG_LIMIT:
        launch.log.replace(launch.log.with_suffix(".old"))
    process = _popen(launch)

    def up() -> bool:  # a stale file may say "ready" until the new server overwrites it
        return _recorded_pid(launch) == process.pid and launch.ready()

    if _wait(lambda: process.poll() is not None or up(), timeout) and process.poll() is None:
        logger.info("%s started, pid %d, log %s", launch.name, process.pid, launch.log)
        return process
    process.kill()
    process.wait()
    raise StoreError(f"{launch.name} does not start. The end of {launch.log}:\n{_tail(launch.log)}")


def _popen(launch: Launch) -> "subprocess.Popen[bytes]":
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    try:
        with launch.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - argv is ours
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=launch.home,
                env=inherited | launch.environment,
                start_new_session=True,  # Ctrl-C belongs to the supervisor, which stops stores last
                **launch.account.spawn_args(),
            )
    except OSError as error:
        raise StoreError(f"{launch.name} cannot be started as '{launch.account.name}': {error}") from error


def _guard(launch: Launch, pid: int, users: IO[str]) -> "subprocess.Popen[bytes]":
    _guards[:] = [guard for guard in _guards if guard.poll() is None]
    created = str(psutil.Process(pid).create_time())
    numbers = [str(int(number)) for number in launch.stop_signals]
    argv = [sys.executable, "-P", str(Path(__file__).with_name("guard.py")), users.name, str(pid), created, *numbers]
    null = subprocess.DEVNULL
    guard = subprocess.Popen(argv, cwd="/", stdin=null, stdout=null, stderr=null, start_new_session=True)  # noqa: S603
    _guards.append(guard)
    return guard


def _recorded_pid(launch: Launch) -> int | None:
    try:
        return int(launch.pid_file.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    except PermissionError as error:
        raise StoreError(f"{launch.home} belongs to another user; run this as {launch.account.name} or root") from error


def _occupied(launch: Launch) -> bool:
    pid = _recorded_pid(launch)
    return pid is not None and _works_in(pid, launch.home)


def _works_in(pid: int, home: Path) -> bool:
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(home))
    except (psutil.Error, OSError):
        return False


def _wait(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _lock_path(users: IO[str]) -> Path:
    return Path(users.name).with_suffix(".lock")


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _exclusive(path: Path, timeout: float) -> Iterator[None]:
    with path.open("a") as file:
        if not _wait(lambda: _try_lock(file, fcntl.LOCK_EX), timeout):
            raise StoreError(f"another process has been holding {path} for {timeout:.0f} s")
        yield


def _tail(path: Path, lines: int = 12) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
