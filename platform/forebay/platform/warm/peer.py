"""Reads another front door's snapshot over HTTP, bounded in time and size."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator

from forebay.platform.warm.access import PATH
from forebay.router import Client, Connection, UpstreamError

log = logging.getLogger(__name__)

SIZE_LIMIT = 4 << 30  # bytes


class PeerError(Exception):
    """It has no snapshot for us. The message says why."""


async def fetch(url: str, token: str, *, connect_timeout: float) -> AsyncGenerator[bytes, None]:
    """The snapshot of the front door at `url`, as it comes. Raises `PeerError`; the caller bounds the time."""
    client = Client(url, connect_timeout=connect_timeout)
    try:
        connection = await client.acquire()
        try:
            connection.send(_head(client, token), b"")
            await connection.head()
            if connection.status != 200:
                raise PeerError(_refusal(connection.status))
            async for data in _body(connection):
                yield data
        finally:
            client.release(connection)
    except UpstreamError as error:
        raise PeerError(str(error)) from error
    finally:
        client.close()


def _head(client: Client, token: str) -> bytes:
    return b"GET %s%s HTTP/1.1\r\nhost: %s\r\nauthorization: Bearer %s\r\n\r\n" % (
        client.base_path, PATH.encode(), client.host_header, token.encode()
    )  # fmt: skip


async def _body(connection: Connection) -> AsyncIterator[bytes]:
    size = 0
    while isinstance(data := await connection.read(), bytes) and data:
        size += len(data)
        if size > SIZE_LIMIT:
            raise PeerError(f"its snapshot is larger than {SIZE_LIMIT} bytes")
        yield data


def _refusal(status: int) -> str:
    if status == 404:
        return "it does not know us (404): both need the same secrets.cacheSalt"
    return f"it answered {status}"
