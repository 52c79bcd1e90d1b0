"""The embedded stores as `forebay up` holds them: started first, watched, started again, stopped last."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forebay.platform.config.model import Config
from forebay.platform.local.commands import LocalError
from forebay.platform.local.progress import Progress
from forebay.platform.stores import embedded
from forebay.platform.stores.daemon import Daemon, StoreError

RESTARTS = 5  # of each store while this process runs; a store that dies more often is not kept
_STARTERS: dict[str, Callable[[Path], Daemon]] = {
    "postgres": embedded.start_postgres,
    "valkey": embedded.start_valkey,
}


class HeldStores:
    """Stores named by URL are left alone: they are somebody else's to run."""

    def __init__(self, config: Config, progress: Progress) -> None:
        self._state = Path(config.stores.state_dir)
        self._configured = {"postgres": config.stores.postgres, "valkey": config.stores.valkey}
        self._progress = progress
        self._held: dict[str, Daemon] = {}

    async def start(self) -> None:
        """Raises `LocalError`."""
        for name, configured in self._configured.items():
            if configured == "embedded":
                async with self._progress.step(name, "starting"):
                    await self._hold(name)

    @property
    def pids(self) -> dict[str, int]:
        return {name: daemon.pid for name, daemon in self._held.items()}

    @property
    def postgres_url(self) -> str:
        held = self._held.get("postgres")
        return held.url if held else self._configured["postgres"]

    async def watch(self) -> None:
        """Until cancelled. Raises `LocalError` when a store cannot be kept."""
        restarts = dict.fromkeys(self._held, 0)
        while True:
            await asyncio.sleep(1.0)
            for name, daemon in list(self._held.items()):
                if await asyncio.to_thread(daemon.alive):
                    continue
                restarts[name] += 1
                if restarts[name] > RESTARTS:
                    raise LocalError(f"{name} keeps ending; its log is in {self._state / name}")
                self._progress.say(f"!!! {name:<10} ended; starting it again")
                await asyncio.to_thread(daemon.release)
                async with self._progress.step(name, "starting again"):
                    await self._hold(name)

    async def stop(self) -> None:
        for name, daemon in reversed(self._held.items()):
            async with self._progress.step(name, "stopping"):
                with suppress(StoreError):
                    await asyncio.to_thread(daemon.release)
        self._held.clear()

    async def _hold(self, name: str) -> None:
        """A thread cannot be cancelled, so a cancelled start is waited for: `stop` must know what it started."""
        starting = asyncio.create_task(asyncio.to_thread(_STARTERS[name], self._state))
        try:
            self._held[name] = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(StoreError):
                self._held[name] = await starting
            raise
        except StoreError as error:
            raise LocalError(str(error)) from None
