"""Learnt rates on disk: how fast each engine is outlasts the process that found out."""

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from forebay.router import Core, Learnt

log = logging.getLogger(__name__)

KEEP_EVERY_S = 60.0
_MOST_BYTES = 16 << 20


def path_of(snapshot: Path) -> Path:
    """Beside the snapshot of what is cached where."""
    return snapshot.with_suffix(".rates.json")


def load(path: Path, core: Core) -> None:
    """Never fails: without the file, rates are learnt anew."""
    try:
        with path.open("rb") as file:
            core.relearn(msgspec.json.decode(file.read(_MOST_BYTES), type=list[Learnt]))
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("the rates in %s cannot be read, and are learnt anew: %s", path, error)


async def keep(core: Core, path: Path) -> None:
    """Write down what is known. Never fails."""
    if not (learnt := core.learnt()):
        return
    try:
        await asyncio.to_thread(_write, path, msgspec.json.encode(learnt))
    except OSError as error:
        log.warning("learnt rates are not kept for the next start: %s", error)


async def keeping(core: Core, path: Path) -> None:
    """Until cancelled, now and then."""
    while True:
        await asyncio.sleep(KEEP_EVERY_S)
        await keep(core, path)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
