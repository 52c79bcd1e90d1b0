"""A router's snapshot on disk, from a stop in order to the next start."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from urllib.parse import quote

log = logging.getLogger(__name__)

LATEST_S = 3600.0  # older ones are not worth reading: engines repeat only their latest events
_READ = 1 << 20


def path_of(state_dir: str, replica: str) -> Path:
    return Path(state_dir) / "router" / f"{quote(replica, safe='')}.snapshot"


async def write(path: Path, source: AsyncIterator[bytes]) -> None:
    """Private to this account, and whole or not there. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            async for data in source:
                file.write(data)
            await asyncio.to_thread(_sync, file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def is_fresh(path: Path) -> bool:
    """Whether there is one, and not an old one."""
    try:
        age = time.time() - path.stat().st_mtime
    except OSError:
        return False
    if age > LATEST_S:
        log.info("%s is %.0f minutes old and not read", path, age / 60)
    return age <= LATEST_S


async def read(path: Path) -> AsyncGenerator[bytes, None]:
    """Raises `OSError`."""
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, _READ):
            yield data


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)
