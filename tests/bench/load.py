"""A light load generator: keep-alive connections, whole requests prepared beforehand, answers only counted."""

import asyncio
from typing import Any

import msgspec


def request(path: str, body: dict[str, Any], *, key: str | None) -> bytes:
    """The bytes of one POST."""
    encoded = msgspec.json.encode(body)
    auth = f"authorization: Bearer {key}\r\n" if key else ""
    return (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\n{auth}content-type: application/json\r\n"
        f"content-length: {len(encoded)}\r\n\r\n"
    ).encode() + encoded


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.events = 0
        self.status = b""
        self._tail = b""
        self._left: int | None = None
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("closed before the answer was complete"))

    def data_received(self, data: bytes) -> None:
        if not self.status:
            head, _, data = data.partition(b"\r\n\r\n")
            self.status = head[9:12]
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._left = int(length) if length else None
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._finish()
            return
        self.events += data.count(b"data: ")
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n":
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def exchange(self, data: bytes) -> bytes:
        """Send one request, wait for the whole answer; returns the status code."""
        self.status, self._tail = b"", b""
        self._done = asyncio.get_running_loop().create_future()
        assert self.transport is not None
        self.transport.write(data)
        await self._done
        return self.status


async def streams(port: int, data: bytes, *, count: int) -> int:
    """`count` streams at once, each to its end. Returns the events received; raises unless all answered 200."""
    connections = [await connect(port) for _ in range(count)]
    statuses = await asyncio.gather(*(connection.exchange(data) for connection in connections))
    _check(statuses)
    for connection in connections:
        assert connection.transport is not None
        connection.transport.close()
    return sum(connection.events for connection in connections)


async def requests(port: int, data: bytes, *, connections: int, total: int) -> None:
    """`total` requests over so many connections. Raises unless all answered 200."""
    left = iter(range(total))

    async def work() -> None:
        connection = await connect(port)
        for _ in left:
            _check([await connection.exchange(data)])
        assert connection.transport is not None
        connection.transport.close()

    await asyncio.gather(*(work() for _ in range(connections)))


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


def _check(statuses: list[bytes]) -> None:
    wrong = {status.decode() for status in statuses} - {"200"}
    if wrong:
        raise RuntimeError(f"answers other than 200: {', '.join(sorted(wrong))}")
