"""An engine that is well by its probes and answers requests with whatever bytes a test gives it, at the test's pace."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import msgspec

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, *, status: str = "200 OK", length: int | None = None) -> bytes:
    """An answer with a content-length, a wrong one if asked for."""
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status.encode(), len(body) if length is None else length, body)  # fmt: skip


class ScriptedEngine:
    """`script` writes the answer to each inference request (a bytes value is written as it is); `asked` counts them.

    A connection is kept when the script returns, and closed when it raises `ConnectionError`.
    """

    def __init__(self, script: Script | bytes, *, model: str) -> None:
        self.script = script
        self.asked = 0
        self.model = model
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    await self._answer(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        if head.startswith(b"get /v1/models"):
            writer.write(whole(msgspec.json.encode({"data": [{"id": self.model}]})))
        elif head.startswith(b"get "):
            writer.write(whole(b""))
        elif b"/abort_requests" in head.partition(b"\r\n")[0]:
            writer.write(whole(b"{}", status="403 Forbidden"))
        elif head.startswith(b"post /tokenize"):
            writer.write(whole(b"{}", status="404 Not Found"))
        else:
            self.asked += 1
            if isinstance(self.script, bytes):
                writer.write(self.script)
            else:
                await self.script(writer)
        await writer.drain()
