"""The local, durable spool of usage records: what the front door owes the ledger survives the front door.

The event loop only encodes and queues; every write happens in one thread (see `writer`), which commits what has
queued up together. Times: nothing here depends on the wall clock.
"""

import asyncio
import logging
import threading
import time
from asyncio import Future
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forebay.metering import metrics
from forebay.metering.records import Attempt, Checkpoint, UsageRecord
from forebay.metering.spoolfile import encode
from forebay.metering.writer import Answer, Item, Key, Kind, Writer

logger = logging.getLogger(__name__)

_CHECKPOINT_DELAY = 0.25  # checkpoints within it share a commit
_STALLED_AFTER = 2.0  # a commit that takes longer counts as a failing disk
_QUEUE_LIMIT = 50_000


class Spool:
    """The spool in `directory`, which one live process owns (`SpoolInUseError` otherwise).

    Nothing is ever refused once admitted: a full or failing disk turns `accepting` false, so that the front door takes
    no new work, while what is in hand is kept in memory, retried and resolved late.
    """

    def __init__(self, directory: Path, limit_bytes: int, *, commit_interval: float = 0.006) -> None:
        """`commit_interval`: seconds between two commits at most, for the sake of more that share one."""
        self._writer = Writer(directory, limit_bytes, commit_interval, self._deliver_from_thread)
        self.directory = directory
        self._open: set[Key] = set()
        self._checkpoints: dict[Key, Checkpoint] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flush: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "accepting" if self.accepting else "not accepting"
        return f"<Spool {self.directory} {state} [open: {self.open_count}, unshipped: {self.unshipped}]>"

    async def start(self) -> None:
        """Own the directory, settle what dead processes left. Raises `SpoolInUseError`, `sqlite3.Error`, `OSError`."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.prepare)
        self._loop = loop
        threading.Thread(target=self._writer.run, name="usage-spool", daemon=True).start()
        metrics.spool_accepting.set_function(lambda: self.accepting)
        metrics.spool_open.set_function(lambda: self.open_count)
        metrics.spool_unshipped.set_function(lambda: self.unshipped)
        metrics.spool_bytes.set_function(lambda: self._writer.used)

    async def stop(self, timeout: float = 10.0) -> None:
        """Write what is queued, then let go of the directory. After `timeout` seconds of a failing disk, give up."""
        if self._loop is None:
            return
        self._flush_checkpoints()
        stopped: Future[None] = self._loop.create_future()
        self._put((Kind.STOP, None, stopped))
        self._loop = None
        try:
            await asyncio.wait_for(stopped, timeout)
        except TimeoutError:
            self._writer.abandon.set()
            logger.critical(
                "the usage spool %s could not be written before the end; its last records are lost", self.directory
            )

    @property
    def accepting(self) -> bool:
        """Whether new work may be admitted: started, with a disk that answers and room on it."""
        writer = self._writer
        if self._loop is None or writer.failing or writer.full or writer.inbox.qsize() > _QUEUE_LIMIT:
            return False
        busy_since = writer.busy_since
        return busy_since is None or time.monotonic() - busy_since < _STALLED_AFTER

    @property
    def unshipped(self) -> int:
        """Durable terminal records that are not yet known to be in the ledger."""
        return self._writer.unshipped

    @property
    def open_count(self) -> int:
        """Attempts opened and not yet closed."""
        return len(self._open)

    def open(self, attempt: Attempt) -> "Future[None]":
        """Record that work is dispatched. Resolves when that is durable. Raises ValueError for one already open."""
        key = (attempt.request_id, attempt.attempt)
        if key in self._open:
            raise ValueError(f"attempt {key} is open already")
        future = self._enqueue(Kind.OPEN, (key, encode(attempt)))
        self._open.add(key)
        return future

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Note what an open attempt has used. Durable within half a second; only the latest of an attempt is kept."""
        key = (checkpoint.request_id, checkpoint.attempt)
        if key not in self._open or self._loop is None:
            return
        self._checkpoints[key] = checkpoint
        if self._flush is None:
            self._flush = self._loop.call_later(_CHECKPOINT_DELAY, self._flush_checkpoints)

    def close(self, record: UsageRecord) -> "Future[None]":
        """Replace the open record by its terminal one. Resolves when that is durable.

        An attempt has exactly one: a close of one that is not open is ignored and counted, and resolves all the same.
        """
        key = (record.attempt.request_id, record.attempt.attempt)
        if key not in self._open:
            metrics.spool_second_closes.inc()
            logger.error("ignored a terminal record for attempt %s, which is not open", key)
            return self._enqueue(Kind.SHIPPED, ())
        future = self._enqueue(Kind.CLOSE, (key, encode(record)))
        self._open.discard(key)
        self._checkpoints.pop(key, None)
        return future

    async def pending(self, limit: int) -> list[tuple[int, UsageRecord]]:
        """The oldest unshipped records, each with its number in this spool. Raises `sqlite3.Error`."""
        found: list[tuple[int, UsageRecord]] = await self._enqueue(Kind.PENDING, limit)
        return found

    async def shipped(self, numbers: Sequence[int]) -> None:
        """Drop records that are in the ledger. Returns when that is durable."""
        await self._enqueue(Kind.SHIPPED, numbers)

    async def park(self, number: int, reason: str) -> None:
        """Set one record aside, in the spool, because the ledger will never take it. Raises `sqlite3.Error`."""
        await self._enqueue(Kind.PARK, (number, reason))

    def _enqueue(self, kind: Kind, payload: Any) -> "Future[Any]":
        if self._loop is None:
            raise RuntimeError("the usage spool is not running")
        future: Future[Any] = self._loop.create_future()
        self._put((kind, payload, future))
        return future

    def _put(self, item: Item) -> None:
        self._writer.inbox.put(item)

    def _flush_checkpoints(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._checkpoints:
            taken, self._checkpoints = self._checkpoints, {}
            self._put((Kind.CHECKPOINTS, taken, None))

    def _deliver_from_thread(self, waiters: list["Future[Any]"], answers: list[Answer]) -> None:
        if not waiters and not answers:
            return
        loop = (waiters[0] if waiters else answers[0][0]).get_loop()
        try:
            loop.call_soon_threadsafe(_resolve, waiters, answers)
        except RuntimeError:  # the loop is closed, and nobody waits any more
            logger.debug("the event loop ended before the usage spool")


def _resolve(waiters: list["Future[Any]"], answers: list[Answer]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    for waiter, answer in answers:
        if waiter.done():
            continue
        if isinstance(answer, Exception):
            waiter.set_exception(answer)
        else:
            waiter.set_result(answer)
