"""What bounds an answer that is continued: its time, its tier, its attempts; and engines that make it hard."""

import asyncio
import itertools
import json
from decimal import Decimal
from typing import Any

import httpx
import msgspec
import pytest

from forebay.platform.limits.rules import Level
from forebay.platform.relay import client
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.scripted import END, SSE, ScriptedEngine, chunk
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.failing import (
    CHAT,
    CLASSES,
    DIES,
    PACE,
    billed,
    body,
    chain,
    events,
    pair,
    plain,
    said,
    until_asked,
)
from tests.integration.observed import unbooked
from tests.integration.test_limits import closed_clients, tenant
from tests.integration.test_tiers import steered
from tests.integration.test_waiting import wait_until

HANGS = Fault(kind="hang", after=9, path="/v1/chat", stream=True)
NOTHING = dict.fromkeys(CLASSES, 0)
__all__ = ["closed_clients"]  # of tenants with limits, after each test


def asked(*engines: EngineDouble) -> list[int]:
    return [sum(request.path == CHAT for request in engine.requests) for engine in engines]


def failure(response: httpx.Response) -> tuple[str, Any]:
    error = events(response.text)[-1]["error"]
    return error["code"], error.get("metadata")


# -- a request's time


async def test_an_answer_whose_time_is_over_is_not_begun_upon_by_another_engine(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    timeouts = {"idle": 1.0, "total": 1.0, "firstByte": 0.9, "connect": 0.5}
    async with pair(open_door, HANGS, model=model, timeouts=timeouts) as (hanging, _, door):
        response = await until_asked(door, hanging, CHAT, body())
        assert failure(response) == ("engine_timeout", {"reason": "total"})
        records = await chain(door, response)
        assert [(r["endpoint"], r["status"]) for r in records] == [("engine-0", "failed")]
        assert billed(records) == NOTHING


async def test_the_time_of_a_request_is_over_in_its_continuation_too(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    async with pair(open_door, DIES, model=model, timeouts={"total": 2.0}) as (dying, _, door):
        response = await until_asked(door, dying, CHAT, body(max_tokens=5_000))
        assert failure(response) == ("engine_timeout", {"reason": "total"})
        records = await chain(door, response)
        assert [(r["status"], r["terminated_by"]) for r in records] == [("failed", "engine"), ("failed", "deadline")]
        assert billed(records) == NOTHING
        assert records[1]["engine_output"] > 0
        suspects = door.service.inferences._relay._means.suspects
        assert suspects.of("main", asyncio.get_running_loop().time(), again=True) == ("engine-0",)
        assert unbooked(door)


async def test_two_engines_together_have_one_wait_for_the_first_byte(open_door: OpenDoor) -> None:
    """The second has what the first one left of it, and is not held to be ill for that."""
    silent = Fault(kind="hang_before_headers", path="/v1/chat")
    async with (
        EngineDouble(PACE, faults=(silent,)) as one,
        EngineDouble(PACE, faults=(silent,)) as two,
        open_door(one, two, timeouts={"firstByte": 3.0}) as door,
    ):
        running = asyncio.create_task(door.chat(stream=True))
        await eventually(lambda: sum(asked(one, two)) == 1)
        await asyncio.sleep(1.5)
        first = one if asked(one)[0] else two
        for connection in list(first._connections):
            connection.cut(rst=True)
        await eventually(lambda: asked(one, two) == [1, 1])
        response = await running
        assert response.status_code == 504
        assert response.json()["error"]["metadata"] == {"reason": "first_byte"}
        suspects = door.service.inferences._relay._means.suspects
        now = asyncio.get_running_loop().time()
        assert suspects.of("main", now, again=True) == ("engine-0" if first is one else "engine-1",)
        assert suspects.of("main", now, again=False) == ()  # it died, it did not hang


# -- its tier


async def test_an_answer_is_echoed_and_billed_in_one_tier_however_many_engines_give_it(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    """The one in which it was placed first: `downgrade` is for newcomers."""
    tiers = [
        {"name": "fast", "rank": 0, "ttft": 1, "shed": "downgrade", "multiplier": "3"},
        {"name": "slow", "rank": 1, "multiplier": "0.5"},
    ]
    async with pair(open_door, DIES, model=model, tiers=tiers) as (dying, well, door):
        with steered(door, lambda ask: ask.tier if ask.promised else "slow") as heard:
            response = await until_asked(door, dying, CHAT, body(service_tier="fast"))
        found = events(response.text)
        assert said(found) == said(await plain(well, CHAT, body()))
        assert {event["service_tier"] for event in found} == {"slow"}
        records = await chain(door, response)
        assert [r["status"] for r in records] == ["continued", "completed"]
        assert {(r["tier_requested"], r["tier_used"], r["price_multiplier"]) for r in records} == {
            ("fast", "slow", Decimal("0.5"))
        }
        assert [(ask.tier, ask.promised) for ask in heard.asks[-2:]] == [("fast", False), ("slow", True)]


# -- its limits


async def test_an_answer_that_waits_again_is_not_counted_as_waiting_nor_ended_by_that_limit(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    busy = msgspec.structs.replace(PACE, prefill_rate=1_000.0)
    async with EngineDouble(busy) as engine, open_door(engine, model=model) as door:
        who = await tenant(door)
        await who.limit(Level.KEY, queued_requests=1)
        relay = door.service.inferences._relay
        mine = asyncio.create_task(who.chat(stream=True, temperature=0, max_tokens=100))
        await eventually(lambda: any(one.begun for one in relay._means.live.values()))
        other = asyncio.create_task(door.chat("word " * 3_000, max_tokens=1, stream=True))
        await eventually(lambda: engine.scheduler.in_flight == 2)
        for booking in [booking for booking, one in relay._means.live.items() if one.begun]:
            relay.evict(booking)
        await wait_until(door, 1)
        newcomer = asyncio.create_task(who.chat("word " * 1_000, stream=True))
        await wait_until(door, 2)
        refused = await who.chat()
        assert refused.json()["error"]["metadata"]["limit"] == "queued_requests"
        for answer in await asyncio.gather(mine, newcomer, other):
            assert answer.status_code == 200
            assert not any("error" in event for event in events(answer.text))
        assert said(events(mine.result().text)) == said(await plain(engine, CHAT, body(max_tokens=100)))


# -- its attempts


async def test_one_that_every_engine_dies_of_has_three_and_then_an_end_in_words(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    dies = Fault(kind="close", after=5, rst=True, stream=True)
    engines = [EngineDouble(PACE, faults=(dies,)) for _ in range(4)]
    async with engines[0], engines[1], engines[2], engines[3], open_door(*engines, model=model) as door:
        response = await door.http.post(CHAT, json=body())
        assert failure(response) == ("engine_lost", {"reason": "attempts"})
        found = events(response.text)[:-1]
        assert len({event["id"] for event in found}) == 1
        assert sum(asked(*engines)) == 3
        assert max(asked(*engines)) == 1
        records = await chain(door, response)
        assert [(r["attempt"], r["status"]) for r in records] == [(1, "failed"), (2, "failed"), (3, "failed")]
        assert billed(records) == NOTHING
        metrics = (await door.http.get("/metrics")).text
        assert 'forebay_continuations_total{outcome="attempts",why="died"} 1.0' in metrics
        assert unbooked(door)


# -- engines


async def frames_of(engine: EngineDouble, request: dict[str, Any]) -> list[bytes]:
    """What the engine answers a front door."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with httpx.AsyncClient(base_url=engine.url, timeout=30.0) as client:
        answer = await client.post(CHAT, json={**request, "model": MODEL, "stream_options": options})
    return [frame + b"\n\n" for frame in answer.content.split(b"\n\n") if frame]


HALF = {
    "an event": b'data: {"id":"chatcmpl-0","choices":[{"index":0,"del',
    "a character": b'data: {"id":"chatcmpl-0","choices":[{"index":0,"delta":{"content":"\xc3',
    "an end of line": b'data: {"id":"chatcmpl-0","choices":[{"index":0,"delta":{"content":"never"}}]}\n',
    "bytes that are no text": b'data: {"id":"chatcmpl-0","choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n',
}


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("piece", [1, 1000])
async def test_half_of_something_at_the_end_of_what_a_dead_engine_sent_is_not_said(
    open_door: OpenDoor, model: dict[str, str], half: str, piece: int
) -> None:
    async with EngineDouble(PACE) as well:
        frames = await frames_of(well, body())
        sent = b"".join(frames[:9]) + HALF[half]

        async def dies(writer: asyncio.StreamWriter) -> None:
            writer.write(SSE)
            for at in range(0, len(sent), piece):
                writer.write(chunk(sent[at : at + piece]))
            await writer.drain()
            raise ConnectionResetError

        async with ScriptedEngine(dies, model=MODEL) as dying, open_door(dying, well, model=model) as door:
            response = await until_scripted(door, dying)
            found = events(response.text)
            assert not any("error" in event for event in found), found[-1]
            assert said(found) == said(await plain(well, CHAT, body()))
            records = await chain(door, response)
            assert [r["endpoint"] for r in records] == ["engine-0", "engine-1"]
            assert records[-1]["status"] == "completed"
            assert billed(records)["output"] == 40


async def until_scripted(door: Door, engine: ScriptedEngine) -> httpx.Response:
    for _ in range(60):
        before = engine.asked
        response = await door.http.post(CHAT, json=body())
        if engine.asked > before:
            return response
    raise AssertionError("it was never asked")


@pytest.mark.parametrize("stop", [None, ["nowhere to be seen"]])
async def test_an_engine_that_says_all_of_it_again_is_found_out_before_it_is_heard(
    open_door: OpenDoor, model: dict[str, str], stop: Any
) -> None:
    """It was sent the answer so far, and answers the question."""
    async with EngineDouble(PACE) as well:
        again = SSE + b"".join(map(chunk, await frames_of(well, body(stop=stop)))) + END
    async with (
        EngineDouble(PACE, faults=(DIES,)) as dying,
        ScriptedEngine(again, model=MODEL) as repeats,
        open_door(dying, repeats, model=model) as door,
    ):
        response = await until_asked(door, dying, CHAT, body(stop=stop))
        assert failure(response) == ("engine_lost", {"reason": "diverged"})
        assert said(await plain(dying, CHAT, body())).startswith(said(events(response.text)[:-1]))
        records = await chain(door, response)
        assert [r["status"] for r in records] == ["failed", "failed"]
        assert billed(records) == NOTHING


async def test_where_the_next_engine_tells_no_usage_its_part_is_counted_here(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    untold = Fault(kind="usage_missing", path="/v1/chat", stream=True)
    async with (
        EngineDouble(PACE, faults=(DIES,)) as dying,
        EngineDouble(PACE, faults=(untold,)) as silent,
        open_door(dying, silent, model=model) as door,
    ):
        response = await until_asked(door, dying, CHAT, body())
        assert said(events(response.text)) == said(await plain(silent, CHAT, body()))
        first, second = await chain(door, response)
        assert (first["status"], first["billable_output"], second["status"]) == ("continued", 8, "completed")
        assert billed([first])["input_uncached"] + billed([first])["cache_read"] > 0
        assert (second["measured"], second["estimated"], second["engine_output"]) == (False, True, 0)
        assert billed([second]) == {**NOTHING, "output": 32}  # of an answer of 40 tokens, the prompt not once more


# -- a client that leaves in the pause


async def until_quiet(lines: Any) -> int:
    """Read on until the answer pauses; how many events there were with text."""
    spoken = 0
    while not (line := await anext(lines)).startswith(":"):
        spoken += line.startswith("data: {") and bool(said([json.loads(line[6:])]))
    return spoken


async def test_a_client_that_leaves_while_the_next_engine_reads_pays_for_what_it_had(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    slow = msgspec.structs.replace(PACE, prefill_rate=40.0)
    async with (
        EngineDouble(PACE, faults=(DIES,)) as dying,
        EngineDouble(slow) as well,
        open_door(dying, well, model=model, timeouts={"heartbeatAfter": 0.1}) as door,
    ):
        for number in itertools.count():
            request = body(f"{number} " + "word " * 40, max_tokens=500)
            async with door.http.stream("POST", CHAT, json=request) as response:
                if response.headers["x-forebay-endpoint"] == "engine-0":
                    assert await until_quiet(response.aiter_lines()) == 8
                    await eventually(lambda: well.scheduler.in_flight)
                    break
        await eventually(lambda: not well.scheduler.in_flight)
        first, second = await chain(door, response)
        assert (first["status"], second["status"]) == ("continued", "cancelled")
        assert billed([first])["output"] == 8
        assert billed([second]) == NOTHING
        assert unbooked(door)


async def test_a_client_that_leaves_while_its_answer_waits_for_an_engine_pays_for_what_it_had(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    busy = msgspec.structs.replace(PACE, prefill_rate=1_000.0)
    async with (
        EngineDouble(busy) as engine,
        open_door(engine, model=model, timeouts={"heartbeatAfter": 0.1}) as door,
        door.http.stream("POST", CHAT, json=body(max_tokens=2_000)) as response,
    ):
        lines = response.aiter_lines()
        while not said([json.loads(line[6:])] if (line := await anext(lines)).startswith("data: {") else []):
            pass
        routing = door.service.routing
        assert routing is not None
        other = asyncio.create_task(door.chat("word " * 4_000, max_tokens=1, stream=True))
        await eventually(lambda: engine.scheduler.in_flight == 2)
        (mine,) = [one for one in door.service.inferences._relay._means.live.items() if one[1].begun]
        door.service.inferences._relay.evict(mine[0])
        await eventually(lambda: routing.waiting["main"] == 1)
        await until_quiet(lines)
        await response.aclose()
        await eventually(lambda: routing.waiting["main"] == 0)
        assert (await other).status_code == 200
        (record,) = await chain(door, response)
        assert (record["status"], record["terminated_by"], record["error"]) == ("cancelled", "client", "preempted")
        assert 0 < billed([record])["output"] <= record["engine_output"]
        assert billed([record])["input_uncached"] + billed([record])["cache_read"] > 0
        assert unbooked(door)


# -- a long silence


async def test_an_event_that_says_nothing_in_the_middle_of_an_answer_is_one_of_that_answer(
    open_door: OpenDoor, model: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its id, also where the engine makes up its own."""
    monkeypatch.setattr(client, "SILENT_S", 0.3)
    frames: list[bytes] = []

    async def quiet(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE + b"".join(map(chunk, frames[:9])))
        await asyncio.sleep(1.5)
        writer.write(b"".join(map(chunk, frames[9:])) + END)

    async with EngineDouble(PACE) as well, ScriptedEngine(quiet, model=MODEL) as silent:
        frames += [f.replace(b'"id":"', b'"id":"own-') for f in await frames_of(well, body())]
        async with open_door(silent, model=model, timeouts={"heartbeatAfter": 0.1}) as door:
            response = await door.http.post(CHAT, json=body())
        found = events(response.text)
        assert any(event["choices"] and event["choices"][0]["delta"] == {} for event in found[:-2])
        assert len({(event["id"], event["created"], event["object"]) for event in found}) == 1
        assert said(found) == said(await plain(well, CHAT, body()))
