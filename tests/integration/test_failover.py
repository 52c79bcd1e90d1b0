"""An engine that dies in the middle of an answer costs a pause: another one goes on with it, and it is billed once."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.router import Ask, Placed, Result, Router
from tests.doubles.engine import tokens
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.failing import (
    CHAT,
    CLASSES,
    DIES,
    PACE,
    TEXT,
    billed,
    body,
    chain,
    events,
    pair,
    plain,
    said,
    text_body,
    until_asked,
)
from tests.integration.observed import counters, ledger, unbooked
from tests.integration.templates import known_tokens
from tests.integration.test_broken_engines import replaced


@pytest.mark.parametrize("fault", [
    DIES, Fault(kind="close", after=9, stream=True), Fault(kind="error_event", after=9, stream=True),
    Fault(kind="malformed_frame", after=9, stream=True), Fault(kind="close", after=2, stream=True),
], ids=lambda f: f"{f.kind}-{f.after}-{f.rst}")  # fmt: skip
@pytest.mark.parametrize("stop", [None, ["nowhere to be seen"]])
async def test_a_chat_goes_on_where_its_engine_was_lost(
    open_door: OpenDoor, model: dict[str, str], fault: Fault, stop: Any
) -> None:
    async with pair(open_door, fault, model=model) as (dying, well, door):
        request = body(stop=stop)
        response = await until_asked(door, dying, CHAT, request)
        found, whole = events(response.text), await plain(well, CHAT, request)
        assert not any("error" in event for event in found), found[-1]
        assert said(found) == said(whole)
        for name in ("id", "created", "model", "object"):
            assert len({event[name] for event in found}) == 1, name
        assert sum("role" in c["delta"] for event in found for c in event["choices"]) == 1
        assert [c["finish_reason"] for e in found for c in e["choices"] if c["finish_reason"]] == ["length"]
        usage, expected = found[-1]["usage"], whole[-1]["usage"]
        assert [usage[n] for n in ("prompt_tokens", "completion_tokens", "total_tokens")] == [
            expected[n] for n in ("prompt_tokens", "completion_tokens", "total_tokens")
        ]
        records = await chain(door, response)
        assert [(r["attempt"], r["status"]) for r in records] == [(1, "continued"), (2, "completed")]
        total = billed(records)
        assert total["output"] == usage["completion_tokens"] == 40
        assert total["input_uncached"] + total["cache_read"] + total["cache_write"] == usage["prompt_tokens"]
        assert billed(records[1:]) == {**dict.fromkeys(CLASSES, 0), "output": records[1]["engine_output"]}
        assert unbooked(door)


async def test_a_completion_goes_on_where_its_engine_was_lost(open_door: OpenDoor) -> None:
    async with pair(open_door, DIES) as (dying, well, door):
        request = text_body("once upon a time", max_tokens=None)
        response = await until_asked(door, dying, TEXT, request)
        found, whole = events(response.text), await plain(well, TEXT, request)
        assert said(found) == said(whole)
        assert found[-1]["usage"]["completion_tokens"] == 16  # as many as where nothing is said
        assert [r["status"] for r in await chain(door, response)] == ["continued", "completed"]


@pytest.mark.parametrize("listed", [False, True])
async def test_a_prompt_of_token_ids_goes_on_where_its_engine_was_lost(
    open_door: OpenDoor, tmp_path: Path, listed: bool
) -> None:
    ids = tokens.encode("once upon a time")
    alone = msgspec.structs.replace(PACE, tokenize=False)  # its tokens are not compared: others have none here
    async with pair(open_door, DIES, settings=alone, model=known_tokens(tmp_path)) as (dying, well, door):
        request = text_body([ids] if listed else ids)
        response = await until_asked(door, dying, TEXT, request)
        found, whole = events(response.text), await plain(well, TEXT, request)
        assert said(found) == said(whole)
        asked = msgspec.json.decode([r for r in well.requests if r.path == TEXT][-2].body)["prompt"]
        assert asked == ids + tokens.encode(said(whole))[: len(asked) - len(ids)]
        assert len(asked) > len(ids)
        records = await chain(door, response)
        assert [r["status"] for r in records] == ["continued", "completed"]
        assert billed(records)["output"] == 40
        assert sum(billed(records).values()) == 40 + len(ids)


async def test_what_an_engine_had_kept_back_for_a_stop_string_is_neither_lost_nor_said_twice(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    """Wherever the cut is, the answer ends at the stop string, as that of one engine does."""
    async with pair(open_door, model=model) as (dying, well, door):
        whole = said(await plain(well, CHAT, body(max_tokens=30)))
        stop = whole[len(whole) // 2 : len(whole) // 2 + 14]
        expected = await plain(well, CHAT, body(max_tokens=30, stop=[stop]))
        assert said(expected) == whole[: whole.index(stop)]
        for after in range(2, len(expected) - 1):
            dying.faults.faults = [Fault(kind="close", after=after, stream=True, path="/v1/chat")]
            response = await until_asked(door, dying, CHAT, body(max_tokens=30, stop=[stop]))
            found = events(response.text)
            assert said(found) == said(expected), after
            assert found[-1]["usage"]["completion_tokens"] == expected[-1]["usage"]["completion_tokens"], after
            replaced(door, "engine-0")


async def test_the_next_engine_is_asked_for_the_rest(open_door: OpenDoor, model: dict[str, str]) -> None:
    async with pair(open_door, DIES, model=model) as (dying, well, door):
        await until_asked(door, dying, CHAT, body(min_tokens=20, tools=[]) | {"tools": None})
        asked = msgspec.json.decode([r for r in well.requests if r.path == CHAT][-1].body)
        assert (asked["add_generation_prompt"], asked["continue_final_message"]) == (False, True)
        (user, begun) = asked["messages"]
        assert (user["role"], begun["role"]) == ("user", "assistant")
        sent = len(begun["content"].split())
        assert asked["max_tokens"] == 40 - sent
        assert asked["min_tokens"] == 20 - sent
        assert asked["temperature"] == 0


async def test_a_whole_answer_is_begun_anew(open_door: OpenDoor) -> None:
    async with pair(open_door) as (one, two, door):
        running = asyncio.create_task(door.chat(max_tokens=300))
        await eventually(lambda: one.scheduler.in_flight or two.scheduler.in_flight)
        dying = one if one.scheduler.in_flight else two
        await asyncio.sleep(1.2)  # it is no race of a connection that was kept
        for connection in list(dying._connections):
            connection.cut(rst=True)
        response = await running
        assert response.json()["usage"]["completion_tokens"] == 300
        failed, answered = await chain(door, response)
        assert (failed["status"], failed["billable_output"]) == ("failed", 0)
        assert (answered["status"], answered["billable_output"]) == ("completed", 300)


async def test_if_the_next_engine_is_lost_too_a_third_goes_on(open_door: OpenDoor, model: dict[str, str]) -> None:
    later = Fault(kind="close", after=5, rst=True, stream=True)
    async with (
        EngineDouble(PACE, faults=(DIES,)) as one,
        EngineDouble(PACE, faults=(later,)) as two,
        EngineDouble(PACE, faults=()) as three,
        open_door(one, two, three, model=model) as door,
    ):
        whole = await plain(three, CHAT, body())
        for _ in range(60):
            response = await door.http.post(CHAT, json=body())
            assert said(events(response.text)) == said(whole)
            records = await chain(door, response)
            assert billed(records)["output"] == 40
            if len(records) == 3:
                break
            for number in range(3):
                replaced(door, f"engine-{number}")
        assert [r["status"] for r in records] == ["continued", "continued", "completed"]


async def test_where_no_other_engine_is_left_the_stream_says_so_and_nothing_is_billed(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    async with EngineDouble(PACE, faults=(DIES,)) as engine, open_door(engine, model=model) as door:
        response = await door.http.post(CHAT, json=body())
        error = events(response.text)[-1]["error"]
        assert (error["code"], error["metadata"]) == ("engine_lost", {"reason": "no_endpoint"})
        (record,) = await chain(door, response)
        assert (record["status"], record["billable_output"]) == ("failed", 0)


async def test_a_client_that_leaves_during_the_continuation_pays_for_what_it_got(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    async with pair(open_door, DIES, model=model) as (dying, _, door):
        for _ in range(60):
            dying.requests.clear()
            async with door.http.stream("POST", CHAT, json=body(max_tokens=2000)) as response:
                lines = response.aiter_lines()
                seen = 0
                while seen < 30:
                    seen += (await anext(lines)).startswith("data: {")
            records = await chain(door, response)
            if any(r.path == CHAT for r in dying.requests):
                break
        first, second = records
        assert (first["status"], second["status"]) == ("continued", "cancelled")
        assert first["billable_input_uncached"] + first["billable_cache_read"] + first["billable_cache_write"] > 0
        assert first["billable_output"] == 8
        assert billed([second]) == {**dict.fromkeys(CLASSES, 0), "output": second["engine_output"]}
        assert 20 <= second["billable_output"] < 100
        assert unbooked(door)


async def test_the_engines_own_counters_are_what_the_ledger_says(open_door: OpenDoor, model: dict[str, str]) -> None:
    """Streams that are taken away from engines which live on: everything they computed is on record."""
    async with pair(open_door, model=model) as (one, two, door):
        running = [asyncio.create_task(door.http.post(CHAT, json=body(f"{n} {n}", max_tokens=80))) for n in range(8)]
        relay = door.service.inferences._relay
        await eventually(lambda: sum(x.begun for x in relay._means.live.values()) == 8)
        for booking in list(relay._means.live):
            relay.evict(booking)
        responses = await asyncio.gather(*running)
        for response in responses:
            found = events(response.text)
            assert not any("error" in e for e in found), found[-1]
            records = await chain(door, response)
            assert [r["status"] for r in records] == ["continued", "completed"]
            assert billed(records)["output"] == 80 == found[-1]["usage"]["completion_tokens"]
        assert ledger(await door.ledger()) == counters(one, two)
        assert said(events(responses[0].text)) == said(await plain(one, CHAT, body("0 0", max_tokens=80)))
        assert unbooked(door)


async def test_a_draining_endpoint_hands_its_streams_over_when_its_grace_is_over(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    async with EngineDouble(PACE) as one, EngineDouble(PACE) as two:
        engines = [{"url": e.url, "name": f"engine-{n}", "servedModel": MODEL} for n, e in enumerate((one, two))]
        pools = [{"name": "main", "endpoints": engines, "drainGrace": 0.2}]
        async with open_door(one, two, model=model, pools=pools) as door:
            running = [asyncio.create_task(door.http.post(CHAT, json=body(f"{n}", max_tokens=300))) for n in range(6)]
            await eventually(lambda: one.scheduler.in_flight and two.scheduler.in_flight)
            routing = door.service.routing
            assert routing is not None
            specs = routing.roster.pools["main"]
            routing.reconcile("main", [msgspec.structs.replace(specs[0], draining="told to"), *specs[1:]])
            await eventually(lambda: not one.scheduler.in_flight, 3.0)
            assert not any(task.done() for task in running)
            for response in await asyncio.gather(*running):
                found = events(response.text)
                assert found[-1]["usage"]["completion_tokens"] == 300
            drained = (await door.http.get("/health")).json()["pools"]["main"]["engine-0"]
            assert (drained["draining"], drained["drained"]) == ("told to", True)
            await eventually(lambda: not (door.service.spool.open_count or door.service.spool.unshipped))
            assert ledger(await door.ledger())[2] == counters(one, two)[2]


async def test_an_engine_that_is_told_to_stop_has_new_requests_sent_elsewhere(open_door: OpenDoor) -> None:
    """vLLM answers 500 then."""
    async with pair(open_door) as (stopping, _, door):
        stopping.draining = True
        answers = [await door.http.post(CHAT, json=body(f"{n}", max_tokens=2)) for n in range(8)]
        assert not any("error" in event for answer in answers for event in events(answer.text))


async def evicted(door: Door) -> None:
    """Every running request is stopped, as for one of a higher tier."""
    relay = door.service.inferences._relay
    await eventually(lambda: relay._means.live)
    for booking in list(relay._means.live):
        relay.evict(booking)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_is_stopped_before_its_first_byte_is_answered_all_the_same(
    open_door: OpenDoor, stream: bool
) -> None:
    """Nor does it count as a failure: with one engine it goes back there."""
    slow = msgspec.structs.replace(PACE, prefill_rate=100.0)
    async with EngineDouble(slow) as engine, open_door(engine) as door:
        request = body("word " * 60, stream=stream)
        if not stream:
            del request["stream_options"]
        running = asyncio.create_task(door.http.post(CHAT, json=request))
        await eventually(lambda: engine.scheduler.in_flight)
        await evicted(door)
        response = await running
        assert response.status_code == 200
        assert '"error"' not in response.text
        records = await chain(door, response)
        assert [r["status"] for r in records] == ["failed", "completed"]
        assert [r["error"] for r in records] == ["preempted", None]
        assert billed(records)["output"] == 40
        assert sum(billed(records[:1]).values()) == 0


class Hasty:
    """A router whose order to stop a request comes together with its place."""

    def __init__(self, router: Router, tell: Callable[[int], None]) -> None:
        self._router = router
        self._tell = tell
        self._told = False

    async def place(self, ask: Ask) -> Result:
        placed = await self._router.place(ask)
        if isinstance(placed, Placed) and not self._told:
            self._told = True
            self._tell(placed.booking)
        return placed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)


async def test_an_order_to_stop_that_comes_with_the_placement_is_heard(open_door: OpenDoor) -> None:
    """Else it would be told once, and wait for ever to be obeyed."""
    async with EngineDouble(PACE) as engine, open_door(engine) as door:
        relay = door.service.inferences._relay
        relay._means.router = Hasty(relay._means.router, relay.evict)
        response = await door.http.post(CHAT, json=body())
        assert not any("error" in event for event in events(response.text))
        records = await chain(door, response)
        assert [(r["status"], r["error"]) for r in records] == [("failed", "preempted"), ("completed", None)]
        assert unbooked(door)


async def test_an_answer_that_is_stopped_and_cannot_go_on_says_so(open_door: OpenDoor) -> None:
    async with EngineDouble(PACE) as engine, open_door(engine) as door:
        running = asyncio.create_task(door.http.post(CHAT, json=body(n=2, temperature=1, max_tokens=200)))
        await eventually(lambda: engine.metrics.generation_tokens > 10)
        await evicted(door)
        response = await running
        error = events(response.text)[-1]["error"]
        assert (error["code"], error["metadata"]) == ("preempted", {"reason": "choices"})
        (record,) = await chain(door, response)
        assert (record["status"], record["billable_output"]) == ("failed", 0)
        assert ledger([record])[2] == counters(engine)[2]


async def test_an_engine_that_falls_silent_in_the_middle_is_left(open_door: OpenDoor, model: dict[str, str]) -> None:
    """The client gets heartbeats meanwhile, and the rest from the other one."""
    hangs = Fault(kind="hang", after=9, path="/v1/chat")
    timeouts = {"idle": 1.0, "heartbeatAfter": 0.3}
    async with pair(open_door, hangs, model=model, timeouts=timeouts) as (dying, well, door):
        response = await until_asked(door, dying, CHAT, body())
        assert response.text.count(": heartbeat") >= 2
        assert said(events(response.text)) == said(await plain(well, CHAT, body()))
        first, second = await chain(door, response)
        assert (first["status"], first["terminated_by"], second["status"]) == ("continued", "deadline", "completed")
        assert first["billable_output"] + second["billable_output"] == 40
