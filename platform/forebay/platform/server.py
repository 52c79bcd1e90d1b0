"""A process that serves: an event loop, granian's embedded HTTP server, and the service behind it."""

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

from forebay.platform import allocator
from forebay.platform.api.app import create_app
from forebay.platform.api.inference import SWEEP_S
from forebay.platform.config.model import Config
from forebay.platform.config.model import Server as Bounds
from forebay.platform.service import Service, running

log = logging.getLogger(__name__)

HEADER_TIMEOUT_MS = 10_000  # a client that trickles its headers, or sends no further request
BACKLOG = 1024
GARBAGE = 5_000  # objects more than at the last collection: those of some hundred requests come and go without one
# Bytes that the server may hold of a connection: of a head that does not end, and of an answer that is not read.
CONNECTION_BYTES = 1 << 16
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0


async def serve(config: Config, *, postgres_url: str, valkey_url: str, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends the drain early, a first one the start."""
    raise_file_limit()
    allocator.settle()
    async with until_signalled() as stop, running(config, postgres_url=postgres_url, valkey_url=valkey_url) as service:
        await serve_until(stop, service, bind(config.server), on_ready)


async def serve_until(
    stop: "Stop", service: Service, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    """Serve on a bound socket until a stop is asked for, then drain."""
    await service.settle()
    async with listening(service, listener) as server:
        gc.collect()
        gc.freeze()  # what was loaded stays: collections need not walk it while streams wait
        gc.set_threshold(GARBAGE)
        stop.started()
        on_ready()
        await first_of(stop.asked(), _ended(server))
        log.info("draining: %d requests in flight", service.inferences.gate.in_flight)
        await first_of(service.drain(), stop.hurried())
        await service.cut()


class Stop:
    """What asks a process to stop: the first time in order, then in a hurry. Before `started` it ends the start."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._started = False
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        if self._asked.is_set():
            self._hurried.set()
        self._asked.set()
        if not self._started and self._task is not None:
            self._task.cancel()

    def hurry(self) -> None:
        self.ask()
        self._hurried.set()

    def started(self) -> None:
        self._started = True

    async def asked(self) -> None:
        """Returns when a stop is asked for."""
        await self._asked.wait()

    async def hurried(self) -> None:
        """Returns when it shall end now."""
        await self._hurried.wait()


@asynccontextmanager
async def until_signalled(signals: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)) -> AsyncIterator[Stop]:
    """A start that is stopped ends the block, and is no error."""
    stop = Stop()
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, stop.ask)
    try:
        yield stop
    except asyncio.CancelledError:
        if not stop.is_asked:
            raise
        log.info("stopped before it was ready")


@asynccontextmanager
async def listening(
    service: Service, listener: socket.socket | None = None
) -> AsyncIterator["asyncio.Task[None]"]:
    """The service's HTTP server, on a bound socket or one of its own; yields its task, which ends only by a fault.
    Raises `OSError` for a port in use."""
    config = service.config.server
    listener = listener or bind(config)
    host, port = listener.getsockname()[:2]
    listener.listen(BACKLOG)
    # HTTP/1.1 only: where it may be either, granian waits for ever for a client that does not say which HTTP it speaks.
    server = _Server(
        create_app(service), listener, interface=Interfaces.ASGINL, websockets=False,
        http=HTTPModes.http1, backlog=BACKLOG, log_enabled=False,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT_MS, max_buffer_size=CONNECTION_BYTES),
        backpressure=_connections(config),
    )  # fmt: skip
    task = asyncio.create_task(server.serve())
    try:
        await _accepting(host, port, task)
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


def bind(config: Bounds) -> socket.socket:
    """A socket that does not listen yet, so that clients are refused while the rest starts. Raises `OSError` for a port
    that somebody listens on: granian's own socket would share it, and split the requests."""
    host, port = config.host, config.port
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ports of connections that are over
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    # Connections inherit what follows. Left to itself the kernel holds megabytes for one who does not read.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # the kernel ends those that are not read from, soon after we have
        limit_s = config.stall_timeout + 2 * SWEEP_S
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(limit_s * 1000))
    listener.setblocking(False)
    return listener


def raise_file_limit() -> None:
    """Up to what the account may have: the usual 1,024 is a default from the days of select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems name a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _connections(config: Bounds) -> int:
    """As many as there are files for, beside those to engines. What strangers can use up shall be large: the bounds on
    requests come after the key."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed, most = config.max_in_flight + 256, config.max_clients
    return most if files < 0 else max(min(needed, most), min(most, files - needed))


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


async def _ended(server: "asyncio.Task[None]") -> None:
    await asyncio.wait((server,))
    server.result()
    raise RuntimeError("the HTTP server ended by itself")


async def first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Until one of them is done; the others are cancelled. Raises what it raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
