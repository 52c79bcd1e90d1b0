"""Holds both slots of a limit until it is killed. Run by `test_limits_valkey`: URL and tenant are its arguments."""

import asyncio
import sys

from forebay.platform.limits.limiter import Limiter
from forebay.platform.limits.permit import Permit
from forebay.platform.limits.rules import Level, Limit, Limits


async def main(url: str, tenant: str) -> None:
    limiter = Limiter(url, "limits", lease_s=1.0, renew_s=0.2)
    await limiter.start()
    running = asyncio.create_task(limiter.run())
    limit = Limit(Level.KEY, "key_1", "", Limits(concurrent_requests=2))
    for number in range(2):
        await Permit(limiter, f"victim_{number}", tenant, (limit,)).enter()
    print("holding", flush=True)
    await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
