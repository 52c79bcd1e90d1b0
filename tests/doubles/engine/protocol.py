"""HTTP/1.1 on one socket: requests in, bytes out, and word of a client that leaves."""

import asyncio
import os
import socket
import struct
import time
from collections import deque
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol

import httptools

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ndate: %b\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
_STREAM_HEAD += b"vary: Origin\r\n"
_VARY = b"vary: Origin\r\n"
_INVALID = b"Invalid HTTP request received."


class Request:
    """A request as it came. Header names are in lower case; `body` is complete."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "received")

    def __init__(self) -> None:
        self.method = ""
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.keep_alive = True
        self.received = 0.0

    def request_id(self, body: dict[str, Any]) -> str:
        """The id given by header or body, or a new one; vLLM puts `chatcmpl-` or `cmpl-` before it."""
        return str(self.headers.get("x-request-id") or body.get("request_id") or os.urandom(8).hex())

    def shown(self) -> dict[str, Any]:
        """As GET /_double/requests shows it."""
        return {
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "received": self.received,
            "body": self.body.decode("utf-8", "replace"),
        }


class Answer(Protocol):
    """What a connection tells the answer that is being written on it."""

    def lost(self) -> None: ...
    def writable(self) -> None: ...


class App(Protocol):
    def handle(self, request: Request, connection: "Connection") -> None: ...
    def reading(self, request: Request, connection: "Connection") -> None: ...


class Clock:
    """The date header, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def date(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text


_clock = Clock()


class Connection(asyncio.Protocol):
    """One client. Requests that are sent ahead wait until the current one has been answered."""

    def __init__(self, app: App, open_connections: "set[Connection]") -> None:
        self._app = app
        self._open = open_connections
        self._parser: Any = httptools.HttpRequestParser(self)
        self._request = Request()
        self._parts: list[bytes] = []
        self._ahead: deque[Request] = deque()
        self._current: Request | None = None
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set before any other call
        self.answer: Answer | None = None
        self.paused = False
        self.gone = False

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            self.transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(_INVALID), _INVALID)
            )
            self.transport.close()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self._leave()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.answer is not None:
            self.answer.writable()

    # httptools
    def on_message_begin(self) -> None:
        self._request = Request()
        self._parts = []

    def on_url(self, url: bytes) -> None:
        self._request.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._request.method = self._parser.get_method().decode()
        if self._request.headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._app.reading(self._request, self)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        request = self._request
        request.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        request.keep_alive = self._parser.should_keep_alive()
        request.received = time.time()
        if self._current is not None:
            self._ahead.append(request)
            return
        self._current = request
        self._app.handle(request, self)

    # For answers
    def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        *,
        extra: bytes = b"",
        length: int | None = None,
    ) -> None:
        """A whole answer. `extra` are further header lines; `length` overrides the content-length."""
        kind = b"content-type: %b\r\n" % content_type if content_type else b""
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ndate: %b\r\nserver: uvicorn\r\n%bcontent-length: %d\r\n%b%b\r\n%b"
            % (
                status, _REASONS.get(status, b""), _clock.date(), extra, len(body) if length is None else length,
                kind + _VARY, self._closing(), body,
            )
        )  # fmt: skip
        self.finish()

    def begin_stream(self) -> None:
        self.transport.write(_STREAM_HEAD % _clock.date() + self._closing() + b"transfer-encoding: chunked\r\n\r\n")

    def finish(self) -> None:
        """The current answer is complete."""
        current, self._current, self.answer = self._current, None, None
        if current is not None and not current.keep_alive:
            self.transport.close()
        elif self._ahead and not self.gone:
            self._current = self._ahead.popleft()
            self._app.handle(self._current, self)

    def cut(self, *, rst: bool) -> None:
        """Close at once, with a FIN or a reset. What has been written before may still be on its way."""
        if rst:
            raw = self.transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()

    def _closing(self) -> bytes:
        return b"" if self._current is None or self._current.keep_alive else b"connection: close\r\n"

    def _leave(self) -> None:
        self.gone = True
        self._ahead.clear()
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.lost()
