"""A client that costs next to nothing per event: one keep-alive connection, streams asked for one after the other."""

import asyncio
from typing import Self


class Bad(Exception):  # noqa: N818 - a finding, not a fault of the bench
    """An answer that is not a whole stream."""


class Stream(asyncio.Protocol):
    """`events` counts those of all its answers."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._status = b""
        self._head = b""
        self._tail = b""
        self._fault = ""
        self._done: asyncio.Future[None] | None = None
        self.events = 0

    @classmethod
    async def connect(cls, port: int) -> Self:
        _, stream = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(Bad("the connection was closed before the answer was complete"))

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._status = head[9:12]
            if self._status != b"200":
                self._end(Bad(f"{self._status.decode()} {data.decode('utf-8', 'replace')[-300:]}"))
                return
        self.events += data.count(b"data: {")
        if b'"error":{' in data:
            self._fault = data.decode("utf-8", "replace")[-300:]
        self._tail = (self._tail + data)[-24:]
        if self._tail.endswith(b"0\r\n\r\n"):
            whole = b"data: [DONE]" in self._tail and not self._fault
            self._end(None if whole else Bad(f"not a whole stream: {self._fault or self._tail!r}"))

    async def exchange(self, data: bytes) -> None:
        """Send one request, read its stream to the end. Raises `Bad`; the connection is useless then."""
        self._status = self._head = self._tail = b""
        self._fault = ""
        self._done = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            raise Bad("the connection was closed between two requests")
        self._transport.write(data)
        await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: Bad | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)
