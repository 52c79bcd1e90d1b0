"""The one thread that touches the spool's file. It takes what has queued up, commits it as one transaction, and hands
the waiters back to the event loop in one call.
"""

import logging
import os
import sqlite3
import threading
import time
from asyncio import Future
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from forebay.metering import metrics
from forebay.metering.records import Checkpoint
from forebay.metering.spooldir import acquire, open_own
from forebay.metering.spoolfile import NAME, Batch, SpoolFile, encode, is_damage, set_aside

logger = logging.getLogger(__name__)

Key = tuple[str, int]


class Kind(IntEnum):
    OPEN = 0  # (Key, an Attempt as JSON)
    CLOSE = 1  # (Key, a UsageRecord as JSON)
    CHECKPOINTS = 2  # a dict of Key to Checkpoint
    SHIPPED = 3  # a list of record numbers
    PENDING = 4  # how many
    PARK = 5  # (record number, reason)
    STOP = 6  # None


Item = tuple[Kind, Any, "Future[Any] | None"]
Answer = tuple["Future[Any]", Any]
Deliver = Callable[[list["Future[Any]"], list[Answer]], None]

_BATCH = 4096
_REST_EACH = 0.0005  # seconds of rest behind a commit for each item that it took
_SAMPLE_EVERY = 0.05
_FIRST_RETRY, _LAST_RETRY = 0.05, 1.0


class Writer:
    """Owns the directory from `prepare` to the end of the thread.

    `deliver` is called in this thread after each commit. Other threads may put items into `inbox` and read `failing`,
    `full`, `busy_since` (monotonic seconds, or None between commits), `unshipped` and `used`.
    """

    def __init__(self, directory: Path, limit_bytes: int, interval: float, deliver: Deliver) -> None:
        self.inbox: SimpleQueue[Item] = SimpleQueue()
        self.failing = False
        self.full = False
        self.busy_since: float | None = None
        self.unshipped = 0
        self.used = 0
        self.abandon = threading.Event()
        self._directory = directory
        self._limit = limit_bytes
        self._interval = interval
        self._deliver = deliver
        self._open: dict[Key, tuple[int, bytes]] = {}
        self._next_attempt = 1
        self._next_record = 1
        self._committed_at = 0.0
        self._taken = 0  # items, last
        self._sampled_at = 0.0
        self._stopped: Future[Any] | None = None

    def prepare(self) -> None:
        """Own the directory, open its file and bring what dead processes left there into order."""
        self._lock = acquire(self._directory)
        try:
            self._file = open_own(self._directory)
        except BaseException:
            os.close(self._lock)
            raise
        self._next_record = self._file.last_record() + 1
        self.unshipped = self._file.count()
        self._sample(time.monotonic())

    def run(self) -> None:
        """The thread: until STOP, or until `abandon` is set while the disk fails."""
        try:
            while self._turn():
                pass
        except BaseException:
            self.failing = True
            logger.critical("the writer of the usage spool %s died", self._directory, exc_info=True)
            raise
        finally:
            self._file.close()
            os.close(self._lock)
            self._deliver([self._stopped] if self._stopped else [], [])

    def _turn(self) -> bool:
        items = self._take()
        if items[-1][0] is Kind.STOP:
            self._stopped = items[-1][2]
        self.busy_since = time.monotonic()
        batch, waiters = self._assemble(items)
        if not self._commit(batch):
            return False
        answers = self._serve(items)
        self.busy_since = None
        self._deliver(waiters, answers)
        return self._stopped is None

    def _take(self) -> list[Item]:
        items = [self.inbox.get()]
        # A commit costs as much as dozens of rows, most of it in the kernel. The more there is to write, the longer is
        # the rest behind it, so that more shares the next one; whoever comes alone hardly waits.
        rest = self._committed_at + min(self._interval, _REST_EACH * self._taken) - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        for _ in range(min(self.inbox.qsize(), _BATCH)):
            items.append(self.inbox.get_nowait())  # noqa: PERF401 - a comprehension would lose them on an error
        self._taken = len(items)
        return items

    def _assemble(self, items: list[Item]) -> tuple[Batch, list["Future[Any]"]]:
        batch = Batch(self._next_attempt, self._next_record)
        waiters: list[Future[Any]] = []
        opened: dict[Key, bytes] = {}
        checkpoints: dict[Key, Checkpoint] = {}
        for kind, payload, waiter in items:
            if kind is Kind.OPEN:
                opened[payload[0]] = payload[1]
            elif kind is Kind.CLOSE:
                key, record = payload
                if opened.pop(key, None) is None:  # opened and closed in one batch, it never needs an open row
                    batch.ended.append(self._open.pop(key)[0])
                batch.records.append(record)
            elif kind is Kind.CHECKPOINTS:
                checkpoints.update(payload)
            elif kind is Kind.SHIPPED:
                batch.shipped += payload
            else:
                continue
            if waiter is not None:
                waiters.append(waiter)
        for key, attempt in opened.items():
            self._open[key] = (self._next_attempt, attempt)
            self._next_attempt += 1
            batch.attempts.append(attempt)
        self._next_record += len(batch.records)
        live = ((self._open.get(key), last) for key, last in checkpoints.items())
        batch.checkpoints = [(row[0], encode(last)) for row, last in live if row]
        return batch, waiters

    def _commit(self, batch: Batch) -> bool:
        """Retries until the batch is on disk. False: told to give up, with the batch lost."""
        if not (batch.attempts or batch.records or batch.checkpoints or batch.shipped):
            return True
        delay = _FIRST_RETRY
        while True:
            try:
                if self.failing:
                    self._file = SpoolFile(self._directory / NAME)
                self._file.apply(batch)
                break
            except sqlite3.Error as error:
                self._failed(batch, error)
            if self.abandon.wait(delay):
                return False
            delay = min(delay * 2, _LAST_RETRY)
        self._account(batch)
        return True

    def _account(self, batch: Batch) -> None:
        if self.failing:
            logger.warning("the usage spool %s writes again", self._file.path)
        self.failing = False
        self.unshipped = max(0, self.unshipped + len(batch.records) - len(batch.shipped))
        now = self._committed_at = time.monotonic()
        metrics.spool_commits.inc()
        if batch.shipped or self.full or now - self._sampled_at > _SAMPLE_EVERY:
            self._sample(now)

    def _sample(self, now: float) -> None:
        self._sampled_at = now
        try:
            self.used = self._file.used_bytes()
        except sqlite3.Error as error:
            logger.warning("the usage spool %s cannot be measured: %s", self._file.path, error)
        self.full = self.used >= self._limit

    def _serve(self, items: list[Item]) -> list[Answer]:
        """Answer what needs the file itself, after what was written before it."""
        answers: list[Answer] = []
        for kind, payload, waiter in items:
            if kind not in {Kind.PENDING, Kind.PARK} or waiter is None:
                continue
            value: Any = None
            try:
                if kind is Kind.PENDING:
                    value = self._file.pending(payload)
                    if len(value) < payload:  # unreadable rows were parked, or this is all
                        self.unshipped = len(value)
                else:
                    self._file.park(*payload)
                    self.unshipped = self._file.count()
            except sqlite3.Error as error:
                value = error
            answers.append((waiter, value))
        return answers

    def _failed(self, batch: Batch, error: sqlite3.Error) -> None:
        """Close the file, since a connection that met an error may hold a state that no longer matches the disk."""
        self.failing = True
        metrics.spool_write_errors.inc()
        logger.error("the usage spool %s cannot write and will try again: %s", self._directory, error)
        self._file.close()
        if is_damage(error):
            try:
                set_aside(self._directory / NAME, str(error))
            except OSError as refused:
                logger.error("the damaged usage spool %s cannot be set aside: %s", self._directory, refused)
            else:
                self._start_over(batch)

    def _start_over(self, batch: Batch) -> None:
        """Prepare to write into an empty file all that memory still holds."""
        self.unshipped = 0
        moved = {old: self._next_attempt + index for index, (old, _) in enumerate(self._open.values())}
        batch.first_attempt = self._next_attempt
        batch.attempts = [attempt for _, attempt in self._open.values()]
        batch.checkpoints = [(moved[old], last) for old, last in batch.checkpoints]
        batch.ended = []
        self._open = {key: (moved[old], attempt) for key, (old, attempt) in self._open.items()}
        self._next_attempt += len(moved)
