"""Replicas that look well to probes and fail every request, or answer none: those that work answer."""

import asyncio
from contextlib import AsyncExitStack

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.observed import SLOW, unbooked

HANGING = Fault(kind="hang_before_headers", path="/v1/chat")
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


async def test_a_replica_that_hangs_costs_its_conversations_one_request_each_at_most(open_door: OpenDoor) -> None:
    timeouts = {"firstByte": 0.5}
    async with EngineDouble() as one, EngineDouble() as two, open_door(one, two, timeouts=timeouts) as door:
        prompts = [f"conversation {n} " + "word " * 300 for n in range(6)]
        homes = [(await door.chat(each, max_tokens=2)).headers["x-forebay-endpoint"] for each in prompts]
        assert set(homes) == {"engine-0", "engine-1"}
        one.faults.faults.append(HANGING)
        lost = await asyncio.gather(*(door.chat(each, max_tokens=2) for each in prompts))
        assert {answer.status_code for answer in lost} == {200, 504}
        answers = [await door.chat(each, max_tokens=2) for each in (*prompts, *(f"new {n}" for n in range(6)))]
        assert {(a.status_code, a.headers["x-forebay-endpoint"]) for a in answers} == {(200, "engine-1")}
        await eventually(lambda: unbooked(door))


async def test_one_that_hung_is_asked_all_the_same_where_it_is_the_only_one(open_door: OpenDoor) -> None:
    async with EngineDouble(faults=(HANGING,)) as engine, open_door(engine, timeouts={"firstByte": 0.3}) as door:
        assert (await door.chat("hello")).status_code == 504
        engine.faults.clear()
        assert (await door.chat("hello")).status_code == 200
        engine.faults.faults.append(HANGING)
        assert (await door.chat("hello")).status_code == 504
