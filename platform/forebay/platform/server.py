"""One process that serves: an event loop, granian's embedded HTTP server, and the service behind it."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.net import SocketHolder  # type: ignore[attr-defined]
from granian.server.embed import Server

from forebay.platform.api.app import create_app
from forebay.platform.api.inference import STALLED_S
from forebay.platform.config.model import Config
from forebay.platform.service import Service, running

log = logging.getLogger(__name__)

HEADER_TIMEOUT_MS = 10_000  # a client that trickles its headers, or sends no further request
BACKLOG = 1024
MAX_CONNECTIONS = 1 << 16
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0


async def serve(config: Config, *, postgres_url: str, valkey_url: str, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends the drain early, a first one the start."""
    _raise_file_limit()
    ready = False
    stop = asyncio.Event()
    end = asyncio.current_task().cancel  # type: ignore[union-attr]
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, lambda: stop.set() if ready else end())
    try:
        async with (
            running(config, postgres_url=postgres_url, valkey_url=valkey_url) as service,
            listening(service) as server,
        ):
            gc.collect()
            gc.freeze()  # what was loaded stays: collections need not walk it while streams wait
            ready = True
            on_ready()
            await _until_stopped(service, server, stop)
    except asyncio.CancelledError:
        if ready:
            raise
        log.info("stopped before it was ready")


async def _until_stopped(service: Service, server: "asyncio.Task[None]", stop: asyncio.Event) -> None:
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((server, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if server.done():
        server.result()
        raise RuntimeError("the HTTP server ended by itself")
    log.info("draining: %d requests in flight", service.inferences.gate.in_flight)
    stop.clear()
    await _first(service.drain(), stop.wait())


@asynccontextmanager
async def listening(service: Service) -> "AsyncIterator[asyncio.Task[None]]":
    """The service's HTTP server; yields its task, which ends only by a fault. Raises `OSError` for a port in use."""
    config = service.config.server
    # HTTP/1.1 only: where it may be either, granian waits for ever for a client that does not say which HTTP it speaks.
    server = _Server(
        create_app(service), _listener(config.host, config.port), interface=Interfaces.ASGINL, websockets=False,
        http=HTTPModes.http1, http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT_MS),
        backlog=BACKLOG, backpressure=_connections(config.max_in_flight), log_enabled=False,
    )  # fmt: skip
    task = asyncio.create_task(server.serve())
    try:
        await _accepting(config.host, config.port, task)
        yield task
    finally:
        server.stop()  # type: ignore[no-untyped-call]
        await asyncio.wait((task,), timeout=STOP_TIMEOUT_S)


class _Server(Server):
    """On a socket of ours."""

    def __init__(self, app: Any, listener: socket.socket, **options: Any) -> None:
        super().__init__(app, **options)
        self._listener = listener

    def _init_shared_socket(self) -> None:
        self._shd = SocketHolder(self._listener.detach(), False, self.backlog)  # type: ignore[assignment,call-arg]


def _listener(host: str, port: int) -> socket.socket:
    """Raises `OSError` for a port that somebody listens on: granian's own socket would share it, and split the
    requests."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it: the kernel ends those that are not read from
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALLED_S * 1000))
    listener.setblocking(False)
    return listener


def _raise_file_limit() -> None:
    """Up to what the account may have: the usual 1,024 is a default from the days of select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems name a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _connections(max_in_flight: int) -> int:
    """As many as there are files for, beside those to engines. What strangers can use up shall be large: the bounds on
    requests come after the key."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = max_in_flight + 256
    return max(needed, min(MAX_CONNECTIONS, MAX_CONNECTIONS if files < 0 else files - needed))


async def _accepting(host: str, port: int, server: "asyncio.Task[None]") -> None:
    """Until the server takes connections; raises what ended it."""
    target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a comparison, not a bind
    async with asyncio.timeout(START_TIMEOUT_S):
        while not server.done():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(target, port)
                writer.close()
                return
            await asyncio.sleep(0.01)
    server.result()


async def _first(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Until one of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
