"""The workers of a front door as its router process sees them: started, started again when they end, and stopped.

They stay in this process's group, so that whoever ends the group ends them as well.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

from prometheus_client import Counter

from forebay.platform.local.process import WRAPPER
from forebay.platform.local.supervisor import Limits, ending
from forebay.platform.workers import orders
from forebay.platform.workers.orders import Orders

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "forebay.platform.workers.worker")
READY_WITHIN_S = 120.0
LIMITS = Limits(pause=0.2)
_RESTARTS = Counter("forebay_worker_restarts_total", "Workers of this front door that ended and were started again")


class WorkerError(RuntimeError):
    """A worker that cannot be started, or not any more."""


class Crew:
    """`async with` it: the workers are ready then. `run` keeps them, `stop` ends them in order."""

    def __init__(
        self,
        all_orders: Sequence[Orders],
        *,
        stop_timeout: float,
        limits: Limits = LIMITS,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._workers = [Worker(one, command) for one in all_orders]
        self._stop_timeout = stop_timeout
        self._limits = limits
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Crew {self._workers}>"

    @property
    def pids(self) -> dict[str, int]:
        """Of the workers that run."""
        return {worker.name: worker.pid for worker in self._workers if worker.pid is not None}

    async def __aenter__(self) -> "Crew":
        """Raises `WorkerError` with the reason of the first that cannot be started."""
        starting = [asyncio.create_task(worker.start()) for worker in self._workers]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing that was started is left afterwards."""
        self._stopping = True
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def run(self) -> None:
        """Until cancelled, or stopped. Raises `WorkerError` when a worker keeps ending."""
        keeping = [asyncio.create_task(self._keep(worker)) for worker in self._workers]
        try:
            await asyncio.gather(*keeping)
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def stop(self) -> None:
        """Let them drain; those that take longer than `stop_timeout` seconds are killed on leaving the block."""
        self._stopping = True
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_timeout):
                await asyncio.gather(*(worker.ended() for worker in self._workers))

    def hurry(self) -> None:
        """While they drain: end now."""
        for worker in self._workers:
            worker.hurry()

    async def _keep(self, worker: "Worker") -> None:
        ends: list[float] = []
        limits = self._limits
        while True:
            code = await worker.ended()
            if self._stopping:
                return
            now = time.monotonic()
            ends = [at for at in ends if now - at < limits.window] + [now]
            reason = worker.fault or "its log is above"
            if len(ends) > limits.restarts:
                within = f"{len(ends)} times within {limits.window:.0f} s"
                raise WorkerError(f"worker {worker.name} {ending(code)}, {within}: {reason}")
            pause = min(limits.pause_limit, limits.pause * 2 ** (len(ends) - 1))
            log.error("worker %s %s, starting it again in %.1f s: %s", worker.name, ending(code), pause, reason)
            await asyncio.sleep(pause)
            if self._stopping:
                return
            _RESTARTS.inc()
            with contextlib.suppress(WorkerError):  # counts as an end like any other
                await worker.start()


class Worker:
    """One worker process after the other, under one name."""

    def __init__(self, its_orders: Orders, command: Sequence[str]) -> None:
        self.name = its_orders.name
        self._command = command
        self.fault = ""
        self._orders = its_orders
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Worker {self.name} pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Returns when it is ready. Raises `WorkerError`, and then nothing is left of it."""
        self.fault = ""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(WRAPPER), str(os.getpid()), *self._command,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, pass_fds=(self._orders.listener,),
        )  # fmt: skip
        ready = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen(process, ready), name=f"worker {self.name}")
        try:
            assert process.stdin is not None
            with contextlib.suppress(ConnectionError):  # it has ended, and said why
                process.stdin.write(self._orders.line())
                await process.stdin.drain()
            async with asyncio.timeout(READY_WITHIN_S):
                await ready
        except TimeoutError:
            await self.kill()
            raise WorkerError(f"worker {self.name} was not ready within {READY_WITHIN_S:.0f} s") from None
        except BaseException:
            ready.cancel()
            await self.kill()
            raise

    async def ended(self) -> int:
        """Its exit status, negative for a signal."""
        if self._process is None:
            return 0
        return await self._process.wait()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def hurry(self) -> None:
        """Close its standard input, as this process's death would. Two signals could arrive as one."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def kill(self) -> None:
        """Returns when it is gone."""
        self.signal(signal.SIGKILL)
        await self.ended()
        if self._listening is not None:
            await self._listening

    async def _listen(self, process: asyncio.subprocess.Process, ready: "asyncio.Future[None]") -> None:
        """Hear what it says of itself, until it has ended."""
        assert process.stdout is not None
        while line := await _line(process.stdout):
            if line == orders.READY and not ready.done():
                ready.set_result(None)
            elif line.startswith(orders.FAULT):
                self.fault = line.removeprefix(orders.FAULT).decode("utf-8", "replace")
        code = await process.wait()
        if not ready.done():
            reason = self.fault or f"worker {self.name} {ending(code)} before it was ready; its log is above"
            ready.set_exception(WorkerError(reason))


async def _line(source: asyncio.StreamReader) -> bytes:
    """The next, without its end; empty when there are no more. One that is too long is skipped."""
    while True:
        try:
            return (await source.readuntil(b"\n"))[:-1] or b" "
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError as error:
            await source.readexactly(error.consumed)
