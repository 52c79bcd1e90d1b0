"""Whether each store is up, found out by asking it again and again; reading the answer never waits."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct
from prometheus_client import Gauge

from forebay.platform.tasks import ending

logger = logging.getLogger(__name__)

Ping = Callable[[], Awaitable[None]]

UP = Gauge("forebay_store_up", "1 while the store answers pings", ["store"])


class StoreState(Struct, frozen=True):
    """`since` is the Unix time at which `up` last changed; `error` names the kind of failure, never its text."""

    up: bool
    since: float
    error: str | None = None


class StoreHealth:
    """Pings every store each `interval` seconds, all at once, each with its own deadline. A store that has never
    answered is down."""

    def __init__(self, pings: Mapping[str, Ping], *, interval: float = 1.0, timeout: float = 2.0) -> None:
        self._pings = dict(pings)
        self._interval = interval
        self._timeout = timeout
        self._states = {name: StoreState(False, time.time(), "not asked yet") for name in pings}

    @property
    def states(self) -> Mapping[str, StoreState]:
        return self._states

    async def run(self) -> None:
        """Until cancelled. A store that hangs delays only its own answer."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._pings:
                tasks.create_task(self._watch(name))

    async def check(self) -> None:
        """Ask every store now."""
        await asyncio.gather(*(self._ask(name) for name in self._pings))

    async def _watch(self, name: str) -> None:
        while not ending():
            await self._ask(name)
            await asyncio.sleep(self._interval)

    async def _ask(self, name: str) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._pings[name]()
        except Exception as error:  # noqa: BLE001 - whatever a driver raises means "down"
            self._set(name, up=False, error=type(error).__name__)
        else:
            self._set(name, up=True)

    def _set(self, name: str, *, up: bool, error: str | None = None) -> None:
        before = self._states[name]
        changed = before.up != up or before.error == "not asked yet"
        self._states[name] = StoreState(up, time.time() if changed else before.since, error)
        UP.labels(name).set(up)
        if changed:
            logger.log(logging.INFO if up else logging.WARNING, "%s is %s%s", name, "up" if up else "down",
                       f" ({error})" if error else "")  # fmt: skip
