"""Brings terminal records from the spool to the ledger: at least once, within a second, for as long as it takes.

A record leaves the spool only after the ledger has committed it. A crash between the two ships it again, which the
ledger's unique key absorbs.
"""

import asyncio
import logging
import time
from contextlib import suppress

import asyncpg
from sqlalchemy.exc import DBAPIError

from forebay.metering import metrics
from forebay.metering.ledger import Ledger
from forebay.metering.records import UsageRecord
from forebay.metering.rows import UnfitError
from forebay.metering.spool import Spool

logger = logging.getLogger(__name__)

_BATCH = 500
_FIRST_RETRY, _LAST_RETRY = 0.25, 5.0
_Error = DBAPIError | asyncpg.PostgresError | UnfitError  # COPY's come from the driver as they are
_ERRORS = (DBAPIError, asyncpg.PostgresError, UnfitError)
_REFUSALS = ("22", "23")  # SQLSTATE classes: the data itself is at fault, and another try will not help


class Shipper:
    """A loop over one spool and one ledger. `last_error` is the kind of the last failure, None after a success."""

    def __init__(self, spool: Spool, ledger: Ledger, *, interval: float = 0.25, timeout: float = 15.0) -> None:
        """Looks into the spool every `interval` seconds; one batch may take `timeout` seconds."""
        self._spool = spool
        self._ledger = ledger
        self._interval = interval
        self._timeout = timeout
        self._empty_at = time.monotonic()
        self._turn = asyncio.Lock()
        self.last_error: str | None = None

    def __repr__(self) -> str:
        return f"<Shipper [backlog: {self._spool.unshipped}, last error: {self.last_error}]>"

    async def run(self) -> None:
        """Until cancelled. What is not shipped by then stays in the spool."""
        metrics.oldest_seconds.set_function(self.backlog_age)
        delay = self._interval
        while True:
            delay = self._interval if await self._ship_all() else min(max(delay * 2, _FIRST_RETRY), _LAST_RETRY)
            await asyncio.sleep(delay)

    async def drain(self, timeout: float) -> bool:
        """Ship what is there, for at most `timeout` seconds. False if something remains; the next start ships it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._spool.unshipped:
                    if not await self._ship_all():
                        await asyncio.sleep(_FIRST_RETRY)
        if self._spool.unshipped:
            logger.warning("%d usage records stay in the spool for the next start", self._spool.unshipped)
        return not self._spool.unshipped

    def backlog_age(self) -> float:
        """Seconds since all that the spool held was shipped: the oldest record is not older. 0 while it is empty."""
        return time.monotonic() - self._empty_at if self._spool.unshipped else 0.0

    async def _ship_all(self) -> bool:
        """Whether the ledger took all that there was."""
        async with self._turn:
            try:
                began = time.monotonic()
                while await self._ship_batch():
                    began = time.monotonic()
            except Exception as error:  # noqa: BLE001 - the loop outlives whatever a driver raises
                self._failed(error)
                return False
            self._empty_at = began
            return True

    async def _ship_batch(self) -> bool:
        """Whether more was there already. What comes meanwhile is left to the next look: a statement costs a
        millisecond, for however few rows."""
        if not self._spool.unshipped or not (rows := await self._spool.pending(_BATCH)):
            return False
        async with asyncio.timeout(self._timeout):
            try:
                await self._ledger.insert([record for _, record in rows])
                taken = [number for number, _ in rows]
            except _ERRORS as error:
                if not _refused(error):
                    raise
                taken = await self._one_by_one(rows)
        await self._spool.shipped(taken)
        metrics.shipped.inc(len(taken))
        metrics.ledger_reachable.set(1)
        if self.last_error is not None:
            logger.info("the ledger takes usage records again")
        self.last_error = None
        return len(rows) == _BATCH

    async def _one_by_one(self, rows: list[tuple[int, UsageRecord]]) -> list[int]:
        """Find the records that the ledger will never take, park them, and ship the others."""
        taken = []
        for number, record in rows:
            try:
                await self._ledger.insert([record])
                taken.append(number)
            except _ERRORS as error:
                if not _refused(error):
                    raise
                await self._spool.park(number, f"refused by the ledger: {_cause(error)}")
        return taken

    def _failed(self, error: BaseException) -> None:
        kind = type(error).__name__
        if self.last_error != kind:
            logger.warning("usage records cannot reach the ledger and wait in the spool: %s", kind)
        self.last_error = kind
        metrics.ship_errors.inc()
        metrics.ledger_reachable.set(0)


def _refused(error: _Error) -> bool:
    if isinstance(error, UnfitError):
        return True
    state = getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None)
    return str(state or "")[:2] in _REFUSALS


def _cause(error: _Error) -> str:
    """In words that hold nothing of the record."""
    if isinstance(error, UnfitError):
        return str(error)
    return type(error.orig if isinstance(error, DBAPIError) else error).__name__
