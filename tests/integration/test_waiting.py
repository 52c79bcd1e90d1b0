"""Requests that wait in the router while their only engine is busy with a long prompt: what tenants, operators and the
engine see of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from forebay.platform.cli.explain import explain
from forebay.platform.relay import client
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import stopped, unbooked
from tests.integration.test_sessions import overheard

RATE = 1_000.0  # tokens of prefill a second; the router reckons with 2,000 until it has seen some
LONG = 2_500  # tokens
_numbers = count(1)
BUSY = Settings(prefill_rate=RATE, answer_tokens=None)


def waiting(door: Door) -> int:
    assert door.service.routing is not None
    return door.service.routing.waiting["main"]


def prompt(tokens: int) -> str:
    """No two share a beginning."""
    return f"{next(_numbers)} " + "word " * tokens


@contextlib.asynccontextmanager
async def long_prefill(door: Door, engine: EngineDouble, tokens: int = LONG) -> AsyncIterator["asyncio.Task[Any]"]:
    """The engine is at work on a long prompt."""
    task = asyncio.create_task(door.chat(prompt(tokens), stream=True, max_tokens=2))
    await eventually(lambda: engine.scheduler.in_flight == 1)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def ask(door: Door, tokens: int, number: int, **body: Any) -> "asyncio.Task[httpx.Response]":
    """One that waits, as number `number` of those who do."""
    task = asyncio.create_task(door.chat(prompt(tokens), **{"stream": True, "max_tokens": 2, **body}))
    await wait_until(door, number)
    return task


async def wait_until(door: Door, so_many: int) -> None:
    await eventually(lambda: waiting(door) == so_many, 0.5)


def noted(answered: list[int], tokens: int, _: object) -> None:
    answered.append(tokens)


async def metric(door: Door, name: str, *labels: str) -> float:
    lines = (await door.http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines
               if line.startswith(name) and all(label in line for label in labels))  # fmt: skip


async def explained(door: Door, content: str) -> str:
    """What `forebay explain` says of a request."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]})
    options = ["-", "--base-url", door.url, "--key", door.key]
    return (await asyncio.to_thread(CliRunner().invoke, explain, options, input=body)).output


async def test_requests_wait_in_the_router_and_are_answered_in_order_of_shortness(open_door: OpenDoor) -> None:
    async with EngineDouble(BUSY) as engine, open_door(engine) as door, long_prefill(door, engine) as long:
        answered: list[int] = []
        tasks = []
        for number, tokens in enumerate((900, 1_500, 600), 1):
            tasks.append(await ask(door, tokens, number))
            tasks[-1].add_done_callback(partial(noted, answered, tokens))
        assert engine.scheduler.in_flight == 1
        assert (await door.http.get("/health")).json()["waiting"] == {"main": 3}
        assert await metric(door, "forebay_requests_waiting", 'pool="main"') == 3
        assert ": 2 wait before it; first token in " in await explained(door, prompt(1_200))
        most = 0
        while len(answered) < len(tasks):
            most = max(most, engine.scheduler.in_flight)
            await asyncio.sleep(0.005)
        assert (await long).status_code == 200
        assert {task.result().status_code for task in tasks} == {200}
        assert answered == [600, 900, 1_500]
        assert most <= 2  # the one it is at, and the one that it will start soon
        assert await metric(door, "forebay_wait_seconds_count", 'pool="main"') >= 3
        assert len(await door.records(4)) == 4
        assert unbooked(door)


async def test_a_tenant_who_leaves_while_it_waits_frees_its_place_at_once(open_door: OpenDoor) -> None:
    async with EngineDouble(BUSY) as engine, open_door(engine) as door, long_prefill(door, engine) as long:
        stream = await ask(door, 900, 1)
        whole = await ask(door, 900, 2, stream=False)
        left = await metric(door, "forebay_requests_total", 'status="client_left"')
        for left_over, task in ((1, stream), (0, whole)):
            task.cancel()
            await wait_until(door, left_over)
        await eventually(lambda: door.service.inferences.gate.in_flight == 1)
        assert await metric(door, "forebay_requests_total", 'status="client_left"') == left + 2
        assert (await long).status_code == 200
        assert unbooked(door)
        (record,) = await door.records(1)  # nothing was sent to an engine for them
        assert record["status"] == "completed"


async def test_a_wait_that_takes_too_long_is_a_429_that_says_why_and_when_to_come_back(open_door: OpenDoor) -> None:
    async with (
        EngineDouble(BUSY) as engine,
        open_door(engine, timeouts={"queue": 0.2}) as door,
        long_prefill(door, engine) as long,
    ):
        before = await metric(door, "forebay_requests_total", 'status="rate_limit_exceeded"')
        late = await metric(door, "forebay_wait_refusals_total", 'reason="late"')
        answers = await asyncio.gather(
            door.chat(prompt(900), stream=True), door.chat(prompt(900)), door.chat(prompt(700), stream=True)
        )
        for answer in answers:
            assert answer.status_code == 429
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
            assert (error["metadata"]["reason"], error["metadata"]["tier"]) == ("late", "default")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert int(answer.headers["retry-after-ms"]) == round(1000 * error["metadata"]["retry_after_s"])
        assert await metric(door, "forebay_requests_total", 'status="rate_limit_exceeded"') == before + 3
        assert await metric(door, "forebay_wait_refusals_total", 'reason="late"') == late + 3
        assert waiting(door) == 0
        assert (await long).status_code == 200
        await door.records(1)
        assert unbooked(door)


async def test_a_stream_that_waits_is_kept_alive_and_answered(open_door: OpenDoor) -> None:
    async with (
        EngineDouble(BUSY) as engine,
        open_door(engine, timeouts={"heartbeatAfter": 0.3}) as door,
        long_prefill(door, engine),
    ):
        began = asyncio.get_running_loop().time()
        async with door.http.stream(
            "POST", "/v1/chat/completions",
            json={"model": MODEL, "stream": True, "max_tokens": 2,
                  "messages": [{"role": "user", "content": prompt(900)}]},
        ) as response:  # fmt: skip
            assert response.status_code == 200
            assert asyncio.get_running_loop().time() - began < 1.0
            assert waiting(door) == 1
            lines = response.aiter_lines()
            beats = 0
            while waiting(door):
                beats += (await anext(lines)).startswith(":")
            assert beats >= 2
            rest = [line async for line in lines]
        assert rest[-2] == "data: [DONE]"
        assert not any("error" in line for line in rest)
        assert len(await door.records(2)) == 2


@pytest.mark.parametrize("api", ["chat.completions", "completions"])
async def test_a_long_wait_is_told_in_events_too(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    """Floway#498: comments do not reset some clients' idle timers. What they get instead is nothing to any client."""
    monkeypatch.setattr(client, "SILENT_S", 0.5)
    async with (
        EngineDouble(BUSY) as engine,
        open_door(engine, timeouts={"heartbeatAfter": 0.2}) as door,
        long_prefill(door, engine),
    ):
        asked: dict[str, Any] = {"model": "alias", "stream": True, "max_tokens": 4, "seed": 1,
                                 "stream_options": {"include_usage": True}}  # fmt: skip
        of: Any = door.openai.completions if api == "completions" else door.openai.chat.completions
        text = prompt(900)
        asked |= {"prompt": text} if api == "completions" else {"messages": [{"role": "user", "content": text}]}
        said = [event async for event in await of.create(**asked)]
        spoken = [event.choices[0] for event in said if event.choices]
        words = [one.text if api == "completions" else one.delta.content or "" for one in spoken]
        early = words.index(next(filter(None, words)))
        assert early >= 3  # besides the one that says who speaks
        assert len([word for word in words[early:] if word]) == 4
        assert {(event.id, event.model, event.object) for event in said} == {
            (said[-1].id, "alias", said[-1].object)
        }  # fmt: skip
        assert [event.usage for event in said[:-1]] == [None] * (len(said) - 1)
        assert said[-1].usage.completion_tokens == 4


async def test_a_stream_that_was_kept_alive_and_gets_no_engine_ends_in_an_error_frame(open_door: OpenDoor) -> None:
    async with (
        EngineDouble(BUSY) as engine,
        open_door(engine, timeouts={"heartbeatAfter": 0.1, "queue": 0.5}) as door,
        long_prefill(door, engine),
    ):
        answer = await door.chat(prompt(900), stream=True)
        assert answer.status_code == 200
        frames = [frame for frame in answer.text.split("\n\n") if frame and not frame.startswith(":")]
        assert answer.text.startswith(":")
        assert frames[-1] == "data: [DONE]"
        assert '"code":"rate_limit_exceeded"' in frames[-2]
        assert len(frames) == 2


async def test_heartbeats_go_on_from_the_wait_into_the_prefill(open_door: OpenDoor) -> None:
    """Half of the silence is waited for in the router, half at the engine."""
    async with (
        EngineDouble(BUSY) as engine,
        open_door(engine, timeouts={"heartbeatAfter": 1.6}) as door,
        long_prefill(door, engine, 1_200),
    ):
        answer = await asyncio.wait_for(door.chat(prompt(1_000), stream=True, max_tokens=2), 10)
        assert answer.status_code == 200
        assert sum(line.startswith(":") for line in answer.text.splitlines()) == 1


async def test_a_request_that_failed_elsewhere_waits_for_the_others_like_one_that_came_earlier(
    open_door: OpenDoor,
) -> None:
    fault = Fault(kind="status", status=500, path="/v1/chat")
    async with EngineDouble(BUSY) as busy, EngineDouble(faults=(fault,)) as failing, open_door(busy, failing) as door:
        with overheard(door) as heard:
            async with long_prefill(door, busy) as long:
                answer = await door.chat(prompt(600), stream=True, max_tokens=2)
                assert (await long).status_code == 200
        assert answer.status_code == 200
        assert [ask.exclude for ask in heard.asks][-2:] == [(), ("engine-1",)]
        first, second = heard.asks[-2:]
        assert first.patience_s == 60.0
        assert 0.0 <= first.waited_s < second.waited_s
        assert 59.0 < second.patience_s <= 60.0  # it has not waited in the line yet
        assert unbooked(door)


async def test_engines_that_only_give_whole_answers_are_sent_everything_as_it_comes(open_door: OpenDoor) -> None:
    async with EngineDouble(BUSY) as engine, open_door(engine) as door:
        tasks = [asyncio.create_task(door.chat(prompt(600) + str(n), max_tokens=2)) for n in range(6)]
        await eventually(lambda: engine.scheduler.in_flight == 6)
        assert waiting(door) == 0
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await stopped(engine)
        await eventually(lambda: unbooked(door))


async def test_a_drain_serves_those_who_wait_and_a_cut_ends_them(open_door: OpenDoor) -> None:
    async with (
        EngineDouble(BUSY) as engine,
        open_door(engine, server={"drainTimeout": 0.5}, timeouts={"heartbeatAfter": 0.1}) as door,
        long_prefill(door, engine, 6_000),
    ):
        stream, whole = await ask(door, 900, 1), await ask(door, 900, 2, stream=False)
        await door.service.drain()
        assert waiting(door) == 2
        await door.service.cut()
        assert waiting(door) == 0
        assert '"code":"shutting_down"' in (await stream).text
        assert (await whole).status_code == 503
        await eventually(lambda: unbooked(door))
