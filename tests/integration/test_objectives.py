"""What is held against a pool as a missed objective is what its engines took: not how fast a tenant reads."""

import asyncio
import socket
from collections import Counter

import pytest

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import Door
from tests.integration.hostile import at_rest, chat, request, unread

TIERS = [{"name": "fast", "rank": 0, "ttft": 30, "tpot": 0.01}, {"name": "slow", "rank": 1}]
HELD_S = 3.0  # for which the tenant does not read: far more than so many tokens may take
SMALL = {"sendBuffer": 4096}


async def judged(door: Door) -> Counter[str]:
    """Of this process's life."""
    found: Counter[str] = Counter()
    for line in (await door.http.get("/metrics")).text.splitlines():
        for met in ("yes", "no"):
            if line.startswith('forebay_objectives_total{met="' + met) and 'objective="tpot"' in line:
                found[met] = round(float(line.split()[-1]))
    return found


async def read_on(end: socket.socket) -> bytes:
    data, loop = b"", asyncio.get_running_loop()
    while b"data: [DONE]" not in data[-64:]:
        data += await loop.sock_recv(end, 1 << 16)
    return data


LARGE = (Fault(kind="large_frame", size=4_000_000, after=3),)


@pytest.mark.parametrize(("faults", "tokens"), [((), 200), (LARGE, 800)], ids=["few", "many"])
async def test_a_tenant_that_reads_slowly_does_not_press_lower_tiers(
    open_door: OpenDoor, faults: tuple[Fault, ...], tokens: int
) -> None:
    """Where so much is left that the engine has to wait, its times are not known at all."""
    settings = Settings(answer_tokens=None, token_seconds=0.002, faults=faults)
    async with EngineDouble(settings) as engine, open_door(engine, tiers=TIERS, server=SMALL) as door:
        before = await judged(door)
        body = chat(stream=True, max_tokens=tokens, service_tier="fast")
        async with unread(door, request(door, body)) as end:
            await eventually(lambda: engine.metrics.generation_tokens > 0)
            await asyncio.sleep(HELD_S)
            assert door.service.inferences.gate.in_flight == 1  # it does hold the answer up
            await read_on(end)
        await eventually(lambda: at_rest(door, engine))
        assert await judged(door) - before == (Counter() if faults else Counter(yes=1))
        routing = door.service.routing
        assert routing is not None
        assert all(one.near == 0 for one in routing.core.lines["main"].ceilings._seen.values())


async def test_an_engine_that_is_slow_is_found_out(open_door: OpenDoor) -> None:
    settings = Settings(answer_tokens=None, token_seconds=0.02)
    async with EngineDouble(settings) as engine, open_door(engine, tiers=TIERS) as door:
        before = await judged(door)
        await door.chat(stream=True, max_tokens=20, service_tier="fast")
        assert await judged(door) - before == Counter(no=1)
