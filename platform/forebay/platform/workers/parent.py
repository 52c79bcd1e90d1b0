"""The router process of a front door with several workers: it holds what they share, starts them and stops them."""

import asyncio
import gc
import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from forebay.platform.config.model import Config
from forebay.platform.routers import replica_name, routed
from forebay.platform.server import Stop, bind, first_of, raise_file_limit, until_signalled
from forebay.platform.service import prepare
from forebay.platform.sharing.report import of_load
from forebay.platform.tasks import background, end
from forebay.platform.warm.serving import QUERY, Snapshots
from forebay.platform.workers import gathered
from forebay.platform.workers.crew import Crew
from forebay.platform.workers.orders import Orders
from forebay.platform.workers.shares import Shares
from forebay.platform.workers.view import GATHER_S, ROUTER, Gathered, Status
from forebay.router import Handler, RouterServer, RouterService, private_path

log = logging.getLogger(__name__)
AFTER_DRAIN_S = 20.0  # seconds for workers to end once they have drained: cut streams, last records


async def serve(config: Config, *, postgres_url: str, valkey_url: str, on_ready: Callable[[], None]) -> None:
    """Serve with `server.workers` workers until SIGINT or SIGTERM, then let them drain. A second signal ends the drain
    early, a first one the start. Raises `WorkerError` when a worker cannot be kept running."""
    raise_file_limit()
    async with until_signalled() as stop, AsyncExitStack() as stack:
        listener = stack.enter_context(bind(config.server))
        await prepare(config, postgres_url)
        service = await stack.enter_async_context(routed(config, valkey_url))
        names = [pool.name for pool in config.pools]
        server = RouterServer(service.shared, names, socket_path(config), roster=service.roster)
        Answers(service, server, config.server.workers).register()
        await stack.enter_async_context(server)
        stack.push_async_callback(end, background("workers' endpoints", server.run))
        told = [
            Orders(
                worker, config.server.workers, config, postgres_url, valkey_url, listener.fileno(), str(server.path),
                logging.getLogger().level,
            )
            for worker in range(config.server.workers)
        ]  # fmt: skip
        crew = await stack.enter_async_context(Crew(told, stop_timeout=config.server.drain_timeout + AFTER_DRAIN_S))
        gc.collect()
        gc.freeze()
        stop.started()
        on_ready()
        try:
            await first_of(stop.asked(), crew.run())
        finally:
            listener.close()
            await _stopped(crew, stop)


async def _stopped(crew: Crew, stop: Stop) -> None:
    log.info("%d workers drain", len(crew.pids))
    stopping = asyncio.create_task(crew.stop())
    await first_of(asyncio.wait((stopping,)), stop.hurried())
    if not stopping.done():
        crew.hurry()
    await stopping


def socket_path(config: Config) -> Path:
    """Of this front door's router: several may keep their state in one directory."""
    mark = hashlib.sha256(replica_name().encode()).hexdigest()[:8]
    return private_path(Path(config.stores.state_dir) / "run", f"router-{mark}")


class Answers:
    """What workers ask the router process beside routing."""

    def __init__(self, service: RouterService, server: RouterServer, workers: int) -> None:
        self._service = service
        self._server = server
        self._workers = workers
        self._shares = Shares(lambda: server.workers)

    def register(self) -> None:
        answers: dict[str, Handler] = {
            "in-flight": self._shares.exchange,
            "metrics": self._gathering("metrics", gathered.taken),
            "status": self._gathering("status", self._status),
            QUERY: Snapshots(self._service).answer,
        }
        self._server.handlers.update(answers)

    def _gathering(self, name: str, own: Callable[[], Awaitable[bytes]]) -> Handler:
        async def gather(_: str, __: bytes) -> bytes:
            answers = await self._server.gather(name, timeout=GATHER_S)
            absent = {str(worker): None for worker in range(self._workers)}
            return msgspec.msgpack.encode(Gathered({ROUTER: await own(), **absent, **answers}))

        return gather

    async def _status(self) -> bytes:
        ready = self._service.ready
        discovery = {pool: msgspec.to_builtins(report) for pool, report in self._service.discovery().items()}
        body = {
            "status": "ok" if ready else "warming up",
            "waiting": self._service.waiting,
            "load_sharing": of_load(self._service.core.peers),
            **({"discovery": discovery} if discovery else {}),
        }
        return msgspec.json.encode(Status(ready, body))
