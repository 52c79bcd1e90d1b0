"""Limiters on one Valkey, as front-door processes have them, and what Valkey has counted."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from valkey.asyncio import Valkey

from forebay.metering import Quantities
from forebay.platform.errors import ApiError
from forebay.platform.limits.limiter import Limiter
from forebay.platform.limits.permit import Permit
from forebay.platform.limits.rules import Level, Limit, Limits
from forebay.platform.limits.window import phase_of, window
from tests.eventually import eventually

MODEL = "tiny"
_numbers = itertools.count()


def tenant_with(at_least_ms: int, below_ms: int = 60_000) -> str:
    """A tenant whose window has so much left."""
    while True:
        tenant = f"ten_{os.urandom(6).hex()}"
        if at_least_ms <= window(int(time.time() * 1000), phase_of(tenant)).left_ms < below_ms:
            return tenant


def limit(level: Level = Level.KEY, model: str = "", owner: str = "", **numbers: int) -> Limit:
    return Limit(level, owner or f"{level}_1", model, Limits(**numbers))


@asynccontextmanager
async def limiters(
    url: str, count: int = 1, *, lease_s: float = 5.0, renew_s: float = 0.5, root: str = "limits"
) -> AsyncIterator[list[Limiter]]:
    made = [Limiter(url, root, lease_s=lease_s, renew_s=renew_s) for _ in range(count)]
    running = []
    for one in made:
        await one.start()
        running.append(asyncio.create_task(one.run()))
    try:
        if renew_s < lease_s and all(one.link.shared for one in made):
            await eventually(lambda: all(one.processes >= count for one in made))
        yield made
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def permit(limiter: Limiter, tenant: str, *limits: Limit) -> Permit:
    return Permit(limiter, f"req_{next(_numbers)}", tenant, limits)


async def admitted(one: Permit, *, uncached: int = 0, output: int = 0) -> bool:
    """Whether it is let through. One that is not has given back what it held."""
    try:
        await one.enter()
        await one.take(MODEL, uncached, output)
    except ApiError as error:
        assert error.status == 429
        one.close(refund=True)
        return False
    return True


def used(one: Permit, uncached: int = 0, output: int = 0) -> None:
    one.counted(1, Quantities(input_uncached=uncached, output=output))


async def told(*some: Limiter) -> None:
    """Returns when Valkey has heard all that was said."""
    for one in some:
        if one.link.shared:
            await one.link.ask(one.link._present)


async def counts(url: str, root: str = "limits") -> dict[str, int]:
    """What Valkey has of each limit: spent in its window, or slots held. Those of nothing are left out."""
    client = Valkey.from_url(url)
    found = {}
    try:
        async for key in client.scan_iter(f"{root}:{{*"):
            name = key.decode().partition("}:")[2]
            if await client.type(key) == b"zset":
                found[name] = await client.zcount(key, time.time() * 1000, "+inf")
            else:
                found[name] = int(await client.hget(key, "n") or 0)
    finally:
        await client.aclose()
    return {name: count for name, count in found.items() if count}
