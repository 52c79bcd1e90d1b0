"""Stopping an engine in the middle of a request, and hearing what it had used."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from forebay.platform.relay.frames import StreamError
from forebay.router import Connection, Endpoint, UpstreamError, Wake

log = logging.getLogger(__name__)

ABORT_CALL_S = 0.5  # the engine must be stopped within a second, so a silent abort route is given up on early
DRAIN_S = 3.0  # how long a stopped engine may take to tell its last usage


async def halt(
    endpoint: Endpoint, connection: Connection, order: tuple[bytes, bytes] | None, hear: Callable[[bytes], object]
) -> None:
    """By `order` (path and body of the engine's abort call) where the engine obeys it: it then ends its answer in the
    ordinary way, exact usage included. Else by half-closing the connection, which stops it as well. `hear` gets the
    rest of the answer's body."""
    if not await _ordered(endpoint, order):
        connection.half_close()
    connection.wake_at = asyncio.get_running_loop().time() + DRAIN_S
    with contextlib.suppress(UpstreamError, StreamError):  # what was heard counts
        await _drain(connection, hear)
    if not connection.complete:
        connection.close()


async def _ordered(endpoint: Endpoint, order: tuple[bytes, bytes] | None) -> bool:
    if order is None or endpoint.can_abort is False:
        return False
    try:
        status, _ = await endpoint.call(b"POST", *order, timeout=ABORT_CALL_S)
    except UpstreamError as error:
        log.warning("abort at %s: %s", endpoint.name, error)
        return False
    endpoint.can_abort = status == 200
    return endpoint.can_abort


async def _drain(connection: Connection, hear: Callable[[bytes], object]) -> None:
    while (wake := await connection.head()) is not None:
        if wake is Wake.TICK:
            return
    while data := await connection.read():
        if data is Wake.TICK:
            return
        if isinstance(data, bytes):
            hear(data)
