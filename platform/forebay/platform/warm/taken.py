"""A running router's snapshot, made while it goes on: of one endpoint after the other, each as it is at one moment."""

import asyncio
from collections.abc import AsyncGenerator

from forebay.platform.warm import stream
from forebay.router import RouterService, dump


async def taken(service: RouterService) -> AsyncGenerator[bytes, None]:
    """Of the endpoints whose events are known so far that a follower could go on from there."""
    yield stream.MAGIC
    for (pool, endpoint), follower in tuple(service.followers.items()):
        if endpoint not in service.core.pools[pool].members:
            continue
        if position := follower.position():
            pieces = dump(service.core.pools[pool].index, endpoint, position)
            for data in stream.written(pool, endpoint, pieces):
                yield data
                await asyncio.sleep(0)
    yield stream.ended()
