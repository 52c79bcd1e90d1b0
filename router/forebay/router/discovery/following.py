"""One pool's engines in Kubernetes: followed in threads, told in the event loop."""

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec import Struct

from forebay.router.discovery import metrics
from forebay.router.discovery.pods import PASSING, Found, Pod, Rules, Slice, found
from forebay.router.discovery.reflector import PAUSES_S, Reflector, Source
from forebay.router.endpoints import EndpointSpec

log = logging.getLogger(__name__)

MOST_SHOWN = 20
SETTLE_S = 0.02  # changes that come together are told together
Tell = Callable[[tuple[EndpointSpec, ...]], None]


class Report(Struct, frozen=True):
    """How well a pool's engines are known. `away`: why the API cannot be followed; empty while it is. `left`: how many
    pods are no endpoints; `left_out`: why, of some. `unread`: objects so far that could not be read."""

    synced: bool
    away: str
    away_s: float  # for how long that is so
    endpoints: int
    left: int
    unread: int
    left_out: dict[str, str]


class Discovery:
    """`pods`, and `slices` of a service if it is by one. `tell` hears of all endpoints there are, first when both are
    known, and then whenever they change. While the API is away, that are those known last."""

    def __init__(
        self,
        pool: str,
        rules: Rules,
        pods: Source,
        slices: Source | None,
        tell: Tell,
        *,
        pauses: tuple[float, float] = PAUSES_S,
    ) -> None:
        self.pool = pool
        self.first = asyncio.Event()  # set when all that there is was told for the first time
        self._rules = rules
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._found = Found((), {})
        self._pods = Reflector(f"the pods of pool {pool}", pods, Pod, self._hear, pauses=pauses)
        self._slices = None if slices is None else Reflector(
            f"the endpoint slices of pool {pool}", slices, Slice, self._hear, pauses=pauses
        )  # fmt: skip
        self._both: list[Reflector[Any]] = [self._pods] if self._slices is None else [self._pods, self._slices]

    def __repr__(self) -> str:
        return f"<Discovery of {self.pool}: {len(self._found.specs)} endpoints, {self._both}>"

    def report(self) -> Report:
        away = [one for one in self._both if one.away]
        return Report(
            synced=all(one.synced for one in self._both),
            away=away[0].away if away else "",
            away_s=round(time.monotonic() - min(one.away_at for one in away), 1) if away else 0.0,
            endpoints=len(self._found.specs),
            left=len(self._found.left_out),
            unread=sum(one.odd for one in self._both),
            left_out=dict(islice(self._found.left_out.items(), MOST_SHOWN)),
        )

    @property
    def lists(self) -> int:
        """How often objects were listed anew."""
        return sum(one.lists for one in self._both)

    async def run(self) -> None:
        """Until cancelled; once."""
        metrics.show(self)
        for one in self._both:
            one.start()
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    if all(one.synced for one in self._both):
                        self._look()
                except Exception:
                    log.exception("what was found for pool %s could not be used", self.pool)
                await asyncio.sleep(SETTLE_S)
        finally:
            metrics.hide(self)
            for one in self._both:
                one.stop()

    def _look(self) -> None:
        slices = None if self._slices is None else self._slices.items.values()
        known = found(self._pods.items, slices, self._rules)
        for name, why in known.left_out.items():
            if self._found.left_out.get(name) != why:
                level = logging.INFO if why in PASSING else logging.WARNING
                log.log(level, "pod %s is no endpoint of pool %s: it %s", name, self.pool, why)
        if not self.first.is_set() or self._found.specs != known.specs:
            self._tell(known.specs)
        self._found = known
        self.first.set()

    def _hear(self) -> None:
        """In a reflector's thread."""
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            return  # the loop has closed: the process ends
