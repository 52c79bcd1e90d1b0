import time
from tests.integration.test_workers import *
async def test_dbg(open_door):
    async with EngineDouble(SLOW) as one, EngineDouble(SLOW) as other, open_door(one, other, maxInFlightPerProject=40) as door, Tenant(door) as tenant:
        t=time.monotonic()
        for _ in range(10):
            assert (await tenant.ask(max_tokens=1)).status_code == 200
        print("asks", round(time.monotonic()-t,2)); t=time.monotonic()
        await tenant.on_both_workers()
        print("both", len(tenant.identifiers), round(time.monotonic()-t,2)); t=time.monotonic()
        while len(tenant.identifiers) < 40:
            await tenant.stream()
        print("all", round(time.monotonic()-t,2), one.scheduler.in_flight, other.scheduler.in_flight, await tenant.booked()); t=time.monotonic()
        for _ in range(300):
            codes=[await _code(tenant) for _ in range(8)]
            if set(codes)=={"concurrency_limit_exceeded"}: break
        print("refused", _, round(time.monotonic()-t,2), codes, await tenant.in_flight())
