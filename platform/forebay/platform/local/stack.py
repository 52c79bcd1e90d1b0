"""A whole Forebay on this machine: stores, engines and front door, prepared, started, kept running and stopped."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct

from forebay.platform.config.model import Config
from forebay.platform.local import engines, probe, settings, tenants, vllm, weights
from forebay.platform.local.commands import LocalError
from forebay.platform.local.paths import Paths, paths, try_lock, write_private
from forebay.platform.local.process import Part
from forebay.platform.local.progress import Progress
from forebay.platform.local.stores import HeldStores
from forebay.platform.local.supervisor import Supervisor
from forebay.platform.local.tenants import Credentials
from forebay.platform.tenancy.opened import opened

DEMO = "demo"  # the tenant made on the first start


class Running(Struct, frozen=True):
    """What `run/up.json` says of a started platform, for `forebay demo` and `doctor`. Holds no key."""

    pid: int
    base_url: str  # without /v1
    config: str
    pids: dict[str, int] = {}


class StoppedError(Exception):
    """A stop was asked for before everything was up."""


def read_running(where: Paths) -> Running | None:
    """The platform that `forebay up` keeps running on this state directory, if one does."""
    try:
        found = msgspec.json.decode(where.running.read_bytes(), type=Running)
        lock = try_lock(where.state / "up.lock")  # tells a note that was left by a killed process
    except (OSError, msgspec.DecodeError):
        return None
    if lock is not None:
        os.close(lock)
        return None
    return found


def is_taken(where: Paths) -> bool:
    """Whether a platform runs, starts or stops on this state directory."""
    if not (where.state / "up.lock").exists():
        return False
    lock = try_lock(where.state / "up.lock")
    if lock is not None:
        os.close(lock)
    return lock is None


async def await_running(where: Paths, progress: Progress) -> Running | None:
    """The platform of this state directory, waited for while it starts or stops; None if there is none."""
    found = read_running(where)
    if found is not None or not is_taken(where):
        return found
    async with progress.step("platform", "waiting for the one that starts or stops in another terminal"):
        while found is None and is_taken(where):
            await asyncio.sleep(0.5)
            found = read_running(where)
    return found


async def prepare(config: Config, progress: Progress) -> None:
    """Everything that takes long and is done once: engine environment and weights. Starts nothing."""
    where = paths(config.stores.state_dir)
    await engines.build(where, progress)
    await weights.convert(where, progress)


class Stack:
    """`async with stack.started():`, then `run()` until a stop is asked for. Raises `LocalError` where it must."""

    def __init__(self, config: Config, progress: Progress) -> None:
        self.paths = paths(config.stores.state_dir)
        self.config = settings.in_state_directory(config, self.paths)
        self.progress = progress
        self.supervisor = Supervisor(self.paths.logs, progress)
        self._stores = HeldStores(self.config, progress)
        self._announced: Running | None = None
        self.credentials: Credentials | None = None

    @property
    def base_url(self) -> str:
        host = self.config.server.host
        return f"http://{'127.0.0.1' if host in {'0.0.0.0', '::'} else host}:{self.config.server.port}"  # noqa: S104

    @property
    def postgres_url(self) -> str:
        return self._stores.postgres_url

    @asynccontextmanager
    async def started(self) -> AsyncIterator["Stack"]:
        """Leaves nothing running, however it ends. Raises `StoppedError` if a stop was asked for meanwhile."""
        lock = _only_one(self.paths)
        self.paths.running.unlink(missing_ok=True)  # left by one that was killed
        self.supervisor.take_signals()
        try:
            await self._or_stop(self._start())
            self._announce()
            yield self
        finally:
            self.paths.running.unlink(missing_ok=True)
            await self.supervisor.stop()
            await self._stores.stop()
            os.close(lock)

    async def run(self) -> None:
        """Until a stop is asked for. Raises `LocalError` when a part cannot be kept running."""
        work = (self.supervisor.run(), self._stores.watch(), self._keep_announcing())
        tasks = [asyncio.create_task(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Keeps the platform running while `work` is done. Raises what `work` raises, what `run` raises, and
        `StoppedError` if a stop was asked for first."""
        doing, keeping = asyncio.create_task(work), asyncio.create_task(self.run())
        try:
            await asyncio.wait({doing, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
                return
            keeping.result()
            raise StoppedError
        finally:
            for task in (doing, keeping):
                task.cancel()
            await asyncio.gather(doing, keeping, return_exceptions=True)

    async def _start(self) -> None:
        self._require_port()
        local = [] if self.config.pools else await self._local_engines()
        starting = [asyncio.create_task(self.supervisor.start(part)) for part in local]
        try:
            await self._stores.start()
            async with opened(self.config, self._stores.postgres_url) as service:
                self.credentials = await tenants.ensure(service, DEMO, self.paths.demo)
            settings.write(self.config, self.paths.config)
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
        await self.supervisor.start(self._front_door())

    async def _local_engines(self) -> list[Part]:
        await prepare(self.config, self.progress)
        local = self.config.local
        ports = probe.free_ports(local.first_port, local.replicas, avoid=(self.config.server.port,))
        replicas = [vllm.replica(self.paths, index, port) for index, port in enumerate(ports)]
        self.config = settings.with_local_engines(self.config, replicas, self.paths)
        return [
            vllm.part(self.paths, replica, index=index, kv_cache_gib=local.kv_cache_gib)
            for index, replica in enumerate(replicas)
        ]

    def _front_door(self) -> Part:
        return Part(
            name="front-door",
            argv=(sys.executable, "-m", "forebay.platform.cli", "serve", "--config", str(self.paths.config)),
            env={"PYTHONUNBUFFERED": "1"},
            ready_url=f"{self.base_url}/ready",
            ready_timeout=120.0,
            stop_timeout=self.config.server.drain_timeout + 15.0,
            rank=0,
        )

    def _require_port(self) -> None:
        """Decides port 0 here, so that it can be printed and kept over restarts."""
        server = self.config.server
        if server.port == 0:
            server = msgspec.structs.replace(server, port=probe.any_port(server.host))
            self.config = msgspec.structs.replace(self.config, server=server)
        elif not probe.is_free(server.port, server.host):
            raise LocalError(
                f"Port {server.port} is in use by {probe.holder(server.port)}. "
                "Stop that, or set another one: server.port in forebay.yaml, or forebay up --port."
            )

    def _announce(self) -> None:
        pids = {**self._stores.pids, **self.supervisor.pids}
        found = Running(os.getpid(), self.base_url, str(self.paths.config), pids)
        if found != self._announced:
            write_private(self.paths.running, msgspec.json.encode(found).decode())
        self._announced = found

    async def _keep_announcing(self) -> None:
        """Parts that were started again have other pids."""
        while True:
            await asyncio.sleep(1.0)
            self._announce()

    async def _or_stop(self, starting: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(starting)
        stop = asyncio.create_task(self.supervisor.stop_requested())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise StoppedError
        task.result()


def _only_one(where: Paths) -> int:
    """A lock for as long as the platform runs. Raises `LocalError` that names the process which has it."""
    descriptor = try_lock(where.state / "up.lock")
    if descriptor is None:
        found = read_running(where)
        who = f"pid {found.pid}, {found.base_url}" if found else "it is still starting or stopping"
        raise LocalError(f"Forebay runs already on {where.state} ({who}). Stop it, or set FOREBAY_STATE_DIR.")
    return descriptor
