"""One process that serves: an event loop, granian's embedded HTTP server, and the service behind it."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable

from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from forebay.platform.api.app import create_app
from forebay.platform.config.model import Config
from forebay.platform.service import running

log = logging.getLogger(__name__)

HEADER_TIMEOUT_MS = 10_000  # a client that trickles its headers


async def serve(config: Config, *, postgres_url: str, valkey_url: str, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends the drain early."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    async with running(config, postgres_url=postgres_url, valkey_url=valkey_url) as service:
        server = Server(
            create_app(service), address=config.server.host, port=config.server.port, interface=Interfaces.ASGINL,
            websockets=False, backlog=1024, backpressure=config.server.max_in_flight + 256,
            log_enabled=False,
            http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT_MS),
        )
        serving = asyncio.create_task(server.serve())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.sleep(0)  # the socket is bound in the first step; a port in use ends `serving` at once
        if not serving.done():
            on_ready()
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            raise RuntimeError("the HTTP server ended by itself")
        log.info("draining: %d requests in flight", service.inferences.gate.in_flight)
        await _drain(service.drain(), stop)
        server.stop()
        await asyncio.wait((serving,), timeout=10.0)


async def _drain(drain: "asyncio.Future[None] | object", stop: asyncio.Event) -> None:
    stop.clear()
    draining = asyncio.ensure_future(drain)  # type: ignore[arg-type]
    again = asyncio.create_task(stop.wait())
    await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, again):
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
