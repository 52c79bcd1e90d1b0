"""One pool's engines on this machine: their directory looked at each second, and what is new there told."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from forebay.platform.announced import Directory, Found
from forebay.platform.config.engines import Announced
from forebay.platform.listed import announced_ranks
from forebay.router import EndpointSpec
from forebay.router.discovery import Report, metrics
from forebay.router.discovery.following import MOST_SHOWN

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class Watching:
    """`model` says what an engine is asked for. `tell` hears of all endpoints there are, first when the directory was
    read, and then whenever they change. While it cannot be read, that are those known last."""

    def __init__(
        self,
        pool: str,
        directory: Directory,
        model: Callable[[Announced], str],
        tell: Callable[[Sequence[EndpointSpec]], None],
        *,
        every: float = LOOK_EVERY_S,
    ) -> None:
        self.pool = pool
        self.first = asyncio.Event()  # set when all that there is was told for the first time
        self.lists = 0  # times that it could be read for the first time, or again
        self._directory = directory
        self._model = model
        self._tell = tell
        self._every = every
        self._found = Found((), {})
        self._away = ""
        self._away_at = 0.0

    def __repr__(self) -> str:
        return f"<Watching {self._directory.path} for {self.pool}: {len(self._found.engines)} engines>"

    def report(self) -> Report:
        return Report(
            synced=self.first.is_set(),
            away=self._away,
            away_s=round(time.monotonic() - self._away_at, 1) if self._away else 0.0,
            endpoints=len(self._found.engines),
            left=len(self._found.left_out),
            unread=0,
            left_out=dict(islice(self._found.left_out.items(), MOST_SHOWN)),
        )

    async def run(self) -> None:
        """Until cancelled."""
        metrics.show(self)
        try:
            await asyncio.to_thread(_make, self._directory.path)
            while True:
                try:
                    self._hear(await asyncio.to_thread(self._directory.look))
                except OSError as error:
                    self._failed(str(error))
                await asyncio.sleep(self._every)
        finally:
            metrics.hide(self)

    def _hear(self, found: Found) -> None:
        for file, why in found.left_out.items():
            if self._found.left_out.get(file) != why:
                log.warning("%s in %s %s (pool %s)", ascii(file), self._directory.path, why, self.pool)
        if self._away or not self.first.is_set():
            self.lists += 1
            self._away = ""
        if not self.first.is_set() or found.engines != self._found.engines:
            self._tell([spec for one, at in found.engines for spec in announced_ranks(one, at, self._model(one))])
        self._found = found
        self.first.set()

    def _failed(self, reason: str) -> None:
        if self._away != reason:
            log.warning("the engines of pool %s stay as they were known last: %s", self.pool, reason)
        if not self._away:
            self._away_at = time.monotonic()
        self._away = reason


def _make(directory: Path) -> None:
    """For this account alone; one that is there stays as it is."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        log.warning("%s cannot be made: %s", directory, error.strerror)
