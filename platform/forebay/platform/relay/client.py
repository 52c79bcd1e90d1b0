"""The tenant's side of an exchange: one answer on an ASGI connection, and whether the tenant is still there."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from forebay.platform.errors import ApiError, invalid
from forebay.platform.relay.frames import DONE, HEARTBEAT, error_frame
from forebay.router import in_turn

BODY_TIMEOUT_S = 60.0
NOTICE_S = 0.05  # most requests are answered sooner, and need not be told of by the server
PIECE = 1 << 14  # bytes that are handed to the server at once: it holds some ten pieces for one who does not read
SILENT_S = 60.0  # of nothing but comments, after which one is an event: some clients' idle timers pass over comments
BLOCKED_S = 1.0  # a write that takes longer is told of
LATE_S = 1.0  # beyond a request's time: who is still being written to by then is what keeps its answer from ending
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_GONE = (OSError, RuntimeError)  # the server's ways of saying that the connection is
_JSON = (b"content-type", b"application/json")
_SSE: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientLeft(Exception):  # noqa: N818 - not an error
    """The tenant closed the connection."""


class Client:
    """Sends exactly one answer. `on_left` is called, once, when the tenant leaves before it is complete."""

    def __init__(self, receive: Receive, send: Send, request_id: str) -> None:
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._started_at = time.perf_counter()
        self._watch: asyncio.Future[Any] | asyncio.TimerHandle | None = None
        self.request_id = request_id
        self.started = False
        self.answered = False  # something of the answer was sent: more than a heartbeat
        self.kept = 0  # bytes of whole answers that were held at most
        self.ended = False
        self.left = False
        self.stalled = False  # left, in effect: it has stopped reading
        self._reading_since: float | None = None
        self._writing_since: float | None = None
        self._queued = b""  # that was put
        self._unsent: Awaitable[None] | None = None  # the rest of a message that the server did not take at once
        self._until = float("inf")
        self._late = False
        self.nothing: Callable[[], bytes] | None = None  # makes an event that says nothing
        self._silent_since: float | None = None  # by the first comment since something was said
        self.on_left: Callable[[], None] | None = None
        self.on_full: Callable[[], None] | None = None  # see `put`
        self.hold: Callable[[int], None] = _nothing  # told of bytes that are about to be kept; raises `ApiError`
        self.debug_headers: Headers = []
        self.limit_headers: Callable[[], Headers] | None = None  # asked when they are sent

    async def body(self, limit: int, declared: int | None, hold: Callable[[int], None]) -> list[bytes]:
        """The request's body, in pieces. Raises `ApiError` 413 before reading more than `limit` bytes, 408 when it
        trickles (see `check_late`), and what `hold` raises, which is told how many bytes are about to be kept."""
        if declared is not None:
            if declared > limit:
                raise _too_large(limit)
            hold(declared)
        self._reading_since = time.perf_counter()
        try:
            return await self._read_body(limit, declared, hold)
        except asyncio.CancelledError:
            if not self._late:
                raise
            asyncio.current_task().uncancel()  # type: ignore[union-attr]  # there is one: it was cancelled
            raise invalid(
                f"The request's body did not arrive within {BODY_TIMEOUT_S:g} s.", code="request_timeout", status=408
            ) from None
        finally:
            self._reading_since = None

    async def _read_body(self, limit: int, declared: int | None, hold: Callable[[int], None]) -> list[bytes]:
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            hold(size)
            more = message.get("more_body", False) and size != declared  # the server says that in a message of its own
        return parts

    @property
    def age_s(self) -> float:
        """Seconds since the request came."""
        return time.perf_counter() - self._started_at

    def watch(self) -> None:
        """Notice from now on when the tenant leaves, within `NOTICE_S`."""
        self._watch = self._loop.call_later(NOTICE_S, self._listen)

    def _listen(self) -> None:
        """The server's own future needs no task to wait for it."""
        self._watch = asyncio.ensure_future(self._receive())
        self._watch.add_done_callback(self._received)

    def _received(self, message: "asyncio.Future[Any]") -> None:
        if message is not self._watch:  # closed meanwhile
            return
        if message.result()["type"] == "http.disconnect":
            self._leave()
        else:
            self._listen()

    def _leave(self) -> None:
        if not self.left and not self.ended:
            self.left = True
            if self.on_left is not None:
                in_turn(self._tell)

    def _tell(self) -> None:
        """Whoever is to hear of it by now."""
        if self.on_left is not None:
            self.on_left()

    async def answer(self, body: bytes) -> None:
        """A complete JSON answer, status 200."""
        self.answered = True
        await self._whole(200, body, [])

    async def start_stream(self) -> None:
        if not self.started:
            self.started = True
            await self._emit({"type": "http.response.start", "status": 200, "headers": [*_SSE, *self._headers()]})

    async def write(self, data: bytes) -> None:
        """Part of a stream. A tenant that has left is noticed by `on_left`, not by an exception."""
        self.answered = True
        self._silent_since = None
        if len(data) <= PIECE:
            await self._emit({"type": "http.response.body", "body": data, "more_body": True})
            return
        for at in range(0, len(data), PIECE):
            await self._emit({"type": "http.response.body", "body": data[at : at + PIECE], "more_body": True})

    def put(self, data: bytes) -> None:
        """As `write`, in the next turn of the loop and without a task: what has come for many is handed over at once,
        and the server's thread woken for them together. `on_full` is called where the tenant does not read as fast:
        `written` is to be awaited then before there is more."""
        self.answered = True
        self._silent_since = None
        if self.left:
            return
        if not self._queued:
            self._loop.call_soon(self._flush)
        self._queued += data

    async def written(self) -> None:
        """Until all that was `put` is with the server."""
        self._flush()
        if (unsent := self._unsent) is not None:
            self._unsent = None
            await self._wait_for(unsent)
        if queued := self._queued:
            self._queued = b""
            await self.write(queued)

    def _flush(self) -> None:
        """Hand over what was put, as far as that needs no waiting."""
        data = self._queued
        if not data:
            return
        if self._unsent is None and len(data) <= PIECE:
            self._queued = b""
            self._unsent = self._begin({"type": "http.response.body", "body": data, "more_body": True})
            if self._unsent is None:
                return
        if self.on_full is not None:
            self.on_full()

    def _begin(self, message: dict[str, Any]) -> Awaitable[None] | None:
        """Send it; what is to be awaited, where the server does not take it at once."""
        if self.left:
            return None
        try:
            sending = self._send(message).__await__()
            waits = next(sending)
        except StopIteration:
            return None
        except _GONE:
            self._leave()
            return None
        self._writing_since = time.perf_counter()
        return _Begun(sending, waits)

    async def heartbeat(self) -> None:
        """A comment that keeps idle proxies and clients from giving up; SDKs skip it. Once in a while an event."""
        await self.start_stream()
        body, now = HEARTBEAT, time.perf_counter()
        if self._silent_since is None:
            self._silent_since = now
        elif self.nothing is not None and now - self._silent_since >= SILENT_S:
            body, self._silent_since = self.nothing(), now
        await self._emit({"type": "http.response.body", "body": body, "more_body": True})

    async def end_stream(self) -> None:
        self.ended = True
        await self._emit({"type": "http.response.body", "body": DONE, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """An error answer or, once a stream has begun, an error frame: never silence."""
        if self.started:
            self.ended = True
            await self._emit({"type": "http.response.body", "body": error_frame(error.body()), "more_body": False})
        else:
            headers = [(k.lower().encode(), v.encode("latin-1", "replace")) for k, v in error.headers.items()]
            await self._whole(error.status, error.body(), headers)

    def close(self) -> None:
        self.ended = True
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    async def _whole(self, status: int, body: bytes, headers: Headers) -> None:
        self.started = self.ended = True
        length = (b"content-length", str(len(body)).encode())
        await self._emit(
            {"type": "http.response.start", "status": status, "headers": [_JSON, length, *self._headers(), *headers]}
        )
        for end in range(PIECE, len(body) + PIECE, PIECE):  # in pieces: a tenant that does not read them is in flight
            piece = body[end - PIECE : end]
            await self._emit({"type": "http.response.body", "body": piece, "more_body": end < len(body)})

    async def _emit(self, message: dict[str, Any]) -> None:
        if self._queued or self._unsent is not None:
            await self.written()
        if not self.left:
            self._writing_since = time.perf_counter()
            await self._wait_for(self._send(message))

    async def _wait_for(self, sending: Awaitable[None]) -> None:
        try:
            await sending
        except _GONE:
            self._leave()
        self._writing_since = None

    def check_late(self) -> bool:
        """Whether the body has just turned out to take too long. The request's task is to be cancelled then."""
        since = self._reading_since
        if since is None or self._late or time.perf_counter() - since <= BODY_TIMEOUT_S:
            return False
        self._late = True
        return True

    def bound(self, seconds: float) -> None:
        """The answer may take so many more, and its tenant to read it."""
        self._until = time.perf_counter() + seconds

    def check_stalled(self, limit: float) -> bool:
        """Whether a write has waited longer than `limit` seconds for the tenant to read, or, however short, beyond the
        time that the request may take."""
        writes, late_s = self._writing_since is not None, time.perf_counter() - self._until
        if self._waits_longer(limit) or (writes and late_s > LATE_S):
            self.stalled = self.left = True
        return self.stalled

    @property
    def blocked(self) -> bool:
        """Whether the tenant leaves its socket full."""
        return self._waits_longer(BLOCKED_S)

    def _waits_longer(self, seconds: float) -> bool:
        since = self._writing_since
        return since is not None and time.perf_counter() - since > seconds

    def _headers(self) -> Headers:
        return [
            (b"x-request-id", self.request_id.encode()),
            (b"openai-processing-ms", str(round(self.age_s * 1000)).encode()),
            *self.debug_headers,
            *(self.limit_headers() if self.limit_headers is not None else ()),
        ]


class _Begun:
    """The rest of an awaitable that was begun outside any task, and now waits for `waits`."""

    def __init__(self, rest: Generator[Any, Any, None], waits: Any) -> None:
        self._rest = rest
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._waits
        yield from self._rest


def _nothing(_: int) -> None:
    """Nobody counts."""


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        "request_too_large",
        f"The request's body exceeds the limit of {limit} bytes.",
        type="invalid_request_error",
    )
