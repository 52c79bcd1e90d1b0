"""What the double says on the wire, through a real socket. The shapes are vLLM's, recorded from 0.32."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.engine import EngineDouble, Settings
from tests.doubles.engine.errors import WireError
from tests.doubles.engine.validation import parse_chat, parse_completion
from tests.doubles.wire import counters, events, growth, text_of

USAGE = {"include_usage": True, "continuous_usage_stats": True}
HI = [{"role": "user", "content": "Say hi"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}}]


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble(auto_tools=True) as running:
        yield running


@pytest.fixture
async def client(engine: EngineDouble) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.url) as opened:
        yield opened


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": "smollm2-135m-instruct", "messages": HI, **fields}
    return await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "abc"})


async def test_a_chat_streams_byte_for_byte_as_vllm(client: httpx.AsyncClient) -> None:
    answer = await chat(client, stream=True, max_tokens=2, stream_options=USAGE)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    body = re.sub(rb'"content":"[^"]+"', b'"content":"X"', re.sub(rb'"created":\d+', b'"created":1', answer.content))
    head = b'data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1,"model":"smollm2-135m-instruct",'
    assert body.split(b"\n\n") == [
        head + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}],'
        b'"usage":{"prompt_tokens":8,"total_tokens":8,"completion_tokens":0,"completion_tokens_details":null},'
        b'"prompt_token_ids":null,"prompt_text":null}',
        head + b'"choices":[{"index":0,"delta":{"content":"X"},"logprobs":null,"finish_reason":null,"token_ids":null}],'
        b'"usage":{"prompt_tokens":8,"total_tokens":9,"completion_tokens":1,"completion_tokens_details":null}}',
        head + b'"choices":[{"index":0,"delta":{"content":"X"},"logprobs":null,"finish_reason":"length",'
        b'"stop_reason":null,"token_ids":null}],'
        b'"usage":{"prompt_tokens":8,"total_tokens":10,"completion_tokens":2,"completion_tokens_details":null}}',
        head + b'"choices":[],"usage":{"prompt_tokens":8,"total_tokens":10,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}},'
        b'"system_fingerprint":"vllm-0.32.0-d0b1e000"}',
        b"data: [DONE]",
        b"",
    ]


async def test_streamed_and_whole_answers_are_the_same_text(client: httpx.AsyncClient) -> None:
    whole = (await chat(client)).json()
    stream = events((await chat(client, stream=True)).content)
    assert whole["choices"][0]["message"]["content"] == text_of(stream)
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 64


async def test_a_continued_answer_goes_on_as_the_uncut_one(client: httpx.AsyncClient) -> None:
    uncut = (await chat(client)).json()["choices"][0]["message"]["content"]
    cut = (await chat(client, max_tokens=20)).json()["choices"][0]["message"]["content"]
    assert uncut.startswith(cut)
    partial = [*HI, {"role": "assistant", "content": cut}]
    rest = (await chat(client, messages=partial, add_generation_prompt=False, continue_final_message=True)).json()
    assert cut + rest["choices"][0]["message"]["content"] == uncut
    assert rest["usage"]["completion_tokens"] == 44


async def test_the_next_turn_hits_this_turn_and_its_answer(client: httpx.AsyncClient) -> None:
    first = [{"role": "user", "content": "a story of foxes " * 10}]
    answer = (await chat(client, messages=first)).json()
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["created_cache_tokens"] == usage["prompt_tokens"] // 32 * 32
    turn = [*first, {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, *HI]
    again = (await chat(client, messages=turn)).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == (usage["total_tokens"] - 1) // 32 * 32
    salted = (await chat(client, messages=turn, cache_salt="other")).json()["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


async def test_several_choices_count_the_prompt_once_in_usage_and_each_time_in_the_counters(
    client: httpx.AsyncClient,
) -> None:
    before = counters((await client.get("/metrics")).text)
    stream = events((await chat(client, n=3, max_tokens=4, stream=True, stream_options=USAGE)).content)
    grown = growth(before, counters((await client.get("/metrics")).text))
    assert stream[-2]["usage"]["prompt_tokens"] == 8
    assert stream[-2]["usage"]["completion_tokens"] == 12
    assert {event["usage"]["completion_tokens"] for event in stream[:-2]} == {0, 1, 2, 3, 4}
    assert grown["vllm:prompt_tokens_total"] == 24
    assert grown["vllm:generation_tokens_total"] == 12
    assert grown["vllm:request_success_total/length"] == 3


async def test_completions_take_several_prompts(client: httpx.AsyncClient) -> None:
    body = {"model": "smollm2-135m-instruct", "prompt": ["one two", "three"], "max_tokens": 2, "stream": True}
    answer = await client.post("/v1/completions", json={**body, "stream_options": USAGE}, headers={"x-request-id": "q"})
    stream = events(answer.content)
    assert [event["id"] for event in stream[:-1]] == ["cmpl-q"] * 5
    assert {(c["index"], e["usage"]["prompt_tokens"]) for e in stream[:-2] for c in e["choices"]} == {(0, 2), (1, 1)}
    assert stream[-2]["usage"] == {
        "prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip


async def test_a_stop_string_is_cut_away_even_across_tokens(client: httpx.AsyncClient) -> None:
    uncut = (await chat(client)).json()["choices"][0]["message"]["content"]
    middle = uncut[20:26]
    for stream in (False, True):
        answer = await chat(client, stop=[middle], stream=stream)
        if stream:
            ended = events(answer.content)
            assert text_of(ended) == uncut[: uncut.index(middle)]
            choice = ended[-2]["choices"][0]
        else:
            choice = answer.json()["choices"][0]
            assert choice["message"]["content"] == uncut[: uncut.index(middle)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", middle)


@pytest.mark.parametrize(("choice", "finish"), [("required", "tool_calls"), ("auto", "tool_calls"), ("named", "stop")])
async def test_tools_are_called_when_asked(client: httpx.AsyncClient, choice: str, finish: str) -> None:
    wanted: Any = {"type": "function", "function": {"name": "look"}} if choice == "named" else choice
    whole = (await chat(client, tools=TOOLS, tool_choice=wanted)).json()["choices"][0]
    call = whole["message"]["tool_calls"][0]["function"]
    assert call["name"] == "look"
    assert json.loads(call["arguments"]) == {"at": "text"}
    assert whole["finish_reason"] == finish
    stream = events((await chat(client, tools=TOOLS, tool_choice=wanted, stream=True)).content)
    deltas = [event["choices"][0]["delta"] for event in stream[:-1]]
    pieces = [each["tool_calls"][0]["function"]["arguments"] for each in deltas if "tool_calls" in each]
    assert json.loads("".join(pieces)) == {"at": "text"}
    assert stream[-2]["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "nope"}, 404, "model"),
        ({"max_tokens": 9000}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"messages": [{"role": "user", "content": "a " * 9000}]}, 400, "input_tokens"),
        ({"messages": []}, 400, None),
        ({"messages": "x"}, 400, "body.messages"),
        ({"temperature": -1}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "body.temperature"),
        ({"n": 0}, 400, None),
        ({"n": 10**9}, 400, None),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"cache_salt": ""}, 400, "cache_salt"),
        ({"tool_choice": "auto"}, 400, "tool_choice"),
    ],
)
async def test_refusals(client: httpx.AsyncClient, fields: dict[str, Any], status: int, param: str | None) -> None:
    answer = await chat(client, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, param)
    assert list(error) == ["message", "type", "param", "code"]


async def test_unreadable_bodies(client: httpx.AsyncClient) -> None:
    json_type = {"content-type": "application/json"}
    for body in (b"{bad", b"", b"[]", b"5"):
        answer = await client.post("/v1/chat/completions", content=body, headers=json_type)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")
    answer = await client.post("/v1/chat/completions", content=b'{"model":"\xff"}', headers=json_type)
    assert answer.json() == {"detail": "There was an error parsing the body"}
    answer = await client.post("/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.json()["error"]["message"].endswith("Only 'application/json' is allowed")


async def test_unknown_fields_and_routes(client: httpx.AsyncClient) -> None:
    assert (await chat(client, some_new_field={"a": 1}, priority=3)).status_code == 200
    assert (await client.get("/nope")).json() == {"detail": "Not Found"}
    refused = await client.get("/v1/chat/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


async def test_requests_beyond_the_batch_wait_and_higher_priority_goes_first() -> None:
    double = EngineDouble(max_running=1, token_seconds=0.02, priority_scheduling=True)
    async with double as engine, httpx.AsyncClient(base_url=engine.url) as client:
        done: list[str] = []

        async def one(name: str, priority: int) -> None:
            await chat(client, max_tokens=4, priority=priority)
            done.append(name)

        tasks = [asyncio.create_task(one("first", 0))]
        await asyncio.sleep(0.02)
        tasks += [asyncio.create_task(one("later", 5)), asyncio.create_task(one("sooner", 1))]
        await asyncio.sleep(0.02)
        seen = counters((await client.get("/metrics")).text)
        assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (1, 2)
        await asyncio.gather(*tasks)
        assert done == ["first", "sooner", "later"]


async def test_a_full_queue_answers_503() -> None:
    async with EngineDouble(max_queued=1) as engine, httpx.AsyncClient(base_url=engine.url) as client:
        answer = await chat(client, n=2)
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "Service Unavailable"
        assert (await chat(client)).status_code == 200


async def test_paced_tokens_take_their_time() -> None:
    double = EngineDouble(token_seconds=0.01, prefill_rate=100)
    async with double as engine, httpx.AsyncClient(base_url=engine.url) as client:
        answer = await chat(client, max_tokens=11)
        assert answer.elapsed.total_seconds() == pytest.approx(0.08 + 0.1, abs=0.05)


async def test_what_the_engine_saw_can_be_asked(client: httpx.AsyncClient) -> None:
    await chat(client, cache_salt="s")
    seen = (await client.get("/_double/requests")).json()
    assert [each["path"] for each in seen] == ["/v1/chat/completions"]
    assert json.loads(seen[0]["body"])["cache_salt"] == "s"
    assert seen[0]["headers"]["x-request-id"] == "abc"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_FIELDS = (
    "messages prompt model stream stream_options n max_tokens max_completion_tokens temperature top_p stop logprobs "
    "top_logprobs tools tool_choice cache_salt priority seed echo ignore_eos continue_final_message return_token_ids"
)
_BODIES = st.dictionaries(st.sampled_from(_FIELDS.split()), _JSON, max_size=6)


@given(_BODIES, st.booleans())
def test_any_body_becomes_a_job_or_a_refusal(body: dict[str, Any], sane: bool) -> None:
    if sane:
        body = {**body, "messages": HI, "prompt": "hi"}
    for parse in (parse_chat, parse_completion):
        try:
            job = parse(body, Settings(auto_tools=True), "x")
        except WireError:
            continue
        if job.n < 100:
            first = job.sequences(4)[0]
            while first.finish_reason is None:
                first.advance()
