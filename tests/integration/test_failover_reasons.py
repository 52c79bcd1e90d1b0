"""Every reason for which an answer is not continued, as its client hears it. Nothing of such an answer is billed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.platform.relay import continuation
from forebay.platform.relay.budget import Budget
from forebay.router import Ask, Refused, Why
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.scripted import SSE, ScriptedEngine, chunk
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
    text_body,
    until_asked,
)
from tests.integration.templates import CHATML, known_template
from tests.integration.test_broken_engines import ROLE, event, replaced
from tests.integration.test_tiers import steered

NOTHING = dict.fromkeys(CLASSES, 0)
THINKS = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif")
TRIMS = CHATML.replace("m.content", "m.content | trim")
WHERE = {"type": "object", "properties": {name: {"type": "string"} for name in ("country", "city", "street")}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": WHERE}}
# By kind of request, of each row of the table one that the engine's double takes.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "choices": (CHAT, {"n": 2, "temperature": 1}),
    "prompts": (TEXT, {"prompt": ["a", "b"]}),
    "echo": (TEXT, {"prompt": "a", "echo": True}),
    "suffix": (TEXT, {"prompt": "a", "suffix": "b"}),
    "logprobs": (CHAT, {"logprobs": True}),
    "structured_output": (CHAT, {"response_format": {"type": "json_object"}}),
    "tool_choice": (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}}),
    "penalties": (CHAT, {"frequency_penalty": 0.5}),
    "bad_words": (CHAT, {"bad_words": ["never"]}),
    "special_tokens": (CHAT, {"skip_special_tokens": False}),
    "stop_shown": (CHAT, {"include_stop_str_in_output": True, "stop": ["nowhere to be seen"]}),
    "final_message": (CHAT, {"continue_final_message": True, "add_generation_prompt": False}),
}
SAID: dict[str, bytes] = {
    "tool_call": event("", 1, tool_calls=[{"index": 0, "id": "c", "function": {"name": "look", "arguments": ""}}]),
    "reasoning": event("", 1, reasoning="Let me see"),
    "content_parts": event("", 1).replace(b'"content":""', b'"content":[{"type":"text","text":"a"}]'),
}


async def told(door: Door, response: Any, reason: str, code: str = "engine_lost") -> list[dict[str, Any]]:
    """Checks what the client and the ledger have of it."""
    error = events(response.text)[-1]["error"]
    assert (error["code"], error["metadata"]) == (code, {"reason": reason}), reason
    records = await chain(door, response)
    assert {r["status"] for r in records} == {"failed"}, reason
    assert billed(records) == NOTHING, reason
    return records


async def test_what_depends_on_the_state_that_died_is_not_continued(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    assert list(REQUESTS) == [row.reason for row in continuation.UNFAITHFUL]
    dies = Fault(kind="close", after=3, rst=True, path="/v1/")
    async with EngineDouble(PACE, faults=(dies,), auto_tools=True) as engine, open_door(engine, model=model) as door:
        for reason, (path, members) in REQUESTS.items():
            request = body(**members) if path == CHAT else text_body(**members)
            (record,) = await told(door, await door.http.post(path, json=request), reason)
            assert record["engine_output"] > 0
            replaced(door, "engine-0")


def dying_after(*frames: bytes) -> Callable[[asyncio.StreamWriter], Any]:
    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE + b"".join(map(chunk, frames)))
        await writer.drain()
        await asyncio.sleep(0.05)
        raise ConnectionResetError

    return script


async def test_what_was_said_that_cannot_be_taken_up_is_not_continued(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    assert list(SAID) == list(continuation.BLOCKED)
    async with ScriptedEngine(b"", model=MODEL) as engine, open_door(engine, model=model) as door:
        for reason, frame in SAID.items():
            engine.script = dying_after(ROLE, frame, event("a", 2))
            await told(door, await door.http.post(CHAT, json=body()), reason)
            replaced(door, "engine-0")


async def test_an_engine_that_does_not_tell_and_one_that_has_no_token_left_are_not_continued(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    bare = [json.loads(frame[6:]) for frame in (ROLE, event("a", 1))]
    for each in bare:
        del each["usage"]
    untold = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in bare]
    whole = (ROLE, event("a", 1), event("b", 2), event("c", 3))
    async with ScriptedEngine(b"", model=MODEL) as engine, open_door(engine, model=model) as door:
        for reason, frames in (("untold_usage", untold), ("complete", whole)):
            engine.script = dying_after(*frames)
            await told(door, await door.http.post(CHAT, json=body(max_tokens=3)), reason)
            replaced(door, "engine-0")


@pytest.mark.parametrize("kind", ["thinks", "trims", "harmony", "unknown"])
async def test_a_template_that_does_not_continue_exactly_is_not_relied_on(
    open_door: OpenDoor, tmp_path: Path, kind: str
) -> None:
    """Engines do not build a gpt-oss prompt by its template at all, whatever that one does."""
    made = known_template(tmp_path, {"thinks": THINKS, "trims": TRIMS}.get(kind, CHATML))
    if kind == "harmony":
        (tmp_path / "tokenizer" / "config.json").write_text('{"model_type": "gpt_oss"}')
    frames = [event(" a", 1), event(" b ", 2)]  # what a template that trims would take off
    async with (
        ScriptedEngine(dying_after(ROLE, *frames), model=MODEL) as engine,
        open_door(engine, model={} if kind == "unknown" else made) as door,
    ):
        await told(door, await door.http.post(CHAT, json=body()), "template")


@pytest.mark.parametrize("known", [True, False])
async def test_token_ids_are_not_continued_by_a_tokenizer_that_says_the_answer_otherwise(
    open_door: OpenDoor, model: dict[str, str], known: bool
) -> None:
    frames = [event("", 1).replace(b'"delta":{"content":""}', b'"text":" half a \\ufffd"')]
    async with (
        ScriptedEngine(dying_after(*frames), model=MODEL) as engine,
        open_door(engine, model=model if known else {}) as door,
    ):
        await told(door, await door.http.post(TEXT, json=text_body([104, 105, 106])), "token_ids")


async def test_token_ids_are_not_continued_by_a_tokenizer_that_is_not_the_engines(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    async with EngineDouble(PACE, faults=(DIES,)) as engine, open_door(engine, model=model) as door:
        await eventually(lambda: door.service.inferences._relay._means.resumer._disputed)
        await told(door, await door.http.post(TEXT, json=text_body([104, 105, 106])), "token_ids")


async def test_a_plain_engine_is_not_relied_on(open_door: OpenDoor, model: dict[str, str]) -> None:
    async with (
        EngineDouble(PACE, faults=(DIES,)) as engine,
        open_door(engine, model=model, endpoint={"engine": "openai"}) as door,
    ):
        await told(door, await door.http.post(CHAT, json=body()), "engine")


async def test_what_could_go_on_and_finds_nobody_says_why(open_door: OpenDoor, model: dict[str, str]) -> None:
    def full(ask: Ask) -> Refused | str:
        return Refused(Why.FULL, 1.0) if ask.promised else ask.tier

    async with EngineDouble(PACE, faults=(DIES,)) as engine, open_door(engine, model=model) as door:
        await told(door, await door.http.post(CHAT, json=body()), "no_endpoint")
        replaced(door, "engine-0")
        with steered(door, full):
            await told(door, await door.http.post(CHAT, json=body()), "no_room")
        replaced(door, "engine-0")
        means = door.service.inferences._relay._means
        before, means.continuations = means.continuations, Budget(0)
        await told(door, await door.http.post(CHAT, json=body()), "budget")
        means.continuations = before


async def test_an_engine_that_refuses_to_continue_is_not_asked_twice(
    open_door: OpenDoor, model: dict[str, str]
) -> None:
    refuses = Fault(kind="status", status=400, path=CHAT)
    async with (
        EngineDouble(PACE, faults=(DIES,)) as dying,
        EngineDouble(PACE, faults=(refuses,)) as other,
        open_door(dying, other, model=model) as door,
    ):
        response = await until_asked(door, dying, CHAT, body())
        records = await told(door, response, "refused")
        assert [r["endpoint"] for r in records] == ["engine-0", "engine-1"]


async def test_one_that_is_always_taken_away_ends(open_door: OpenDoor, model: dict[str, str]) -> None:
    async with EngineDouble(PACE) as engine, open_door(engine, model=model) as door:
        relay = door.service.inferences._relay
        running = asyncio.create_task(door.http.post(CHAT, json=body(max_tokens=4_000)))
        taken: set[int] = set()

        def begun() -> list[int]:
            return [booking for booking, one in relay._means.live.items() if one.begun and booking not in taken]

        while not running.done():
            await eventually(lambda: running.done() or begun())
            for booking in begun():
                taken.add(booking)
                relay.evict(booking)
        records = await told(door, await running, "moves", "preempted")
        assert len(records) == len(taken) == 9


@pytest.mark.parametrize(("kind", "reason", "code"), [
    ("close_after_headers", "attempts", "engine_lost"), ("hang_before_headers", "first_byte", "engine_timeout"),
])  # fmt: skip
async def test_engines_that_never_begin_to_continue_are_bounded_too(
    open_door: OpenDoor, model: dict[str, str], kind: Any, reason: str, code: str
) -> None:
    engines = [EngineDouble(PACE) for _ in range(4)]
    timeouts = {"firstByte": 3.0}
    async with engines[0], engines[1], engines[2], engines[3], open_door(
        *engines, model=model, timeouts=timeouts
    ) as door:  # fmt: skip
        relay = door.service.inferences._relay
        running = asyncio.create_task(door.http.post(CHAT, json=body(max_tokens=4_000)))
        await eventually(lambda: any(one.begun for one in relay._means.live.values()))
        for engine in engines:
            engine.faults.faults = [Fault(kind=kind, path=CHAT)]
        (first,) = [engine for engine in engines if engine.scheduler.in_flight]
        for connection in list(first._connections):
            connection.cut(rst=True)
        records = await told(door, await running, reason, code)
        assert len(records) == (3 if reason == "attempts" else 2)
