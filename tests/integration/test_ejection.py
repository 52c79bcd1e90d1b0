"""Replicas that are well by their probes and fail or hang: they are put out, visibly, and return when they work."""

import asyncio
import time
from typing import Any

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.scripted import ScriptedEngine, whole
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import unbooked

HANGING = Fault(kind="hang_before_headers", path="/v1/chat")


async def shown(door: Door, name: str = "engine-0") -> dict[str, Any]:
    state: dict[str, Any] = (await door.http.get("/health")).json()["pools"]["main"][name]
    return state


async def metric(door: Door, name: str, labels: str = 'endpoint="engine-0",pool="main"') -> float:
    lines = (await door.http.get("/metrics")).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{{labels}"))


async def until(door: Door, status: str, *, timeout: float = 8.0) -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        state = await shown(door)
        return state if state["status"] == status else None

    state: dict[str, Any] | None = await eventually(found, timeout)
    assert state is not None
    return state


async def test_garbage_puts_it_out_and_answers_bring_it_back(open_door: OpenDoor) -> None:
    garbage, good = whole(b"<html>"), whole(b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}')
    async with ScriptedEngine(garbage, model=MODEL) as broken, EngineDouble() as well, open_door(broken, well) as door:
        await until(door, "up")
        answers = [(await door.chat(f"{n}", max_tokens=2)).status_code for n in range(10)]
        assert set(answers) == {200}
        state = await until(door, "ejected")
        assert "not" in state["reason"]
        assert broken.asked == 2
        assert await metric(door, "forebay_endpoint_up") == 0.0
        assert await metric(door, "forebay_endpoint_ejections_total") == 1.0
        assert await metric(door, "forebay_endpoint_state", 'endpoint="engine-0",pool="main",state="ejected"') == 1.0
        assert (await door.http.get("/health")).json()["status"] == "degraded"
        broken.script = good
        state = await until(door, "returning")
        assert await metric(door, "forebay_endpoint_up") == 1.0
        for n in range(20):
            assert (await door.chat(f"again {n}", max_tokens=2)).status_code == 200
        assert (await shown(door)) == {"status": "up"}
        await eventually(lambda: unbooked(door))


async def test_one_that_fails_whenever_it_returns_is_out_longer_each_time(open_door: OpenDoor) -> None:
    broken = ScriptedEngine(whole(b""), model=MODEL)
    async with broken, EngineDouble() as well, open_door(broken, well) as door:
        await until(door, "up")
        ends = time.monotonic() + 8.0
        while time.monotonic() < ends:
            assert (await door.chat(f"{time.monotonic()}", max_tokens=2)).status_code == 200
            await asyncio.sleep(0.02)
        assert 3 <= broken.asked <= 5
        state = await until(door, "ejected")
        assert state["back_in_s"] >= 1
        assert await metric(door, "forebay_endpoint_back_in_seconds") > 0.0


async def test_one_that_hangs_is_put_out_by_the_requests_that_it_never_answered(open_door: OpenDoor) -> None:
    timeouts = {"firstByte": 0.5}
    async with EngineDouble() as one, EngineDouble() as two, open_door(one, two, timeouts=timeouts) as door:
        await until(door, "up")
        one.faults.faults.append(HANGING)
        answers = await asyncio.gather(*(door.chat(f"{n}", max_tokens=2) for n in range(8)))
        assert {answer.status_code for answer in answers} == {200, 504}
        state = await shown(door)
        assert (state["status"], state["reason"]) == ("ejected", "the engine did not answer in time")
        one.faults.clear()
        await until(door, "returning")


async def test_one_that_dies_in_every_stream_is_put_out(open_door: OpenDoor) -> None:
    dying = Fault(kind="close", after=9, rst=True)
    async with EngineDouble(faults=(dying,)) as one, EngineDouble() as two, open_door(one, two) as door:
        await until(door, "up")
        for n in range(40):
            await door.chat(f"{n}", max_tokens=30, stream=True)
            if (await shown(door))["status"] != "up":
                break
        assert (await shown(door))["status"] == "ejected"
        assert n < 12
        assert (await shown(door, "engine-1"))["status"] == "up"


async def test_one_that_accepts_and_never_answers_is_found_by_its_probes(open_door: OpenDoor) -> None:
    silent = Fault(kind="hang_before_headers", path="/health")
    async with EngineDouble() as one, EngineDouble() as two, open_door(one, two) as door:
        await until(door, "up")
        one.faults.faults += [silent, HANGING]
        state = await until(door, "down", timeout=20.0)
        assert state["reason"] == "no answer within 5 s"
        answers = [await door.chat(f"{n}", max_tokens=2) for n in range(6)]
        assert {(a.status_code, a.headers["x-forebay-endpoint"]) for a in answers} == {(200, "engine-1")}


async def test_a_tenants_poison_puts_out_at_most_half_and_the_others_answer(open_door: OpenDoor) -> None:
    """It hangs wherever it goes, as some prompts do."""
    poison = Fault(kind="hang_before_headers", path="/v1/chat")
    engines = [EngineDouble() for _ in range(4)]
    async with engines[0], engines[1], engines[2], engines[3], open_door(*engines, timeouts={"firstByte": 0.3}) as door:
        states = door.service.router.states
        await eventually(lambda: all(state.health == "up" for state in states("main").values()))
        for engine in engines:
            engine.faults.faults.append(poison)
        await asyncio.gather(*(door.chat(f"{n}", max_tokens=2) for n in range(24)))
        for engine in engines:
            engine.faults.clear()
        assert 1 <= sum(state.health == "ejected" for state in states("main").values()) <= 2
        assert {(await door.chat(f"after {n}", max_tokens=2)).status_code for n in range(4)} == {200}
