"""Where things lie in the state directory (`.forebay`), and the lock that keeps two set-ups apart."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct

from forebay.platform.local.progress import Progress

MODEL = "smollm2-135m-instruct"  # the name engines serve it under


class Paths(Struct, frozen=True):
    """All paths are absolute. Nothing is created by asking."""

    state: Path

    @property
    def engine(self) -> Path:
        """The virtual environment of the vLLM engines."""
        return self.state / "engines" / "vllm"

    @property
    def engine_python(self) -> Path:
        return self.engine / "bin" / "python"

    @property
    def weights(self) -> Path:
        return self.state / "models" / "SmolLM2-135M-Instruct"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def config(self) -> Path:
        """What `forebay up` wrote for the front door."""
        return self.state / "forebay.yaml"

    @property
    def demo(self) -> Path:
        """The demo tenant's key, mode 0600."""
        return self.state / "demo.json"

    @property
    def running(self) -> Path:
        """Written while `forebay up` runs and is ready."""
        return self.state / "run" / "up.json"


def paths(state_dir: str) -> Paths:
    """Of `stores.stateDir`."""
    return Paths(Path(state_dir).absolute())


def write_private(path: Path, text: str) -> None:
    """Mode 0600 from its first byte on, and never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


@contextlib.asynccontextmanager
async def exclusive(lock: Path, progress: Progress, waiting: str) -> AsyncIterator[None]:
    """Holds a file lock. While another process has it, says `waiting` once and waits; a holder that dies lets go."""
    descriptor = try_lock(lock)
    if descriptor is None:
        async with progress.step("lock", waiting):
            while descriptor is None:
                await asyncio.sleep(0.5)
                descriptor = try_lock(lock)
    try:
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
