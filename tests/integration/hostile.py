"""What the tests of hostile tenants share: requests as bytes, connections that are used badly, and a door at rest."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.doubles.engine.server import EngineDouble
from tests.integration.door import MODEL, Door
from tests.integration.observed import unbooked

CHAT = "/v1/chat/completions"


def chat(**members: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2,
                       **members}).encode()  # fmt: skip


def head(door: Door, *lines: str, key: str = "") -> bytes:
    return "\r\n".join(
        (f"POST {CHAT} HTTP/1.1", "host: x", f"authorization: Bearer {key or door.key}", *lines, "", "")
    ).encode()


def request(door: Door, body: bytes, *, key: str = "") -> bytes:
    return head(door, f"content-length: {len(body)}", key=key) + body


@asynccontextmanager
async def connected(door: Door) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.service.config.server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def unread(door: Door, data: bytes) -> AsyncIterator[socket.socket]:
    """A connection on which `data` was sent and nothing is ever read."""
    with socket.socket() as end:
        await send_unread(end, door.service.config.server.port, data)
        yield end


async def send_unread(end: socket.socket, port: int, data: bytes) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(end, ("127.0.0.1", port))
    await loop.sock_sendall(end, data)


def at_rest(door: Door, *engines: EngineDouble) -> bool:
    """Nothing is held for anybody."""
    inferences = door.service.inferences
    endpoints = [endpoint for pool in door.service.pools for endpoint in pool.endpoints.values()]
    return not (
        inferences.gate.in_flight
        or inferences.tasks
        or inferences.memory.held
        or door.service.spool.open_count
        or any(engine.scheduler.in_flight for engine in engines)
        or any(endpoint.client.active for endpoint in endpoints)
        or not unbooked(door)
    )
