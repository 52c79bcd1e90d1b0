"""Engines of this machine, as the files of one directory announce them: a JSON object for each process.

Whatever stands there is read with suspicion. A file is at fault alone; a directory that cannot be trusted, or has too
much in it, is at fault as a whole, and then what was known stays.
"""

import os
import stat
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
import psutil
from msgspec import Struct

from forebay.platform.config import rules
from forebay.platform.config.engines import Announced, LocalProcesses, Pool
from forebay.platform.config.faults import Report
from forebay.platform.config.model import Config

MOST_FILES = 256  # read each second
MOST_ENTRIES = 16 * MOST_FILES  # that are looked at, whatever they are
MOST_BYTES = 16 << 10  # of a file
SUFFIX = ".json"


class Found(Struct, frozen=True):
    """`engines`: those that run, in the order of their files, each with what tells its process from another of its pid.
    `left_out`: what is wrong with files, by name."""

    engines: tuple[tuple[Announced, str], ...]
    left_out: dict[str, str]


def directory_of(config: Config, pool: Pool, options: LocalProcesses) -> Path:
    """Where the engines of a pool announce themselves."""
    given = options.directory or Path(config.stores.state_dir) / "run" / "engines" / quote(pool.name, safe="")
    return Path(given).absolute()


class Directory:
    """Read again and again, by one thread at a time."""

    def __init__(self, path: Path, api_key_env: str | None = None) -> None:
        self.path = path
        self._api_key_env = api_key_env
        self._known: dict[str, Announced] = {}  # by file, as it was readable last
        self._processes: dict[int, tuple[psutil.Process, str]] = {}
        self._started = 0

    def look(self) -> Found:
        """What is announced now. Raises `OSError` where that cannot be said."""
        known, processes, left_out = self._known, self._processes, dict[str, str]()
        self._known, self._processes = {}, {}
        engines: list[tuple[Announced, str]] = []
        names, urls = dict[str, str](), dict[str, str]()
        try:
            files = _files(self.path)
        except OSError:
            self._known, self._processes = known, processes
            raise
        for file in files:
            shown = _plain(file)
            engine, fault = _read_or(self.path / file, known.get(file))
            if fault:
                left_out[shown] = fault
            if engine is None:
                continue
            self._known[file] = engine
            instance = self._instance(engine, processes)
            other = names.get(engine.called) or urls.get(engine.url)
            if not instance:
                left_out[shown] = f"is of process {engine.pid}, which does not run here"
            elif other:
                left_out[shown] = f"has the {'name' if engine.called in names else 'url'} of {other}"
            else:
                names[engine.called] = urls[engine.url] = shown
                engines.append((msgspec.structs.replace(engine, api_key_env=self._api_key_env), instance))
        return Found(tuple(engines), left_out)

    def _instance(self, engine: Announced, processes: dict[int, tuple[psutil.Process, str]]) -> str:
        """Empty where no such process runs. Told by when it began on the monotonic clock, never by the time of day."""
        pid = engine.pid
        if engine.life and engine.life != life(pid):
            return ""
        known = self._processes.get(pid) or processes.get(pid)
        try:
            if known is None or not known[0].is_running():
                self._started += 1
                known = psutil.Process(pid), f"{pid}.{self._started}"
            if known[0].status() == psutil.STATUS_ZOMBIE:
                return ""
        except psutil.Error:
            return ""
        self._processes[pid] = known
        return known[1]


def _files(directory: Path) -> list[str]:
    if directory.stat().st_mode & stat.S_IWOTH:
        raise PermissionError(f"{directory} can be written by everybody: chmod o-w {directory}")
    found = []
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries, 1):
            if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                found.append(entry.name)
            if len(found) > MOST_FILES or count > MOST_ENTRIES:
                raise OSError(f"{directory} holds more than {MOST_FILES} files: remove those that were left there")
    return sorted(found)


def _read_or(path: Path, known: Announced | None) -> tuple[Announced | None, str]:
    """A file that is being written anew says for the moment what it said before."""
    try:
        return read(path), ""
    except FileNotFoundError:
        return None, ""  # it has just gone
    except (OSError, ValueError) as error:
        fault = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return known, _plain(f"{fault}; what it said before stays" if known else fault)


def read(path: Path) -> Announced:
    """One file. Raises `OSError` and `ValueError`, which say what is wrong with it."""
    if path.is_symlink():
        raise ValueError("is a symbolic link")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is no regular file")
        body = os.read(descriptor, MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(body) > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES} bytes")
    return understood(body, path.name.removesuffix(SUFFIX))


def holder(path: Path) -> int | None:
    """The process that a file speaks of, if that runs."""
    try:
        engine = read(path)
        if engine.life and engine.life != life(engine.pid):
            return None
        return None if psutil.Process(engine.pid).status() == psutil.STATUS_ZOMBIE else engine.pid
    except (OSError, ValueError, psutil.Error):
        return None


def life(pid: int) -> str:
    """What tells a process from any other that has, had or will have its number: this boot of the machine, and when it
    was started, in ticks since then (proc(5)). Empty where it does not run."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except OSError:
        return ""


def understood(body: bytes, name: str) -> Announced:
    """`name` is what it is called where it does not say. Raises `ValueError`."""
    try:
        said = msgspec.json.decode(body, type=Announced)
        data = msgspec.to_builtins(said) | {"name": said.name or name}
        report = Report(name)
        rules.engine(data, (), report, os.environ)
        engine = msgspec.convert(data, Announced) if data["url"] else said
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    faults = [fault for fault in report.faults if not fault.warning]
    if faults:
        raise ValueError(f"cannot be used: {faults[0].path}: {faults[0].problem}")
    if engine.api_key_env:  # whoever writes it would have any variable of ours sent to a port of theirs
        raise ValueError("names a variable in apiKeyEnv: only the configuration may, in discovery.local")
    for address in (engine.url, engine.kv_events, engine.kv_replay):
        if address and not _is_here(address):
            raise ValueError(f"names {address}, which is not on this machine: list it under endpoints")
    return engine


def _is_here(address: str) -> bool:
    """Whether only this machine can be behind it: it is sent prompts, and must not be anywhere that a file says."""
    if address.startswith("ipc://"):
        return True
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(text: str) -> str:
    """In one line of a log."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:300]
