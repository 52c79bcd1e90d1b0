"""Several replicas that look well to probes and fail every request: those that work answer."""

import asyncio
from contextlib import AsyncExitStack

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.observed import SLOW, unbooked

FAILING = Fault(kind="status", path="/v1/chat", status=500)


async def test_as_many_broken_replicas_as_a_request_has_attempts_do_not_draw_all_of_them(open_door: OpenDoor) -> None:
    """Failing at once they are idle, which makes them look best; nothing is known of them before the first requests."""
    async with AsyncExitStack() as stack:
        faults = [(FAILING,)] * 3 + [()] * 2
        engines = [await stack.enter_async_context(EngineDouble(SLOW, faults=each)) for each in faults]
        door = await stack.enter_async_context(open_door(*engines))
        await asyncio.gather(*(door.chat(f"the first {n}", max_tokens=2) for n in range(5)))
        later = await asyncio.gather(*(door.chat(f"another {n}", max_tokens=20, stream=True) for n in range(30)))
        alone = [await door.chat(f"one more {n}", max_tokens=2) for n in range(10)]
        assert {answer.status_code for answer in (*later, *alone)} == {200}
        await eventually(lambda: unbooked(door))


async def test_where_all_are_suspected_all_are_tried(open_door: OpenDoor) -> None:
    """A request that every replica fails on has as many attempts as ever, and the next one is answered."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(EngineDouble(faults=(FAILING,))) for _ in range(3)]
        door = await stack.enter_async_context(open_door(*engines))
        for _ in range(2):
            assert (await door.chat("poison")).status_code == 503
        assert [len([r for r in engine.requests if r.path.startswith("/v1/chat")]) for engine in engines] == [2, 2, 2]
        for engine in engines:
            engine.faults.clear()
        assert (await door.chat("hello")).status_code == 200
