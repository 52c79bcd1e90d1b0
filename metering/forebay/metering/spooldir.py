"""Who owns a spool directory: one live process, by a lock that dies with it.

Directories are laid out as `spool/<name>/`. A directory whose owner died is adopted by the next process that starts
beside it, so that a renamed or replaced front door loses nothing.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from forebay.metering import metrics
from forebay.metering.spoolfile import NAME, Batch, SpoolFile, encode, open_checked

logger = logging.getLogger(__name__)

LOCK = "lock"
_CHUNK = 1000


class SpoolInUseError(RuntimeError):
    """Another live process owns the directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"the usage spool {directory} belongs to another running process; give each its own directory")


def acquire(directory: Path) -> int:
    """Own `directory`, created if need be, until the returned file descriptor is closed. Raises `SpoolInUseError`."""
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise SpoolInUseError(directory) from None
    return fd


def open_own(directory: Path) -> SpoolFile:
    """Open the spool of an owned directory, with its abandoned attempts closed and its dead siblings' rows in it."""
    file = open_checked(directory / NAME)
    _close_abandoned(file)
    for sibling in _siblings(directory):
        _adopt(file, sibling)
    return file


def _siblings(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.resolve().parent.iterdir()):
        if path != directory.resolve() and (path / NAME).is_file() and (path / LOCK).is_file():
            yield path


def _close_abandoned(file: SpoolFile) -> None:
    lost, ended = file.abandoned()
    if not lost:
        return
    records = [encode(record) for record in lost]
    file.apply(Batch(first_attempt=1, first_record=file.last_record() + 1, records=records, ended=ended))
    metrics.spool_lost_attempts.inc(len(lost))
    logger.warning("closed %d attempts of %s whose front door died, from their last checkpoints", len(lost), file.path)


def _adopt(own: SpoolFile, sibling: Path) -> None:
    """Move a dead sibling's records here. Killed half-way, it moves some twice; the ledger's unique key absorbs it."""
    try:
        fd = acquire(sibling)
    except SpoolInUseError:
        return
    try:
        file = open_checked(sibling / NAME)
        try:
            _close_abandoned(file)
            moved = _move(file, own)
        finally:
            file.close()
        for suffix in ("-wal", "-shm", ""):
            (sibling / (NAME + suffix)).unlink(missing_ok=True)
        level = logging.WARNING if moved else logging.DEBUG
        logger.log(level, "adopted %d usage records from %s, whose owner is gone", moved, sibling)
    finally:
        os.close(fd)


def _move(source: SpoolFile, target: SpoolFile) -> int:
    moved, after = 0, 0
    while rows := source.pending(_CHUNK, after):
        records = [encode(record) for _, record in rows]
        target.apply(Batch(first_attempt=1, first_record=target.last_record() + 1, records=records))
        moved, after = moved + len(rows), rows[-1][0]
    return moved
