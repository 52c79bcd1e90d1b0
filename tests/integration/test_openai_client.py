"""The unmodified OpenAI SDK against a running front door: what it retries, raises, lists and puts together."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from openai import (
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
)

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.scripted import END, SSE, ScriptedEngine, chunk, whole
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.recorded import Recording, recordings

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [{"type": "function", "function": {
    "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]  # fmt: skip


@asynccontextmanager
async def sdk(door: Door, key: str | None = None) -> AsyncIterator[tuple[AsyncOpenAI, list[str]]]:
    """A client as a tenant would make it, retries included, and the paths it asks for."""
    asked: list[str] = []

    async def seen(request: httpx2.Request) -> None:
        asked.append(request.url.path)

    transport = httpx2.AsyncClient(event_hooks={"request": [seen]}, timeout=30.0)
    async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key or door.key, http_client=transport) as client:
        yield client, asked


async def test_models_are_listed_and_one_that_is_not_there_is_not_found(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door, sdk(door) as (client, asked):
        models = [model async for model in client.models.list()]
        assert [(model.id, model.object, model.owned_by) for model in models] == [
            (name, "model", models[0].owned_by) for name in (MODEL, "alias")
        ]
        with pytest.raises(NotFoundError) as caught:
            await client.models.retrieve("gpt-9")
        assert caught.value.code == "model_not_found"
        assert len(asked) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_engine_is_tried_again_when_the_answer_says(open_door: OpenDoor, stream: bool) -> None:
    fault = Fault(kind="status", status=503, path="/v1/chat", times=1)
    async with EngineDouble(faults=(fault,)) as engine, open_door(engine) as door, sdk(door) as (client, asked):
        began = time.monotonic()
        answer: Any = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2, stream=stream)
        if stream:
            assert [chunk async for chunk in answer][-1].choices[0].finish_reason == "length"
        assert time.monotonic() - began >= 0.9  # `retry-after-ms: 1000`, not the client's own half a second
        assert len(asked) == 2
        refused, done = await door.records(2)  # each is a request of its own; only one reached the model
        assert (refused["status"], done["status"]) == ("failed", "completed")
        assert refused["request_id"] != done["request_id"]
        assert refused["billable_input_uncached"] == refused["billable_output"] == 0


async def test_an_engine_that_stays_full_is_given_up_after_the_clients_own_number_of_tries(open_door: OpenDoor) -> None:
    fault = Fault(kind="status", status=503, path="/v1/chat")
    async with EngineDouble(faults=(fault,)) as engine, open_door(engine) as door, sdk(door) as (client, asked):
        with pytest.raises(InternalServerError) as caught:
            await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert (caught.value.status_code, caught.value.code) == (503, "engine_overloaded")
        assert caught.value.request_id is not None
        assert caught.value.request_id.startswith("req_")
        assert len(asked) == 3


async def test_what_cannot_succeed_is_not_tried_again(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        admin = (await door.service.tenancy.create_admin_key()).secret
        suspended = await door.new_key()
        tenant = next(t for t in await door.service.tenancy.tenants() if t.name != "acme")
        await door.service.tenancy.suspend_tenant(tenant.id)
        cases: list[tuple[str | None, dict[str, Any], type[APIError], str]] = [
            ("sk-nobody", {}, AuthenticationError, "invalid_api_key"),
            (admin, {}, PermissionDeniedError, "insufficient_scope"),
            (suspended, {}, PermissionDeniedError, "tenant_suspended"),
            (None, {"model": "gpt-9"}, NotFoundError, "model_not_found"),
            (None, {"temperature": 9}, BadRequestError, "invalid_value"),
            (None, {"max_tokens": 1_000_000}, BadRequestError, "context_length_exceeded"),
        ]
        for key, changes, kind, code in cases:
            async with sdk(door, key) as (client, asked):
                with pytest.raises(kind) as caught:
                    await client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **changes})
                assert caught.value.code == code
                assert len(asked) == 1, code


async def test_a_project_at_its_bound_waits_and_gets_its_answer(open_door: OpenDoor) -> None:
    slow = EngineDouble(token_seconds=0.02, answer_tokens=None)
    async with slow as engine, open_door(engine, server={"maxInFlightPerProject": 1}) as door, sdk(door) as (_, __):
        running = asyncio.create_task(door.chat(max_tokens=30))
        while not engine.scheduler.in_flight:
            await asyncio.sleep(0.01)
        with pytest.raises(RateLimitError) as caught:
            await door.openai.chat.completions.create(model=MODEL, messages=HELLO)
        assert caught.value.code == "concurrency_limit_exceeded"
        async with sdk(door) as (client, asked):
            assert (await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)).choices
            assert len(asked) == 2
        assert (await running).status_code == 200


async def test_raw_answers_carry_the_request_id_that_the_ledger_has(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door, sdk(door) as (client, _):
        raw = await client.chat.completions.with_raw_response.create(model="alias", messages=HELLO, max_tokens=2)
        assert raw.parse().model == "alias"
        assert raw.headers["x-request-id"] == raw.request_id
        whole = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
        async with client.chat.completions.with_streaming_response.create(
            model=MODEL, messages=HELLO, max_tokens=2, stream=True
        ) as streamed:
            lines = [line async for line in streamed.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        ids = {raw.headers["x-request-id"], whole._request_id, streamed.headers["x-request-id"]}
        assert {record["request_id"] for record in await door.records(3)} == ids


async def test_the_streaming_helper_puts_an_answer_together(open_door: OpenDoor) -> None:
    async with EngineDouble(answer_tokens=6) as engine, open_door(engine) as door, sdk(door) as (client, _):
        async with client.chat.completions.stream(
            model="alias", messages=HELLO, stream_options={"include_usage": True}
        ) as stream:
            deltas = [event.delta async for event in stream if event.type == "content.delta"]
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "".join(deltas)
        assert final.choices[0].finish_reason == "stop"
        assert final.usage is not None
        assert final.usage.completion_tokens == 6  # the end-of-text token included


async def test_a_tool_call_comes_whole_and_in_pieces(open_door: OpenDoor) -> None:
    async with EngineDouble(auto_tools=True) as engine, open_door(engine) as door, sdk(door) as (client, _):
        whole = await client.chat.completions.create(model="alias", messages=HELLO, tools=TOOLS)
        assert whole.choices[0].finish_reason == "tool_calls"
        calls: Any = whole.choices[0].message.tool_calls
        (call,) = calls
        async with client.chat.completions.stream(model="alias", messages=HELLO, tools=TOOLS) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].finish_reason == "tool_calls"
        pieces: Any = final.choices[0].message.tool_calls
        (streamed,) = pieces
        assert call.type == streamed.type == "function"
        assert streamed.function.name == call.function.name == "get_weather"
        assert streamed.function.arguments == call.function.arguments
        answered = await client.chat.completions.create(model="alias", tools=TOOLS, messages=[
            *HELLO, {"role": "assistant", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ])  # fmt: skip
        assert answered.choices[0].message.content
        assert [record["billable_output"] > 0 for record in await door.records(3)] == [True] * 3


@pytest.mark.parametrize("recording", recordings(one_per_model=True))
async def test_recorded_streams_reach_the_client_as_they_came(open_door: OpenDoor, recording: Recording) -> None:
    """Content, tool calls and reasoning of other engines' parsers, through the front door into the SDK.

    vllm#37937, #35705, #18108; lmdeploy#3412."""

    async def replay(writer: Any) -> None:
        writer.write(SSE)
        for at in range(0, len(recording.raw), 1400):
            writer.write(chunk(recording.raw[at : at + 1400]))
        writer.write(END)

    async with (
        ScriptedEngine(replay, model=recording.model) as engine,
        open_door(engine, endpoint={"servedModel": recording.model}) as door,
        sdk(door) as (client, _),
    ):
        path = client.completions if "text_completion" in recording.raw.decode() else client.chat.completions
        asked: Any = {"prompt": "x"} if path is client.completions else {"messages": HELLO}
        seen = [event.model_dump(exclude_unset=True) async for event in await path.create(
            model="alias", stream=True, stream_options={"include_usage": True}, **asked)]  # fmt: skip
        wanted = [event["choices"] for event in recording.events]
        assert [event["choices"] for event in seen] in (wanted, [*wanted, []])  # the client asked for usage
        assert {event["model"] for event in seen if "model" in event} == {"alias"}
        (record,) = await door.records(1)
        assert record["status"] == "completed"
        if record["measured"]:
            (told,) = (event for event in seen if event.get("usage"))
            assert told["choices"] == []
            assert record["billable_output"] == told["usage"]["completion_tokens"] > 0
            reasoning = (told["usage"].get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
            assert record["billable_reasoning"] == min(reasoning, record["billable_output"])


async def test_every_answer_has_a_request_id(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        admin = {"authorization": f"Bearer {(await door.service.tenancy.create_admin_key()).secret}"}
        seen = []
        for path, status, headers in (
            ("/v1/models", 200, {}), ("/v1/models/alias", 200, {}), ("/v1/models/gpt-9", 404, {}),
            ("/v1/nothing", 404, {}), ("/nothing", 404, {}), ("/v1/chat/completions", 405, {}),
            ("/health", 200, {}), ("/ready", 200, {}), ("/metrics", 200, {}),
            ("/v1/organization/usage/completions?start_time=1", 200, {}),
            ("/v1/organization/usage/completions", 400, {}), ("/v1/organization/costs?start_time=1", 200, {}),
            ("/admin/v1/tenants", 200, admin), ("/admin/v1/tenants", 403, {}), ("/admin/v1/tenants/ten_x", 404, admin),
            ("/v1/models", 401, {"authorization": "Bearer no"}),
        ):  # fmt: skip
            answer = await door.http.get(path, headers=headers)
            assert answer.status_code == status, (path, answer.text)
            seen.append(answer.headers["x-request-id"])
        assert (await door.http.post("/admin/v1/tenants", headers=admin, json={"name": "new"})).headers["x-request-id"]
        assert all(identifier.startswith("req_") for identifier in seen)
        assert len(set(seen)) == len(seen)


async def test_who_is_not_ready_says_when_to_ask_again(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        door.service.inferences.gate.draining = True
        for answer in (await door.http.get("/ready"), await door.chat()):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1


async def test_a_model_serves_only_the_apis_it_has(open_door: OpenDoor) -> None:
    models = [{"name": MODEL, "pool": "main", "apis": ["chat"]}]
    async with EngineDouble() as engine, open_door(engine, models=models) as door, sdk(door) as (client, asked):
        for refused in (
            client.embeddings.create(model=MODEL, input="x"), client.completions.create(model=MODEL, prompt="x"),
        ):  # fmt: skip
            with pytest.raises(BadRequestError) as caught:
                await refused
            assert (caught.value.code, caught.value.param) == ("unsupported_model", "model")
            assert "chat" in caught.value.message
        assert len(asked) == 2
        assert not [request for request in engine.requests if request.path.startswith("/v1/e")]
        assert (await door.chat(max_tokens=1)).status_code == 200
        (record,) = await door.records(1)
        assert record["price_version"] == ""  # a model without prices costs nothing


async def test_an_engine_without_embeddings_is_not_blamed_on_the_tenant(open_door: OpenDoor) -> None:
    """The configuration promises them and the engine has none: our fault, and it costs nothing."""
    async with EngineDouble(embeddings=False) as engine, open_door(engine) as door:
        with pytest.raises(InternalServerError) as caught:
            await door.openai.embeddings.create(model=MODEL, input="x")
        assert (caught.value.status_code, caught.value.code) == (503, "engine_error")
        (record,) = await door.records(1)
        assert (record["status"], record["billable_input_uncached"]) == ("failed", 0)
        assert (await door.chat(max_tokens=1)).status_code == 200


async def test_who_asks_is_known_by_the_key_alone(open_door: OpenDoor) -> None:
    """Not by headers or members that say who one is: another tenant's names are worth nothing."""
    async with EngineDouble() as engine, open_door(engine) as door:
        key = await door.new_key()
        rich = (await door.service.tenancy.tenants())[0]
        project = (await door.service.tenancy.projects(rich.id))[0]
        async with AsyncOpenAI(
            base_url=f"{door.url}/v1", api_key=key, organization=rich.id, project=project.id,
            default_headers={"x-forebay-tenant": rich.id, "x-tenant-id": rich.id, "x-forebay-project": project.id},
        ) as client:  # fmt: skip
            await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=1, user=rich.id, safety_identifier=rich.id,
                metadata={"tenant_id": rich.id, "project_id": project.id},
            )  # fmt: skip
        (record,) = await door.records(1)
        assert record["tenant_id"] != rich.id
        assert record["project_id"] != project.id
        assert record["key_id"] != door.key_id


async def test_streamed_and_whole_answers_cost_the_same(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        await door.chat("warm the cache with this", max_tokens=5)
        for stream in (False, True):
            await door.chat("warm the cache with this", max_tokens=5, stream=stream)
        _, whole, streamed = await door.records(3)
        billed = [name for name in whole if name.startswith(("billable_", "engine_"))]
        assert {name: whole[name] for name in billed} == {name: streamed[name] for name in billed}


async def test_completions_stream_under_an_alias(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door, sdk(door) as (client, _):
        whole = await client.completions.create(model="alias", prompt="once upon", max_tokens=5, seed=1)
        seen = [event async for event in await client.completions.create(
            model="alias", prompt="once upon", max_tokens=5, seed=1, stream=True,
            stream_options={"include_usage": True})]  # fmt: skip
        assert {event.model for event in seen} == {whole.model} == {"alias"}
        assert "".join(event.choices[0].text for event in seen if event.choices) == whole.choices[0].text
        assert seen[-1].usage is not None
        assert seen[-1].usage.completion_tokens == 5


async def test_streams_tell_proxies_not_to_buffer(open_door: OpenDoor) -> None:
    """litellm#28384, dstack#4269."""
    async with EngineDouble() as engine, open_door(engine) as door:
        headers = (await door.chat(max_tokens=1, stream=True)).headers
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["x-accel-buffering"] == "no"
        assert "no-cache" in headers["cache-control"]
        assert "content-encoding" not in headers
        assert "content-length" not in headers


async def test_what_an_engine_sends_beside_its_answer_reaches_no_client(open_door: OpenDoor) -> None:
    """openai-python#2722, #3833; llm-gateway#2053, copilot-api#88: an id, and a comment or empty data after it, are an
    empty event to the client, which dies of it; comments are passed on as no JSON. Our own heartbeats are harmless."""
    told = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"%b","choices":[%b]}\n\n'

    def says(choice: bytes) -> bytes:
        return told % (MODEL.encode(), choice)

    async def noisy(writer: Any) -> None:
        writer.write(SSE + chunk(b"id: 1\nretry: 10\nevent: message\n" + says(b'{"index":0,"delta":{"content":"a"}}')))
        for noise in (b": ping\n\n", b"data:\n\n", b"data: \n\n", b"id: 2\n: ping\n\n", b"event: ping\n\n", b"\n\n"):
            writer.write(chunk(noise))
            await writer.drain()
            await asyncio.sleep(0.15)
        last = says(b'{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}')
        writer.write(chunk(b"id: 3\n" + last) + chunk(b": bye\n\ndata: [DONE]\n\n") + END)

    timeouts = {"heartbeatAfter": 0.2}
    async with ScriptedEngine(noisy, model=MODEL) as engine, open_door(engine, timeouts=timeouts) as door:
        seen = [event async for event in await door.openai.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True)]  # fmt: skip
        assert "".join(event.choices[0].delta.content or "" for event in seen) == "ab"
        assert seen[-1].choices[0].finish_reason == "stop"
        lines = [line for line in (await door.chat(stream=True)).text.splitlines() if line]
        assert {line.partition(":")[0] for line in lines} == {"data", ""}
        assert {line for line in lines if line.startswith(":")} == {": heartbeat"}
        assert all(line == "data: [DONE]" or line.startswith('data: {"') for line in lines if line[0] == "d")


@pytest.mark.parametrize("timeouts", [{"idle": 0.4}, {"total": 0.8}], ids=lambda t: next(iter(t)))
async def test_a_stream_that_stops_or_never_ends_is_ended(open_door: OpenDoor, timeouts: dict[str, float]) -> None:
    """litellm#9551, #38358, #30836."""
    endless = EngineDouble(token_seconds=0.02, answer_tokens=None)
    hang = Fault(kind="hang", after=4, path="/v1/chat")
    stopped = EngineDouble(faults=(hang,))
    async with (stopped if "idle" in timeouts else endless) as engine, open_door(engine, timeouts=timeouts) as door:
        began = time.monotonic()
        with pytest.raises(APIError) as caught:
            async for _ in await door.openai.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=5000, stream=True
            ):
                pass
        assert caught.value.code == "engine_timeout"
        assert time.monotonic() - began < 6.0  # up to three of them to hear what the engine had used
        (record,) = await door.records(1)
        assert (record["status"], record["terminated_by"]) == ("failed", "deadline")
        assert record["engine_output"] > 0
        assert record["billable_output"] == 0


async def test_a_prompt_that_is_too_long_is_named_as_the_api_names_it(open_door: OpenDoor) -> None:
    long = "word " * 1000
    async with EngineDouble(max_model_len=256) as engine, open_door(engine) as door:
        made = door.openai
        cases: list[tuple[str, Any]] = [
            ("messages", made.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": long}])),
            ("messages", made.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": long}], stream=True)),
            ("prompt", made.completions.create(model=MODEL, prompt=long)),
        ]  # fmt: skip
        for param, call in cases:
            with pytest.raises(BadRequestError) as caught:
                await call
            assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
        assert await door.ledger() == []


async def test_an_input_that_is_too_long_for_an_embedding_is_named(open_door: OpenDoor) -> None:
    body = b'{"error":{"message":"This model\'s maximum context length is 256 tokens.","code":400}}'
    refusing = ScriptedEngine(whole(body, status="400 Bad Request"), model=MODEL)
    async with refusing as engine, open_door(engine) as door:
        with pytest.raises(BadRequestError) as caught:
            await door.openai.embeddings.create(model=MODEL, input="word " * 1000)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
