"""Valkey with a 50 ms deadline on each step: what it holds may be lost, what waits for it may not wait long."""

import asyncio

from valkey.asyncio import Valkey
from valkey.exceptions import ValkeyError

from forebay.platform.stores.daemon import StoreError

DEADLINE = 0.05
_SCHEMES = ("valkey://", "valkeys://", "redis://", "rediss://", "unix://")

# What a call may raise when Valkey is away or slow.
ERRORS = (ValkeyError, OSError, TimeoutError)


def create_client(url: str, *, deadline: float = DEADLINE, max_connections: int = 16) -> Valkey:
    """A client that gives up on connecting and on an answer after `deadline` seconds each and never retries.

    Wrap a call in `asyncio.timeout(deadline)` where both together must stay below it.
    """
    if not url.startswith(_SCHEMES):
        raise StoreError("stores.valkey: expected valkey://host:port/0, valkeys://… or unix:///path")
    client: Valkey = Valkey.from_url(
        url, socket_timeout=deadline, socket_connect_timeout=deadline, max_connections=max_connections
    )
    return client


async def ping(client: Valkey, deadline: float = DEADLINE) -> None:
    """Return if Valkey answers within `deadline` seconds, else raise one of ERRORS."""
    async with asyncio.timeout(deadline):
        await client.ping()
