"""Answers that are cut in a front door of two workers: one relays the stream, the router is in another process."""

import asyncio
import json
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.door import MODEL
from tests.integration.failing import (
    CHAT,
    CLASSES,
    DIES,
    PACE,
    billed,
    body,
    events,
    plain,
    said,
)
from tests.integration.observed import counters, ledger
from tests.integration.templates import CHATML, known_template
from tests.integration.test_workers import records
from tests.processes import Door, front_door
from tests.stores import state_directory

OpenDoor = Callable[..., AbstractAsyncContextManager[Door]]
SWIFT = Settings(answer_tokens=None)
NOTHING = dict.fromkeys(CLASSES, 0)
TIERS = [
    {"name": "interactive", "rank": 0, "ttft": 4.0, "default": True},
    {"name": "batch", "rank": 1, "shed": "shed", "multiplier": "0.5"},
]


@pytest.fixture
def open_door(database: str, valkey: str, tmp_path: Path) -> OpenDoor:
    """`async with open_door(engine, …) as door`: two workers."""
    tokenizer = known_template(tmp_path, CHATML)["tokenizer"]

    @asynccontextmanager
    async def open_(*engines: EngineDouble, **changes: Any) -> AsyncIterator[Door]:
        server = {"workers": 2, **changes.pop("server", {})}
        with state_directory() as state:
            changes = changes.pop("found", lambda _: {})(state) | changes
            async with front_door(
                state, [engine.url for engine in engines], model=MODEL, postgres=database, valkey=valkey,
                tokenizer=tokenizer, server=server, timeouts={"heartbeatAfter": 0.2}, **changes,
            ) as door:  # fmt: skip
                yield door

    return open_


async def ask(door: Door, request: dict[str, Any]) -> httpx.Response:
    """On a connection of its own, so that any worker may accept it."""
    headers = {"authorization": f"Bearer {door.key}"}
    async with httpx.AsyncClient(base_url=door.url, headers=headers, timeout=60.0) as client:
        return await client.post(CHAT, json=request)


async def get(door: Door, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=door.url, timeout=30.0) as client:
        return await client.get(path)


async def metric(door: Door, name: str, **labels: str) -> dict[str, float]:
    """By process."""
    found: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families((await get(door, "/metrics")).text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                found[sample.labels["worker"]] += sample.value
    return found


async def by_request(database: str, requests: int) -> dict[str, list[dict[str, Any]]]:
    """The records of each request, once there are so many and all have ended."""

    async def all_ended() -> dict[str, list[dict[str, Any]]] | None:
        chains: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in sorted(await records(database, at_least=requests), key=lambda r: int(r["attempt"])):
            chains[record["request_id"]].append(record)
        ended = all(its[-1]["status"] != "continued" and len(its) == its[-1]["attempt"] for its in chains.values())
        return chains if ended and len(chains) == requests else None

    found: dict[str, list[dict[str, Any]]] | None = await eventually(all_ended, 15.0, every=0.1)
    assert found is not None
    return found


async def on_both_workers(door: Door, begun: Callable[[int], "asyncio.Task[httpx.Response]"]) -> list[Any]:
    """Streams, until each worker relays some: who accepts a connection is the kernel's choice."""
    tasks: list[asyncio.Task[httpx.Response]] = []

    async def all_in_flight() -> dict[str, float] | None:
        found = await metric(door, "forebay_requests_in_flight")
        return found if sum(found.values()) >= len(tasks) else None

    for _ in range(10):
        tasks += [begun(len(tasks) + n) for n in range(4)]
        found = await eventually(all_in_flight, 10.0, every=0.05)
        if found and all(found[worker] for worker in ("0", "1")):
            return tasks
    raise AssertionError("one worker took everything")


async def unbooked(door: Door) -> bool:
    return not sum((await metric(door, "forebay_endpoint_in_flight")).values())


# -- an engine that dies


async def test_streams_of_both_workers_go_on_when_their_engine_dies(open_door: OpenDoor, database: str) -> None:
    async with (
        EngineDouble(PACE) as one, EngineDouble(PACE) as two, EngineDouble(SWIFT) as swift, open_door(one, two) as door
    ):  # fmt: skip
        def begin(number: int) -> "asyncio.Task[httpx.Response]":
            return asyncio.create_task(ask(door, body(f"{number}", max_tokens=400)))

        tasks = await on_both_workers(door, begin)
        await eventually(lambda: one.scheduler.in_flight and two.scheduler.in_flight)
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in tasks)
        await one.refuse()
        for connection in list(one._connections):
            connection.cut(rst=True)
        answers = await asyncio.gather(*tasks)
        chains = await by_request(database, len(tasks))
        ways = set()
        for number, answer in enumerate(answers):
            found = events(answer.text)
            assert not any("error" in event for event in found), found[-1]
            assert said(found) == said(await plain(swift, CHAT, body(f"{number}", max_tokens=400)))
            usage = found[-1]["usage"]
            its = chains[answer.headers["x-request-id"]]
            ways.add(tuple((r["endpoint"], r["status"]) for r in its))
            total = billed(its)
            assert total["output"] == usage["completion_tokens"] == 400
            assert total["input_uncached"] + total["cache_read"] + total["cache_write"] == usage["prompt_tokens"]
        went_on = (("engine-0", "continued"), ("engine-1", "completed"))
        stayed = (("engine-1", "completed"),)
        assert ways == {went_on, stayed}
        resumed = sum((await metric(door, "forebay_continuations_total", why="died", outcome="resumed")).values())
        assert resumed == sum(len(its) == 2 for its in chains.values())
        await eventually(lambda: unbooked(door))


async def test_what_cannot_go_on_ends_in_words_and_is_not_billed(open_door: OpenDoor, database: str) -> None:
    async with EngineDouble(PACE, faults=(DIES,)) as engine, open_door(engine) as door:
        for request, reason in ((body(logprobs=True), "logprobs"), (body(), "no_endpoint")):
            error = events((await ask(door, request)).text)[-1]["error"]
            assert (error["code"], error["metadata"]) == ("engine_lost", {"reason": reason})
        for (record,) in (await by_request(database, 2)).values():
            assert (record["status"], record["terminated_by"]) == ("failed", "engine")
            assert billed([record]) == NOTHING
        await eventually(lambda: unbooked(door))


# -- one that is stopped for a higher tier


async def reading(door: Door, request: dict[str, Any], lines: list[str]) -> str:
    """Read a stream, as it comes, into `lines`; its request id."""
    headers = {"authorization": f"Bearer {door.key}"}
    async with (
        httpx.AsyncClient(base_url=door.url, headers=headers, timeout=60.0) as client,
        client.stream("POST", CHAT, json=request) as response,
    ):
        async for line in response.aiter_lines():
            lines.append(line)
        identifier: str = response.headers["x-request-id"]
        return identifier


@asynccontextmanager
async def evicted(
    open_door: OpenDoor, engine: EngineDouble, **members: Any
) -> AsyncIterator[tuple[Door, list[str], str, httpx.Response]]:
    """A batch stream has the engine's only place when an interactive request comes. What the batch's client saw, its
    request id, and the other's answer."""
    async with engine, open_door(engine, tiers=TIERS) as door:
        lines: list[str] = []
        batch = asyncio.create_task(
            reading(door, body("batch", max_tokens=600, service_tier="batch", **members), lines)
        )
        await eventually(lambda: len(lines) > 20)
        other = await ask(door, body("a person", max_tokens=50, service_tier="interactive"))
        yield door, lines, await batch, other


ONE_PLACE = Settings(token_seconds=0.01, answer_tokens=None, max_running=1)


async def test_a_batch_stream_pauses_for_a_person_and_goes_on_as_the_same_answer(
    open_door: OpenDoor, database: str
) -> None:
    engine = EngineDouble(ONE_PLACE)
    async with evicted(open_door, engine) as (door, lines, identifier, person), EngineDouble(SWIFT) as swift:
        expected = said(await plain(swift, CHAT, body("batch", max_tokens=600)))
        assert said(events(person.text)) == said(await plain(swift, CHAT, body("a person", max_tokens=50)))
        found = events("\n".join([*lines, ""]))
        assert not any("error" in event for event in found), found[-1]
        assert said(found) == expected
        assert {event["service_tier"] for event in found} == {"batch"}
        assert len({event["id"] for event in found}) == 1
        pause = [number for number, line in enumerate(lines) if line.startswith(":")]
        assert pause
        assert any(line.startswith("data: {") for line in lines[: pause[0]])
        assert lines[pause[-1] + 1 :].count("data: [DONE]") == 1
        chains = await by_request(database, 2)
        first, second = chains.pop(identifier)
        assert (first["status"], first["terminated_by"], first["error"]) == ("continued", "front_door", "preempted")
        assert second["status"] == "completed"
        assert {(r["tier_used"], str(r["price_multiplier"])) for r in (first, second)} == {("batch", "0.5")}
        assert billed([first, second])["output"] == found[-1]["usage"]["completion_tokens"] == 600
        prompt = billed([first, second])["input_uncached"] + billed([first, second])["cache_read"]
        assert prompt == found[-1]["usage"]["prompt_tokens"]
        ((alone,),) = chains.values()
        assert (alone["tier_used"], alone["billable_output"]) == ("interactive", 50)
        assert ledger([first, second, alone])[2] == counters(engine)[2]
        assert (await metric(door, "forebay_evictions_total", tier="batch"))["router"] == 1
        resumed = await metric(door, "forebay_continuations_total", why="preempted", outcome="resumed")
        assert sum(resumed.values()) == 1
        await eventually(lambda: unbooked(door))


async def test_a_batch_stream_that_cannot_go_on_says_so_and_is_not_billed(open_door: OpenDoor, database: str) -> None:
    async with evicted(open_door, EngineDouble(ONE_PLACE), logprobs=True) as (door, lines, identifier, person):
        assert not any("error" in event for event in events(person.text))
        error = events("\n".join([*lines, ""]))[-1]["error"]
        assert (error["code"], error["metadata"]) == ("preempted", {"reason": "logprobs"})
        (record,) = (await by_request(database, 2))[identifier]
        assert (record["status"], record["terminated_by"]) == ("failed", "front_door")
        assert billed([record]) == NOTHING
        assert record["engine_output"] > 0
        await eventually(lambda: unbooked(door))


# -- draining


async def test_an_endpoint_that_drains_hands_over_the_streams_of_both_workers_and_says_when_it_is_empty(
    open_door: OpenDoor, database: str
) -> None:
    async with EngineDouble(PACE) as one, EngineDouble(PACE) as two:
        said_of = [{"url": engine.url, "pid": os.getpid(), "servedModel": MODEL} for engine in (one, two)]
        places: list[Path] = []

        def found(state: Path) -> dict[str, Any]:
            directory = state / "run" / "engines" / "main"
            directory.mkdir(parents=True)
            for number, each in enumerate(said_of):
                places.append(directory / f"e-{number}.json")
                places[-1].write_text(json.dumps(each))
            return {"pools": [{"name": "main", "discovery": {"local": {}}, "drainGrace": 0.5}]}

        async with open_door(found=found) as door:
            async def pool() -> dict[str, Any]:
                shown: dict[str, Any] = (await get(door, "/health")).json()["pools"]["main"]
                return shown

            async def both_known() -> bool:
                return {name for name, state in (await pool()).items() if state["status"] == "up"} == {"e-0", "e-1"}

            await eventually(both_known, 10.0)

            def begin(number: int) -> "asyncio.Task[httpx.Response]":
                return asyncio.create_task(ask(door, body(f"{number}", max_tokens=600)))

            tasks = await on_both_workers(door, begin)
            whole = asyncio.create_task(ask(door, {**body("whole", max_tokens=600), "stream": False,
                                                   "stream_options": None}))  # fmt: skip
            await eventually(lambda: one.scheduler.in_flight and two.scheduler.in_flight)
            places[0].write_text(json.dumps({**said_of[0], "drain": True}))

            async def drained() -> bool:
                return bool((await pool())["e-0"].get("drained"))

            await eventually(drained, 15.0, every=0.05)
            assert not one.scheduler.in_flight
            for answer in await asyncio.gather(*tasks):
                assert events(answer.text)[-1]["usage"]["completion_tokens"] == 600
            assert (await whole).json()["usage"]["completion_tokens"] == 600
            chains = await by_request(database, len(tasks) + 1)
            assert sum(billed(its)["output"] for its in chains.values()) == 600 * (len(tasks) + 1)
            moved = [its for its in chains.values() if len(its) == 2]
            assert moved
            assert all([r["status"] for r in its] == ["continued", "completed"] for its in moved)


async def test_a_front_door_that_ends_ends_its_streams_in_words_and_bills_nothing_of_them(
    open_door: OpenDoor, database: str
) -> None:
    """Their connections end with it. What is on its way to another engine is no exception, and engines are let go."""
    hangs = Fault(kind="hang_before_headers", path="/v1/")
    async with EngineDouble(PACE) as one, EngineDouble(PACE) as two, open_door(
        one, two, server={"drainTimeout": 1.0}
    ) as door:  # fmt: skip
        def begin(number: int) -> "asyncio.Task[httpx.Response]":
            return asyncio.create_task(ask(door, body(f"{number}", max_tokens=3_000)))

        tasks = await on_both_workers(door, begin)
        await eventually(lambda: one.scheduler.in_flight and two.scheduler.in_flight)
        two.faults.faults = [hangs]
        await asyncio.sleep(0.3)
        await one.refuse()
        for connection in list(one._connections):
            connection.cut(rst=True)
        door.process.send_signal(signal.SIGTERM)
        codes = {events(answer.text)[-1]["error"]["code"] for answer in await asyncio.gather(*tasks)}
        assert codes == {"shutting_down"}
        async with asyncio.timeout(20):
            assert await door.process.wait() == 0
        await eventually(lambda: not two.scheduler.in_flight)
        chains = await by_request(database, len(tasks))
        ends = {(r["status"], r["terminated_by"]) for its in chains.values() for r in its}
        assert ends == {("failed", "front_door"), ("failed", "engine")}
        assert billed([r for its in chains.values() for r in its]) == NOTHING
