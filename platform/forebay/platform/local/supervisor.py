"""Keeps the parts of a local Forebay running, and takes all of them down when one cannot be kept.

A part that ends is started again after a pause that doubles; one that ends too often within a window, or does not
come up on the first start, is given up, and with it everything else.
"""

import asyncio
import contextlib
import signal
import time
from pathlib import Path

from msgspec import Struct

from forebay.platform.local import probe
from forebay.platform.local.commands import LocalError, tail
from forebay.platform.local.process import Child, Part, spawn
from forebay.platform.local.progress import Progress, Step


class PartError(LocalError):
    """A part that cannot be started, or not any more. The message ends with its log's last lines."""


class Limits(Struct, frozen=True):
    """Seconds, except `restarts`: that many ends within `window` are mended, the next one is final."""

    restarts: int = 5
    window: float = 600.0
    pause: float = 1.0  # before the first restart; doubles with each end within the window
    pause_limit: float = 30.0
    probe_every: float = 0.25
    leave: float = 2.0  # between the end of an announcement and that of the process: front doors look once a second


class Supervisor:
    def __init__(self, logs: Path, progress: Progress, limits: Limits | None = None) -> None:
        self._logs = logs
        self._progress = progress
        self._limits = limits or Limits()
        self._children: dict[str, Child] = {}
        self._guards: dict[str, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Supervisor {list(self._children.values())}>"

    @property
    def pids(self) -> dict[str, int]:
        """The running parts. A part that is being restarted is absent."""
        return {name: child.pid for name, child in self._children.items() if child.code is None}

    async def stop_requested(self) -> None:
        """Returns when a stop is asked for."""
        await self._stop.wait()

    def request_stop(self) -> None:
        """The first request stops in order, the second at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def take_signals(self) -> None:
        """Ctrl-C, SIGTERM and a closed terminal become requests to stop, until the loop ends."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.request_stop)

    async def start(self, part: Part) -> None:
        """Returns when the part is ready; from then on it is kept running. Raises `PartError`."""
        async with self._progress.step(part.name, "starting") as step:
            child = await self._spawn(part)
            await self._until_ready(child, step)
            self._announce(child)
        self._guards[part.name] = asyncio.create_task(self._guard(part), name=f"guard {part.name}")

    async def run(self) -> None:
        """Until a stop is requested. Raises `PartError` when a part is given up."""
        stop = asyncio.create_task(self._stop.wait())
        housekeeping = asyncio.create_task(self._bound_logs())
        try:
            done, _ = await asyncio.wait({stop, *self._guards.values()}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                task.result()
        finally:
            stop.cancel()
            housekeeping.cancel()

    async def stop(self) -> None:
        """Ends every part, rank by rank. Nothing that was started here is left afterwards."""
        self._stop.set()
        for guard in self._guards.values():
            guard.cancel()
        await asyncio.gather(*self._guards.values(), return_exceptions=True)
        running = [child for child in self._children.values() if child.code is None]
        for rank in sorted({child.part.rank for child in running}):
            await asyncio.gather(*(self._end(child) for child in running if child.part.rank == rank))

    async def _end(self, child: Child) -> None:
        async with self._progress.step(child.part.name, "stopping"):
            if child.part.announced is not None:
                child.part.announced.withdraw(child.pid)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), self._limits.leave)
            child.terminate()
            ended = asyncio.create_task(child.wait())
            hurry = asyncio.create_task(self._hurry.wait())
            await asyncio.wait({ended, hurry}, timeout=child.part.stop_timeout, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            child.kill()
            await ended

    async def _spawn(self, part: Part) -> Child:
        child = await spawn(part, self._logs)
        self._children[part.name] = child
        return child

    async def _until_ready(self, child: Child, step: Step) -> None:
        deadline = time.monotonic() + child.part.ready_timeout
        while time.monotonic() < deadline:
            if child.code is not None:
                await child.wait()
                raise PartError(f"{child.part.name} {ending(child.code)} before it was ready.\n{self._why(child)}")
            if await self._is_ready(child.part):
                return
            step.detail = child.doing() or step.detail
            await asyncio.sleep(self._limits.probe_every)
        seconds = child.part.ready_timeout
        raise PartError(f"{child.part.name} was not ready within {seconds:.0f} s.\n{self._why(child)}")

    async def _is_ready(self, part: Part) -> bool:
        if part.ready_url is None:
            return True
        status, _ = await probe.get(part.ready_url)
        return status == 200

    async def _guard(self, part: Part) -> None:
        ends: list[float] = []
        while True:
            child = self._children[part.name]
            code = await child.wait()
            if part.announced is not None:
                part.announced.withdraw(child.pid)
            now = time.monotonic()
            ends = [at for at in ends if now - at < self._limits.window] + [now]
            if len(ends) > self._limits.restarts:
                raise PartError(f"{part.name} {ending(code)} for the {len(ends)}th time.\n{self._why(child)}")
            pause = min(self._limits.pause_limit, self._limits.pause * 2 ** (len(ends) - 1))
            self._progress.say(f"!!! {part.name:<10} {ending(code)}; starting it again in {pause:.0f} s")
            await asyncio.sleep(pause)
            await self._again(part)

    async def _again(self, part: Part) -> None:
        """A restarted part that does not come up is ended, and its guard counts that like any other end."""
        child = await self._spawn(part)
        with contextlib.suppress(PartError):
            async with self._progress.step(part.name, "starting again") as step:
                await self._until_ready(child, step)
                self._announce(child)
            return
        child.kill()

    def _announce(self, child: Child) -> None:
        if (announced := child.part.announced) is None:
            return
        try:
            announced.make(child.pid)
        except OSError as error:
            raise PartError(f"{child.part.name} cannot be announced in {announced.path}: {error.strerror}") from None

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(5.0)
            for child in self._children.values():
                await asyncio.to_thread(child.bound_log)

    def _why(self, child: Child) -> str:
        return f"{tail(child.log)}\nThe whole log: {child.log}"


def ending(code: int) -> str:
    """`-9` -> 'was ended by SIGKILL'."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
