"""Engines that are well by their probes and answer nonsense: the request moves or fails in words, and is recorded."""

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.scripted import END, SSE, ScriptedEngine, chunk, whole
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import unbooked


def event(content: str = "a", tokens: int = 1, finish: str | None = None, index: int = 0, **delta: Any) -> bytes:
    """One event laid out as vLLM lays it out."""
    body = {
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
        "choices": [{"index": index, "delta": {**delta, "content": content}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 4, "total_tokens": 4 + tokens, "completion_tokens": tokens},
    }  # fmt: skip
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


ROLE = event("", 0, role="assistant")
DONE = b"data: [DONE]\n\n"


def streamed(*frames: bytes) -> bytes:
    return SSE + b"".join(chunk(frame) for frame in frames) + END


def frames(response: httpx.Response) -> list[str]:
    """The stream's events without heartbeats; every stream ends in [DONE]."""
    found = response.text.split("\n\n")
    assert found[-2:] == ["data: [DONE]", ""], response.text
    return [frame.removeprefix("data: ") for frame in found[:-2] if not frame.startswith(":")]


def at_rest(door: Door) -> bool:
    service = door.service
    return (
        not service.inferences.gate.in_flight
        and not service.inferences.tasks
        and not service.spool.open_count
        and unbooked(door)
    )


def replaced(door: Door, name: str) -> None:
    """Another engine takes its place, so that what this one did is not held against it."""
    assert door.service.routing is not None
    specs = door.service.routing.roster.pools["main"]
    door.service.routing.reconcile("main", [spec for spec in specs if spec.name != name])
    door.service.routing.reconcile("main", specs)


def odd(frame: bytes) -> bytes:
    return b"data: " + frame + b"\n\n"


NONSENSE = {
    "not http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "head only": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "empty chunked": streamed(),
    "done at once": streamed(DONE),
    "a number": streamed(odd(b"5")),
    "choices is a number": streamed(odd(b'{"choices":5}')),
    "choices of numbers": streamed(odd(b'{"choices":[5]}')),
    "a choice's finish reason is a number": streamed(odd(b'{"choices":[{"finish_reason":5}]}'), DONE),
    "usage cut": streamed(odd(b'{"choices":[{"index":0}],"usage":')),
    "usage unbalanced": streamed(odd(b'{"choices":[{"index":0}],"usage":{"a":{}')),
    "index is text": streamed(odd(b'{"choices":[{"index":x,"delta":{}}],"usage":{"prompt_tokens":1}}')),
    "invalid utf-8": streamed(ROLE.replace(b'"content":""', b'"content":"\xff\xfe"')),
    "invalid json": streamed(ROLE.replace(b'"content":""', b'"content":"')),
    "error": streamed(odd(b'{"error":"no"}')),
    "abort of a new request": streamed(ROLE, event("", 0, "abort"), DONE),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "301": b"HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "500 that is not utf-8": whole(b'{"error":{"message":"\xff"}}', status="500 Oops"),
}
WHOLE_NONSENSE = {
    "empty": whole(b""),
    "not json": whole(b"<html>"),
    "a list": whole(b"[]"),
    "invalid utf-8": whole(b'{"choices":[{"message":{"content":"\xff"}}],"usage":{}}'),
    "too long": whole(b'{"choices":[]}', length=5),
    "finish reason is a number": whole(b'{"choices":[{"finish_reason":5}]}'),
    "usage is a number": whole(b'{"choices":[],"usage":5}'),
    "no choices": whole(b"{}"),
    "abort": whole(b'{"choices":[{"finish_reason":"abort"}]}'),
    "200 and an error": whole(b'{"error":{"message":"out of memory"}}'),
}


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_answers_nonsense_costs_no_request(open_door: OpenDoor, stream: bool) -> None:
    """Nothing of it reaches the tenant: each request is answered by the other replica, and both attempts recorded."""
    cases = NONSENSE if stream else WHOLE_NONSENSE
    async with ScriptedEngine(b"", model=MODEL) as broken, EngineDouble() as well, open_door(broken, well) as door:
        wrong = {}
        for name, answer in cases.items():
            broken.script, broken.asked = answer, 0
            number = 0
            while not broken.asked and number < 40:
                number += 1
                response = await door.chat(f"{name} {number}", max_tokens=3, stream=stream)
                if response.status_code != 200 or "length" not in response.text:
                    wrong[name] = (response.status_code, response.text[-300:])
            assert broken.asked, name
            await asyncio.sleep(0.05)
            replaced(door, "engine-0")
        assert not wrong, "\n".join(f"{k}: {v}" for k, v in wrong.items())
        assert at_rest(door)


@pytest.mark.parametrize("usage", [b"5", b'"none"', b"[]", b'{"prompt_tokens":"x"}', b'{"prompt_tokens":1.5}'])
async def test_usage_that_cannot_be_read_is_not_the_tenants_trouble(open_door: OpenDoor, usage: bytes) -> None:
    answer = streamed(
        odd(b'{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":%b}' % usage), DONE
    )
    async with ScriptedEngine(answer, model=MODEL) as engine, open_door(engine) as door:
        (only,) = frames(await door.chat(stream=True))
        assert json.loads(only)["choices"][0]["delta"] == {"content": "x"}
        (record,) = await door.records(1)
        assert (record["status"], record["measured"], record["engine_output"]) == ("completed", False, 0)
        assert (record["estimated"], record["billable_output"]) == (True, 1)


async def test_usage_that_contradicts_itself_or_shrinks_stays_within_bounds(open_door: OpenDoor) -> None:
    frame = (
        b'{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":77}}}'
    )
    answer = streamed(odd(frame % (50, 40, 3)), odd(frame % (10**30, -5, 9)), odd(frame % (9, 4, 10**30)), DONE)
    async with ScriptedEngine(answer, model=MODEL) as engine, open_door(engine) as door:
        assert len(frames(await door.chat(stream=True))) == 3
        (record,) = await door.records(1)
        names = ("input_uncached", "cache_read", "cache_write", "output", "reasoning")
        assert [record[f"billable_{name}"] for name in names] == [0, 9, 0, 4, 4]


async def test_an_answer_of_which_one_choice_is_missing_is_not_whole(open_door: OpenDoor) -> None:
    answer = streamed(event("a", 1, "stop"), event("b", 1, index=1))
    async with ScriptedEngine(answer, model=MODEL) as engine, open_door(engine) as door:
        last = json.loads(frames(await door.chat(stream=True, n=2))[-1])
        assert (last["error"]["code"], last["error"]["metadata"]) == ("engine_lost", {"reason": "choices"})
        (record,) = await door.records(1)
        assert record["status"] == "failed"


async def test_a_finish_reason_that_postgres_refuses_does_not_cost_the_record(open_door: OpenDoor) -> None:
    reason = rb'{"choices":[{"index":0,"finish_reason":"st\u0000p"}]}'
    async with ScriptedEngine(streamed(odd(reason), DONE), model=MODEL) as engine, open_door(engine) as door:
        frames(await door.chat(stream=True))
        (record,) = await door.records(1)
        assert record["finish_reason"] == "unreadable"


async def test_a_draining_engine_that_aborts_new_requests_sends_them_elsewhere(open_door: OpenDoor) -> None:
    async with ScriptedEngine(b"", model=MODEL) as draining, EngineDouble() as well, open_door(draining, well) as door:
        for n in (1, 2):
            aborted = [event("", 0, "abort", i) for i in range(n)]
            roles = [event("", 0, role="assistant", index=i) for i in range(n)]
            draining.script, draining.asked = streamed(*roles, *aborted, DONE), 0
            for conversation in itertools.count():
                seen = frames(await door.chat(f"{n} {conversation}", n=n, stream=True, max_tokens=2))
                roles_seen = [f for f in seen if '"role"' in f]
                assert len(roles_seen) == n
                assert not any("abort" in f or '"error"' in f for f in seen)
                if draining.asked:
                    break
        assert at_rest(door)


async def test_an_abort_after_the_first_token_ends_in_an_error_frame(open_door: OpenDoor) -> None:
    async def abort(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE + chunk(ROLE) + chunk(event("a", 1)))
        await asyncio.sleep(0.1)
        writer.write(chunk(event("", 1, "abort")) + chunk(DONE) + END)

    async with ScriptedEngine(abort, model=MODEL) as engine, EngineDouble() as well, open_door(engine, well) as door:
        for conversation in itertools.count():
            seen = frames(await door.chat(str(conversation), stream=True, max_tokens=2))
            if engine.asked:
                break
        assert json.loads(seen[-1])["error"]["code"] == "engine_lost"


async def test_an_engine_that_trickles_is_bridged_by_heartbeats_and_held_to_the_first_byte(open_door: OpenDoor) -> None:
    async def comments(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE)
        while True:
            writer.write(chunk(b": still here\n\n"))
            await writer.drain()
            await asyncio.sleep(0.05)

    timeouts = {"heartbeatAfter": 0.3, "firstByte": 1.2}
    async with ScriptedEngine(comments, model=MODEL) as engine, open_door(engine, timeouts=timeouts) as door:
        response = await door.chat(stream=True)
        assert response.text.count(": heartbeat") >= 2
        assert json.loads(frames(response)[-1])["error"]["code"] == "engine_timeout"
        (record,) = await door.records(1)
        assert record["terminated_by"] == "deadline"


async def test_64_streams_whose_engine_dies_at_once_leave_nothing_behind(open_door: OpenDoor) -> None:
    fault = Fault(kind="close", after=9, rst=True)
    async with (
        EngineDouble(faults=(fault,), answer_tokens=None, token_seconds=0.02) as engine,
        open_door(engine) as door,
    ):
        answers = await asyncio.gather(*(door.chat(f"{n}", stream=True, max_tokens=60) for n in range(64)))
        for answer in answers:
            assert json.loads(frames(answer)[-1])["error"]["code"] in {"engine_lost", "no_endpoint"}
        assert {r["status"] for r in await door.records(64)} == {"failed"}
        assert at_rest(door)


async def test_a_request_is_sent_twice_at_most_by_a_keep_alive_race(open_door: OpenDoor) -> None:
    """An engine, or a proxy before it, that drops every request which comes on a connection it has kept.

    llm-d#1564, vllm#18472."""
    kept: set[asyncio.StreamWriter] = set()
    answer = whole(b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}')

    async def script(writer: asyncio.StreamWriter) -> None:
        if writer in kept:
            raise ConnectionResetError
        kept.add(writer)
        await asyncio.sleep(0.1)
        writer.write(answer)

    async with ScriptedEngine(script, model=MODEL) as engine, open_door(engine) as door:
        assert {r.status_code for r in await asyncio.gather(*(door.chat(str(n)) for n in range(8)))} == {200}
        engine.asked = 0
        assert (await door.chat("again")).status_code == 200
        assert engine.asked == 2
        await door.records(9)


async def test_an_engine_that_dies_at_work_is_not_asked_again(open_door: OpenDoor) -> None:
    """ComfyUI#16204."""
    kept: set[asyncio.StreamWriter] = set()
    answer = whole(b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}')

    async def script(writer: asyncio.StreamWriter) -> None:
        if writer not in kept:
            kept.add(writer)
            writer.write(answer)
            return
        await asyncio.sleep(1.2)
        raise ConnectionResetError

    async with ScriptedEngine(script, model=MODEL) as engine, open_door(engine) as door:
        assert (await door.chat("x")).status_code == 200
        engine.asked = 0
        response = await door.chat("x")  # on the connection that was kept
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_error")
        assert engine.asked == 1
