"""Sessions at the front door: what the router hears of them, and nobody else."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from forebay.platform.api.session_identity import HEADERS
from forebay.platform.cli.explain import explain
from forebay.router import Ask, Outcome, Result, Router
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.doubles.scripted import END, SSE, ScriptedEngine, chunk, whole
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import SLOW, unbooked

EXPLAIN = "/v1/explain/chat/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [{"type": "function", "function": {
    "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]  # fmt: skip
SECRET = "a-session-that-is-nobodys-business"


class Overheard:
    """The door's router, and what it is told."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.asks: list[Ask] = []
        self.outcomes: list[Outcome] = []

    async def place(self, ask: Ask) -> Result:
        self.asks.append(ask)
        return await self._router.place(ask)

    def ended(self, booking: int, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._router.ended(booking, outcome)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    @property
    def sessions(self) -> list[str]:
        return [ask.session for ask in self.asks]

    @property
    def returns(self) -> list[bool | None]:
        return [outcome.returns for outcome in self.outcomes]


@contextmanager
def overheard(door: Door) -> Iterator[Overheard]:
    means = door.service.inferences._relay._means
    means.router = heard = Overheard(means.router)
    yield heard


async def ask(door: Door, key: str | None = None, *, headers: dict[str, str] | None = None, **members: Any) -> Any:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2, **members}
    response = await door.http.post(
        "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key or door.key}", **(headers or {})}
    )
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("header", HEADERS)
async def test_requests_with_the_same_header_are_of_one_session_and_of_no_other_project(
    open_door: OpenDoor, header: str
) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        with overheard(door) as heard:
            for value in ("one", "one", "two"):
                await ask(door, headers={header: value})
            await ask(door, await door.new_key(), headers={header: "one"})
            await ask(door)
        first, again, other, foreign, none = heard.sessions
        assert first == again
        assert len({first, other, foreign, none}) == 4
        assert [len(session) for session in heard.sessions] == [32, 32, 32, 32, 0]


async def test_the_openai_client_names_a_session_by_member_or_header(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        with overheard(door) as heard:
            for options in (
                {"prompt_cache_key": "task-17"},
                {"prompt_cache_key": "task-17", "stream": True},
                {"extra_headers": {"x-forebay-session-id": "task-17"}},
                {"prompt_cache_key": "other", "extra_headers": {"x-forebay-session-id": "task-17"}},
            ):
                answer: Any = await door.openai.chat.completions.create(
                    model=MODEL, messages=HELLO, max_tokens=2, **options
                )
                if "stream" in options:
                    assert [event async for event in answer]
            await door.openai.completions.create(
                model=MODEL, prompt="hello", extra_body={"prompt_cache_key": "task-17"}
            )
        member, streamed, header, both, completion = heard.sessions
        assert member == streamed == completion
        assert header == both, "the header counts"
        assert "" != member != header


async def test_a_session_goes_on_wherever_its_conversation_is_read_from(open_door: OpenDoor) -> None:
    """Of a long conversation only what is new is read; the member may stand before or behind its messages."""
    turns = [{"role": "user", "content": "word " * 600}]
    async with EngineDouble() as engine, open_door(engine) as door:
        with overheard(door) as heard:
            for _ in range(3):
                await ask(door, messages=turns, prompt_cache_key="task-17")
                turns = [*turns, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and now?"}]
        assert len(set(heard.sessions)) == 1
        assert heard.sessions[0]


async def test_a_header_that_cannot_be_meant_is_no_fault_and_an_invalid_member_is(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        with overheard(door) as heard:
            await ask(door, headers={"x-forebay-session-id": "x" * 257})
            await ask(door, headers={"x-forebay-session-id": "x" * 257, "session-id": "one"})
            await ask(door, headers={"session-id": "one"})
        assert heard.sessions[0] == ""
        assert heard.sessions[1] == heard.sessions[2] != ""
        refused = await door.chat(prompt_cache_key="x" * 1025)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_cache_key")


async def test_neither_engine_nor_ledger_nor_log_learns_the_name(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "forebay")
    async with EngineDouble() as engine, open_door(engine) as door:
        for header in HEADERS:
            await ask(door, headers={header: SECRET}, prompt_cache_key=SECRET)
        said = [(request.headers, request.body) for request in engine.requests]
        records = await door.records(len(HEADERS))
        assert SECRET not in f"{said} {records} {caplog.text} {(await door.http.get('/metrics')).text}"
        assert not [name for headers, _ in said for name in headers if name in HEADERS]


async def test_explaining_says_what_named_the_session_and_never_its_name(open_door: OpenDoor) -> None:
    body = json.dumps({"model": MODEL, "messages": HELLO, "prompt_cache_key": SECRET})
    async with EngineDouble() as engine, open_door(engine) as door:
        answer = await door.http.post(EXPLAIN, content=body, headers={"x-session-affinity": SECRET})
        assert answer.json()["session"] == {"source": "x-session-affinity"}
        assert SECRET not in answer.text
        assert (await door.http.post(EXPLAIN, json={"model": MODEL, "messages": HELLO})).json()["session"] is None

        async def said(*options: str) -> str:
            where = ("-", "--base-url", door.url, "--key", door.key)
            result = await asyncio.to_thread(CliRunner().invoke, explain, [*where, *options], input=body)
            assert result.exit_code == (2 if "no header" in result.output else 0), result.output
            return result.output

        assert "session: named by prompt_cache_key" in await said()
        assert "session: named by session_id" in await said("-H", f"session_id: {SECRET}")
        assert SECRET not in await said("--header", f"Session_ID:{SECRET}", "--json")
        for wrong in ("session_id", "session id: x", ": x", "a: b\nc: d", "a: ü"):
            assert "no header" in await said("-H", wrong)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_runs_a_tool_is_said_to_come_back(open_door: OpenDoor, stream: bool) -> None:
    async with EngineDouble(auto_tools=True, answer_tokens=40) as engine, open_door(engine) as door:
        with overheard(door) as heard:
            await ask(door, tools=TOOLS, max_tokens=400, stream=stream)
            await ask(door, max_tokens=400, stream=stream)
            await ask(door, max_tokens=2, stream=stream)
            await ask(door, max_tokens=2, n=2, stream=stream)
        assert heard.returns == [True, False, False, None], "a call, its end, its limit, and two answers"
        assert unbooked(door)


def _ended(reason: str | None, *, stream: bool) -> bytes:
    part = {"delta" if stream else "message": {"role": "assistant", "content": "a"}}
    usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
    body = json.dumps({"id": "c", "object": "chat", "created": 1, "model": MODEL, "usage": usage,
                       "choices": [{"index": 0, **part, "finish_reason": reason}]}).encode()  # fmt: skip
    if not stream:
        return whole(body)
    return SSE + chunk(b"data: " + body + b"\n\n") + chunk(b"data: [DONE]\n\n") + END


@pytest.mark.parametrize("stream", [False, True])
async def test_only_reasons_that_say_so_tell_of_a_return(open_door: OpenDoor, stream: bool) -> None:
    said = {"tool_calls": True, "function_call": True, "stop": False, "length": False,
            "content_filter": None, "Tool_Calls": None, "": None, None: None}  # fmt: skip
    async with ScriptedEngine(b"", model=MODEL) as engine, open_door(engine) as door:
        with overheard(door) as heard:
            for reason in said:
                engine.script = _ended(reason, stream=stream)
                await ask(door, stream=stream)
        assert heard.returns == list(said.values())


async def test_of_an_answer_that_was_left_nothing_is_known(open_door: OpenDoor) -> None:
    async with EngineDouble(SLOW) as engine, open_door(engine) as door:
        with overheard(door) as heard:
            leaving = asyncio.create_task(ask(door, stream=True, max_tokens=500))
            await eventually(lambda: engine.scheduler.in_flight)
            leaving.cancel()
            await eventually(lambda: heard.outcomes, 10.0)
        assert heard.returns == [None]


async def test_of_a_stream_that_broke_nothing_is_known(open_door: OpenDoor) -> None:
    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE + chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'))
        raise ConnectionError

    async with ScriptedEngine(broken, model=MODEL) as scripted, open_door(scripted) as door:
        with overheard(door) as heard:
            await door.chat(stream=True)
        assert set(heard.returns) == {None}


async def test_an_embedding_may_be_of_a_session_and_says_nothing_of_a_return(open_door: OpenDoor) -> None:
    async with EngineDouble(Settings(embeddings=True)) as engine, open_door(engine) as door:
        with overheard(door) as heard:
            await door.openai.embeddings.create(model=MODEL, input="x", extra_headers={"x-forebay-session-id": "one"})
        assert [len(session) for session in heard.sessions] == [32]
        assert heard.returns == [None]
