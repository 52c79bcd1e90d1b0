"""One connection between a worker and its router process: messages out in order, questions with a deadline.

What is said within one turn of the event loop leaves in one system call. What a slow peer leaves unread is bounded; at
the bound its connection is given up, and only that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar, cast

from msgspec import Struct

from forebay.router.remote.wire import FrameError, Framer, Query, Reply, frame

log = logging.getLogger(__name__)
T = TypeVar("T")
Handler = Callable[[str, bytes], Awaitable[bytes]]

HIGH_WATER = 1 << 20  # bytes unsent at which the peer counts as clogged
UNSENT_LIMIT = 32 << 20  # bytes unsent at which the peer is given up
QUERIES_AT_ONCE = 64


class RouterUnavailable(Exception):  # noqa: N818 - a state of the router, which the relay answers with 503
    """The router process did not answer in time, or is not there. Nothing was booked, or it is given back."""


class Channel(asyncio.Protocol, Generic[T]):
    """Subclasses say what a message means. `peer` is what the other side is called in logs and to handlers."""

    def __init__(self, kind: object, handlers: Mapping[str, Handler], peer: str) -> None:
        self.peer = peer
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._framer: Framer[T] = Framer(kind)
        self._handlers = handlers
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._waiting = 0  # bytes in it
        self._flushing = False
        self._clogged = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 0
        self._queries: dict[int, asyncio.Future[bytes]] = {}

    def __repr__(self) -> str:
        state = "closed" if self.closed.done() else "clogged" if self._clogged else "open"
        return f"<{type(self).__name__} to {self.peer} {state}>"

    @property
    def gone(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def ready(self) -> bool:
        """Whether it takes more than what must be said."""
        return not self.gone and not self._clogged

    @property
    def unsent(self) -> int:
        """Bytes."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def on_message(self, message: T) -> None:
        """Subclasses take what is theirs and leave the rest to this."""
        if isinstance(message, Query):
            self._queried(message)
        elif isinstance(message, Reply):
            self._replied(message)

    def on_closed(self) -> None:
        """Called once, when the connection is gone."""

    # -- out

    def tell(self, message: Struct) -> None:
        """Send in order; dropped when the connection is gone. Raises `FrameError` for a message that is too large."""
        if self.gone:
            return
        data = frame(message)
        self._out.append(data)
        self._waiting += len(data)
        if self._waiting > HIGH_WATER:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_soon)

    async def query(self, name: str, body: bytes = b"", *, timeout: float) -> bytes:
        """Raises `RouterUnavailable` without an answer in time, or with a refusal."""
        if not self.ready:
            raise RouterUnavailable(f"{self.peer} cannot be asked for {name}")
        number = self.number()
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._queries[number] = answer
        self.tell(Query(number, name, body))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise RouterUnavailable(f"{self.peer} did not answer {name} within {timeout:g} s") from None
        finally:
            del self._queries[number]

    def number(self) -> int:
        """For a question on this connection."""
        self._next += 1
        return self._next

    def close(self, fault: str = "") -> None:
        """`fault` is logged. What was not sent yet is dropped."""
        if self._transport is not None and not self._transport.is_closing():
            if fault:
                log.warning("the connection to %s is closed: %s", self.peer, fault)
            self._transport.abort()

    def _flush_soon(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        out, self._out, self._waiting = self._out, [], 0
        if self._transport is None or not out or self._transport.is_closing():
            return
        self._transport.writelines(out)
        if self._clogged and self.unsent > UNSENT_LIMIT:
            self.close(f"it leaves more than {UNSENT_LIMIT} bytes unread")

    # -- in

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._framer.feed(data):
                if self.gone:
                    return
                self.on_message(message)
        except FrameError as error:
            self.close(str(error))
        if self._out:
            self._flush()

    def _queried(self, query: Query) -> None:
        handler = self._handlers.get(query.name)
        if handler is None or len(self._tasks) >= QUERIES_AT_ONCE:
            self.tell(Reply(query.id, b"", "nobody answers this" if handler is None else "too many questions at once"))
            return
        task = self._loop.create_task(self._answer(query, handler), name=f"{query.name} for {self.peer}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, query: Query, handler: Handler) -> None:
        try:
            self.tell(Reply(query.id, await handler(self.peer, query.body)))
        except Exception as error:
            log.exception("%s for %s failed", query.name, self.peer)
            self.tell(Reply(query.id, b"", f"{type(error).__name__}: {error}"[:500]))

    def _replied(self, reply: Reply) -> None:
        answer = self._queries.get(reply.id)
        if answer is None or answer.done():
            return
        if reply.error:
            answer.set_exception(RouterUnavailable(f"{self.peer}: {reply.error}"))
        else:
            answer.set_result(reply.body)

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(HIGH_WATER)

    def pause_writing(self) -> None:
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        for task in self._tasks:
            task.cancel()
        for answer in self._queries.values():
            if not answer.done():
                answer.set_exception(RouterUnavailable(f"{self.peer} is gone"))
        self.on_closed()
        if not self.closed.done():
            self.closed.set_result(None)
