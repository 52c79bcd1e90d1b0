"""Changes to keys, projects and tenants, as every replica hears of them.

The truth is the table `auth_changes`, numbered in the order in which changes became visible. It is read when Postgres
notifies us, and every `poll_every` seconds in any case: through a pooler that cannot LISTEN, or with the listening
connection lost, changes arrive half a second later and that is all.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from prometheus_client import Counter, Gauge
from sqlalchemy import NullPool, Row, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from forebay.platform.stores.database import CONNECT_TIMEOUT
from forebay.platform.tasks import ending
from forebay.platform.tenancy.cache import Change

logger = logging.getLogger(__name__)
CHANNEL = "forebay_auth"
CHANGES = Counter("forebay_auth_changes_total", "Changes to keys, projects and tenants that reached this process")
LISTENING = Gauge("forebay_auth_listening", "1 while changes are announced by Postgres, 0 while they are polled for")

_HEAD = text("""
    SELECT min(seq) AS oldest, max(seq) AS newest, extract(epoch FROM clock_timestamp())::float8 AS now,
           (SELECT at FROM auth_changes WHERE seq = :position) AS last_at FROM auth_changes
""")
_SINCE = text("SELECT seq, kind, id, at FROM auth_changes WHERE seq > :position ORDER BY seq LIMIT 1000")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed() -> float:
    """Seconds on a clock that nobody can set, and that runs on while the machine sleeps where the system has one."""
    return time.clock_gettime(_CLOCK)


class ChangeFeed:
    """Calls `apply` with changes in their order, or with None when some may have been missed.

    `contact` is when (in `elapsed` seconds) we last knew all changes; `failing` whether the last attempt failed.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        apply: Callable[[Iterable[Change] | None], None],
        *,
        poll_every: float = 0.5,
        timeout: float = CONNECT_TIMEOUT,
        listen: bool = True,
    ) -> None:
        self._engine = engine
        self._apply = apply
        self._poll_every = poll_every
        self._timeout = timeout
        self._listen = listen
        self._position: int | None = None
        self._last_at: datetime | None = None  # of the entry at that position
        self._wake = asyncio.Event()
        self._offset = time.time() - elapsed()
        self.contact = float("-inf")
        self.failing = False

    def __repr__(self) -> str:
        return f"<ChangeFeed at {self._position}, contact {elapsed() - self.contact:.1f} s ago, failing={self.failing}>"

    @property
    def synchronised(self) -> bool:
        return self._position is not None

    def now(self) -> float:
        """Unix seconds by the database's clock, carried forward by ours; never goes back, whatever is set where."""
        return elapsed() + self._offset

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll())
            if self._listen:
                tasks.create_task(self._keep_listening())

    async def _poll(self) -> None:
        while not ending():
            self._wake.clear()
            try:
                async with asyncio.timeout(self._timeout):
                    await self.read()
            except Exception as error:  # noqa: BLE001 - nothing may end this loop
                self._failed(error)
            try:
                async with asyncio.timeout(self._poll_every):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def read(self) -> None:
        """Catch up with the table. Raises one of database.ERRORS."""
        started = elapsed()
        async with self._engine.connect() as db:
            head = (await db.execute(_HEAD, {"position": self._position or 0})).one()
            finished = elapsed()
            if self._lost_track(head):
                self._apply(None)  # first: what is read before this counts as overtaken
                self._position, self._last_at = 0, None
                if head.newest is not None:
                    last = (await db.execute(_SINCE, {"position": head.newest - 1})).first()
                    self._position, self._last_at = (last.seq, last.at) if last else (0, None)
            while (head.newest or 0) > (position := self._position or 0):
                rows = (await db.execute(_SINCE, {"position": position})).all()
                if not rows:
                    break  # pruned between the two statements; the next round sees the hole
                self._apply([Change(row.kind, row.id) for row in rows])
                CHANGES.inc(len(rows))
                self._position, self._last_at = rows[-1].seq, rows[-1].at
        self._observe(head.now - finished)
        self.contact = started
        if self.failing:
            logger.info("changes to keys are followed again")
        self.failing = False

    def _lost_track(self, head: Row[Any]) -> bool:
        """First contact; a table that no longer continues what we have read (a restored backup); or a hole where
        entries were pruned before we read them."""
        if self._position is None:
            return True
        if head.newest is None:
            return False
        if head.oldest <= self._position:
            return bool(head.last_at != self._last_at)
        return bool(head.oldest > self._position + 1)

    def _observe(self, offset: float) -> None:
        # The first reading replaces our own clock's, later ones only ever move forward.
        self._offset = offset if self.contact == float("-inf") else max(self._offset, offset)

    def _failed(self, error: BaseException) -> None:
        if not self.failing:
            logger.warning("changes to keys cannot be followed: %s", type(error).__name__)
        self.failing = True

    async def _keep_listening(self) -> None:
        delay = 0.5
        while not ending():
            try:
                await self._listen_once()
                delay = 0.5
            except Exception as error:  # noqa: BLE001 - nothing may end this loop
                logger.info("not listening for changes to keys, polling: %s", type(error).__name__)
            finally:
                LISTENING.set(0)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 5.0)

    async def _listen_once(self) -> None:
        """Until the connection ends. A connection of its own, since it is held for ever."""
        options = {"timeout": self._timeout, "server_settings": {"application_name": "forebay-listen"}}
        engine = create_async_engine(self._engine.url, poolclass=NullPool, connect_args=options)
        try:
            async with engine.connect() as db:
                driver: Any = (await db.get_raw_connection()).driver_connection
                gone = asyncio.Event()
                driver.add_termination_listener(lambda *_: gone.set())
                await driver.add_listener(CHANNEL, lambda *_: self._wake.set())
                self._wake.set()  # what was announced before we listened
                LISTENING.set(1)
                while not await _within(gone, 15.0):
                    await driver.execute("SELECT 1", timeout=self._timeout)  # a peer that vanished sends no end
        finally:
            await engine.dispose()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
