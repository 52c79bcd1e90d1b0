"""Requests that end early: aborted by id, or left by their client. The counters must agree with the last frame."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.doubles.engine import EngineDouble
from tests.doubles.wire import counters, events, growth

BODY: dict[str, Any] = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "a long story of many foxes " * 10}],
    "max_tokens": 200,
    "ignore_eos": True,
}
STREAM = {**BODY, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble(token_seconds=0.005) as running:
        yield running


@pytest.fixture
async def client(engine: EngineDouble) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.url) as opened:
        yield opened


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    return counters((await client.get("/metrics")).text)


async def abort(client: httpx.AsyncClient, *ids: str) -> int:
    return (await client.post("/inference/v1/abort_requests", json={"request_ids": ids})).status_code


async def test_an_aborted_stream_ends_with_its_usage(client: httpx.AsyncClient) -> None:
    before = await metrics(client)
    body = b""
    async with client.stream("POST", "/v1/chat/completions", json=STREAM, headers={"x-request-id": "a"}) as answer:
        async for piece in answer.aiter_raw():
            if body.count(b"data: ") < 10 <= (body + piece).count(b"data: "):
                assert await abort(client, "chatcmpl-a") == 200
            body += piece
    seen = events(body)
    choice = seen[-3]["choices"][0]
    assert (choice["finish_reason"], choice["delta"], choice["stop_reason"]) == ("abort", {"content": ""}, None)
    usage = seen[-2]["usage"]
    assert seen[-3]["usage"]["completion_tokens"] == usage["completion_tokens"] == len(seen) - 4
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert seen[-1] == "[DONE]"
    grown = growth(before, await metrics(client))
    assert grown["vllm:generation_tokens_total"] == usage["completion_tokens"]
    assert grown["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
    assert not any(name.startswith("vllm:request_success") for name in grown)


async def test_an_aborted_whole_answer_is_200_with_exact_usage(client: httpx.AsyncClient) -> None:
    before = await metrics(client)
    task = asyncio.create_task(client.post("/v1/chat/completions", json=BODY, headers={"x-request-id": "b"}))
    await asyncio.sleep(0.1)
    await abort(client, "chatcmpl-b")
    answer = (await task).json()
    assert answer["choices"][0]["finish_reason"] == "abort"
    grown = growth(before, await metrics(client))
    assert 0 < answer["usage"]["completion_tokens"] == grown["vllm:generation_tokens_total"] < 200


async def test_one_prompt_of_a_completion_can_be_aborted(client: httpx.AsyncClient) -> None:
    body = {"model": BODY["model"], "prompt": ["one", "two"], "max_tokens": 40, "ignore_eos": True}
    task = asyncio.create_task(client.post("/v1/completions", json=body, headers={"x-request-id": "c"}))
    await asyncio.sleep(0.05)
    await abort(client, "cmpl-c", "cmpl-c-1", "unknown")
    choices = (await task).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["length", "abort"]


async def test_an_abort_before_the_first_token_counts_nothing() -> None:
    async with EngineDouble(prefill_rate=10) as engine, httpx.AsyncClient(base_url=engine.url) as client:
        before = await metrics(client)
        post = client.post("/v1/chat/completions", json=STREAM, headers={"x-request-id": "d"})
        task = asyncio.create_task(post)
        await asyncio.sleep(0.05)
        await abort(client, "chatcmpl-d")
        seen = events((await task).content)
        assert [len(event["choices"]) for event in seen[:-1]] == [1, 0], "the role, then the usage"
        assert seen[1]["usage"]["completion_tokens"] == 0
        assert seen[1]["usage"]["prompt_tokens"] > 30
        grown = growth(before, await metrics(client))
        assert set(grown) == {"vllm:prefix_cache_queries_total"}


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
async def test_a_client_that_leaves_stops_its_request(
    engine: EngineDouble, client: httpx.AsyncClient, how: str
) -> None:
    before = await metrics(client)
    reader, writer = await asyncio.open_connection(engine.host, engine.port)
    payload = json.dumps(STREAM).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(payload), payload)
    )
    body = b""
    while body.count(b"data: ") < 8:
        body += await reader.read(65536)
    if how == "close":
        writer.close()
    elif how == "half-close":
        writer.write_eof()
        body += await asyncio.wait_for(reader.read(), 1)
    else:
        writer.transport.abort()
    await asyncio.sleep(0.05)
    assert not engine.scheduler.in_flight
    assert engine.cache.usage == 0
    grown = growth(before, await metrics(client))
    written = [event for event in events(body) if isinstance(event, dict)][-1]["usage"]["completion_tokens"]
    slack = 0 if how == "half-close" else 3
    assert written <= grown["vllm:generation_tokens_total"] <= written + slack
    assert "vllm:request_success_total/abort" not in grown
    writer.close()


async def test_scale_out_must_be_enabled() -> None:
    async with EngineDouble(scale_out=False) as engine, httpx.AsyncClient(base_url=engine.url) as client:
        answer = await client.post("/inference/v1/abort_requests", json={"request_ids": ["x"]})
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "PermissionDeniedError")


async def test_draining_finishes_what_runs_and_refuses_the_rest(
    engine: EngineDouble, client: httpx.AsyncClient
) -> None:
    body = {**BODY, "max_tokens": 30}
    running = asyncio.create_task(client.post("/v1/chat/completions", json=body))
    await asyncio.sleep(0.05)
    drained = asyncio.create_task(engine.drain())
    await asyncio.sleep(0)
    for stream in (False, True):
        assert (await client.post("/v1/chat/completions", json={**body, "stream": stream})).status_code == 500
    assert (await client.get("/health")).status_code == 200
    await drained
    assert (await running).json()["usage"]["completion_tokens"] == 30


async def test_a_process_drains_on_sigterm() -> None:
    command = [sys.executable, "-m", "tests.doubles.engine", "--port", "0", "--token-seconds", "0.01"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 10)).decode().split()[-1]
    async with httpx.AsyncClient(base_url=url) as client:
        body = {**BODY, "max_tokens": 50}
        running = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 500
        assert (await running).json()["usage"]["completion_tokens"] == 50
    assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_a_client_that_does_not_read_gets_its_tokens_in_fewer_frames() -> None:
    async with EngineDouble(max_model_len=65_536, cache_blocks=4096) as engine:
        reader, writer = await asyncio.open_connection(engine.host, engine.port, limit=1)
        payload = json.dumps({**STREAM, "max_tokens": 30_000}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(payload), payload)
        )
        while engine.scheduler.in_flight or not engine.requests:
            await asyncio.sleep(0.01)
        seen = []
        async for line in _lines(reader):
            if line.startswith(b"data: {"):
                seen.append(json.loads(line[6:])["usage"]["completion_tokens"])
        writer.close()
        assert seen[-1] == seen[-2] == 30_000
        assert seen == sorted(seen)
        assert len(seen) < 30_000


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    left = b""
    while piece := await reader.read(65536):
        *whole, left = (left + piece).split(b"\n")
        for line in whole:
            yield line
