"""HTTP/1.1 to engines: keep-alive connections, one exchange at a time, read at the pace of whoever consumes them.

A general HTTP client costs several times more CPU per streamed event than all the rest of the relay, hence this thin
protocol over httptools. It decides nothing: what a failure means is the caller's business.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

import httptools

from forebay.router.crowd import in_turn

HIGH_WATER = 64 * 1024  # bytes buffered for a slow consumer before the engine's socket is paused
RECEIVE_BUFFER = 64 * 1024  # bytes that the kernel holds then, and the most that is read at once; Linux doubles it
MAX_IDLE_PER_ENDPOINT = 256
IDLE_SECONDS = 4.0  # uvicorn, which vLLM serves with, drops idle connections after 5 s


class UpstreamError(Exception):
    """The exchange failed. `reused` is true when it failed on a kept-alive connection before any byte of the answer,
    which is the ordinary race with the engine's keep-alive timer: the request is safe to send once more."""

    def __init__(self, kind: str, message: str, *, reused: bool = False) -> None:
        super().__init__(message)
        self.kind = kind  # "refused" (nobody listens), "connect", "closed", "protocol" or "timeout"
        self.reused = reused


class Wake:
    """What ended a wait when no data did."""

    TICK = object()  # the time asked for in `wake_at` has come
    INTERRUPT = object()  # `interrupt()` was called


_STOPPED = object()  # ends the wait of `flow`: what it gives to wants no more


class Connection(asyncio.Protocol):
    """One connection to an engine. `send`, then `head`, then `read` or `flow` until it returns b"" (the end of the
    body)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[object] | None = None
        self._take: Callable[[bytes], bool] | None = None  # while `flow` waits
        self._stopped = False  # `flow` is to end as soon as it is asked
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._error: UpstreamError | None = None
        self._pending_wake: object | None = None
        self._exchanges = 0
        self._headers_done = False
        self._keep_alive = True
        self.complete = True
        self.held_up = False  # the engine had to wait in this exchange for whoever consumes it
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.last_activity = loop.time()
        self.wake_at = float("inf")

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        end = transport.get_extra_info("socket")
        if end is not None:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)

    def data_received(self, data: bytes) -> None:
        self.last_activity = self._loop.time()
        if self.complete:  # nobody asked: what it is could be taken for the answer to the next request
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("protocol", f"the engine's answer is not HTTP: {error}")
            self.close()
        if self._take is not None:
            self._pass(self._take)
            return
        if self._buffered > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = self.held_up = True
            self._transport.pause_reading()
        self._resume(None)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.complete and not self._body_ends_with_connection():
            self._fail("closed", "the engine closed the connection")
        self.complete = True
        in_turn(self._resume, None)

    # -- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headers_done = self.status >= 200  # a 1xx is followed by the real answer
        if not self._headers_done:
            self.headers.clear()

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self._headers_done:
            self.complete = True
            self._keep_alive = self._parser.should_keep_alive()  # the parser forgets it after this call

    # -- one exchange

    def send(self, head: bytes, body: bytes) -> None:
        """Start an exchange; `head` ends with the blank line."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise UpstreamError("closed", "the connection was closed while idle", reused=True)
        self._parser = httptools.HttpResponseParser(self)
        self._chunks.clear()
        self._buffered = 0
        self._error = None
        self._pending_wake = None
        self._headers_done = self.complete = self.held_up = self._stopped = False
        self.headers = {}
        self.wake_at = float("inf")
        self.last_activity = self._loop.time()
        self._exchanges += 1
        if self._paused:
            self._paused = False
            transport.resume_reading()
        if len(body) < 65_536:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    async def head(self) -> object:
        """Wait for the status and headers. Returns None, or a `Wake` when something else ended the wait."""
        while not self._headers_done:
            if (wake := self._take_wake()) is not None:
                return wake
            self._raise_error()
            if self.complete:
                raise UpstreamError("closed", "the engine closed the connection before it answered")
            wake = await self._wait()
            if wake is not None:
                return wake
        return None

    async def read(self) -> object:
        """All body bytes that have arrived (b"" once, at the end), or a `Wake`."""
        while True:
            if self._pending_wake is not None:
                return self._take_wake()
            if self._chunks:
                return self._taken()
            self._raise_error()
            if self.complete:
                return b""
            wake = await self._wait()
            if wake is not None:
                return wake

    async def flow(self, take: Callable[[bytes], bool]) -> object:
        """Have `take` called with body bytes as they arrive, until it returns False: no task is woken for what it does
        itself. Returns None then, else as `read`; raises what `take` does."""
        while True:
            if self._pending_wake is not None:
                return self._take_wake()
            if self._stopped:
                self._stopped = False
                return None
            if self._chunks and not take(self._taken()):
                return None
            self._raise_error()
            if self.complete:
                return b""
            self._take = take
            try:
                wake = await self._wait()
            finally:
                self._take = None
            if wake is not None:
                return None if wake is _STOPPED else wake

    def rest(self) -> None:
        """Hear no more for now: whoever waits for more, in a new `flow` or `read`, hears it."""
        if not self._paused and self._transport is not None and not self.complete:
            self._paused = self.held_up = True
            self._transport.pause_reading()

    def interrupt(self) -> None:
        """End the current or the next wait with `Wake.INTERRUPT`. May be called from any callback of the loop."""
        if self._waiter is None:
            self._pending_wake = Wake.INTERRUPT
        self._resume(Wake.INTERRUPT)

    def stop(self) -> None:
        """End the current or the next `flow`, as if its `take` had returned False. Something else may just have ended
        the current one, and whoever waits in it not know yet."""
        if self._take is None:
            self._stopped = True
        else:
            self._resume(_STOPPED)

    def tick(self, now: float) -> None:
        if now >= self.wake_at and self._waiter is not None and not self._waiter.done():
            self.wake_at = float("inf")  # only now: a tick that nobody waits for must come again
            in_turn(self._ticked)

    def _ticked(self) -> None:
        """Unless there is another time to wait for meanwhile."""
        if self.wake_at == float("inf"):
            self._resume(Wake.TICK)

    def half_close(self) -> None:
        """Say that nothing more will be sent: the engine stops the request and what it had written still arrives."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def reusable(self) -> bool:
        return (
            self.complete
            and self._error is None
            and self._transport is not None
            and not self._transport.is_closing()
            and self._keep_alive
        )

    @property
    def reused(self) -> bool:
        return self._exchanges > 1

    # -- internals

    def _wait(self) -> asyncio.Future[object]:
        self._go_on()
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def _pass(self, take: Callable[[bytes], bool]) -> None:
        """What has just arrived, to whom `flow` has it go."""
        stopped = False
        try:
            stopped = bool(self._chunks) and not take(self._taken())
        except Exception as error:  # noqa: BLE001 - whoever waits in `flow` is to hear of it, not the event loop
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)
            self._take = self._waiter = None
            return
        if stopped:
            self._resume(_STOPPED)
        elif self.complete or self._error is not None:
            self._resume(None)

    def _taken(self) -> bytes:
        """What has arrived: it is kept here no more."""
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._buffered = 0
        self._go_on()
        return data

    def _go_on(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
            self.last_activity = self._loop.time()  # until now it could not be heard

    def _take_wake(self) -> object:
        wake, self._pending_wake = self._pending_wake, None
        return wake

    def _resume(self, wake: object) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = self._take = None
            if not waiter.done():
                waiter.set_result(wake)

    def _fail(self, kind: str, message: str) -> None:
        if self._error is None:
            self._error = UpstreamError(kind, message, reused=self.reused and not self._headers_done)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _body_ends_with_connection(self) -> bool:
        return self._headers_done and b"content-length" not in self.headers and b"transfer-encoding" not in self.headers


class Client:
    """Connections to one engine, kept alive and reused last-in first-out. `active` are those in an exchange."""

    def __init__(self, url: str, *, connect_timeout: float) -> None:
        self._parts: SplitResult = urlsplit(url)
        self._connect_timeout = connect_timeout
        self._idle: deque[Connection] = deque()
        self.active: set[Connection] = set()
        self._retired = False
        self.host_header = self._parts.netloc.rpartition("@")[2].encode("latin-1")
        self.base_path = self._parts.path.rstrip("/").encode("latin-1")

    def __repr__(self) -> str:
        return f"<Client {self._parts.netloc} [{len(self.active)} active, {len(self._idle)} idle]>"

    async def acquire(self, *, fresh: bool = False) -> Connection:
        """A connection ready to send on; `fresh`: one that was never used. Raises `UpstreamError` of kind
        "refused" or "connect"."""
        loop = asyncio.get_running_loop()
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.reusable and loop.time() - connection.last_activity < IDLE_SECONDS:
                self.active.add(connection)
                return connection
            connection.close()
        connection = await self._connect(loop)
        self.active.add(connection)
        return connection

    def release(self, connection: Connection) -> None:
        """Give a connection back, in whatever state it is; call it exactly once per `acquire`."""
        self.active.discard(connection)
        if connection.reusable and not self._retired and len(self._idle) < MAX_IDLE_PER_ENDPOINT:
            self._idle.append(connection)
        else:
            connection.close()

    def tick(self, now: float) -> None:
        """Wake exchanges whose time has come and drop connections that the engine is about to drop."""
        for connection in tuple(self.active):
            connection.tick(now)
        while self._idle and now - self._idle[0].last_activity >= IDLE_SECONDS:
            self._idle.popleft().close()

    def retire(self) -> None:
        """Keep no connection from now on; those in an exchange end with it."""
        self._retired = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def close(self) -> None:
        for connection in (*self._idle, *self.active):
            connection.close()
        self._idle.clear()

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        parts = self._parts
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), parts.hostname or "", port, ssl=True if parts.scheme == "https" else None
                )
        except (OSError, TimeoutError) as error:
            kind = "refused" if isinstance(error, ConnectionRefusedError) else "connect"
            raise UpstreamError(kind, f"cannot connect to {parts.hostname}:{port}: {error or 'timed out'}") from error
        return connection
