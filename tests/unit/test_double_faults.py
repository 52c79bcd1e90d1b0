"""Every fault, as a client meets it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.doubles.engine import EngineDouble, Fault
from tests.doubles.wire import events

BODY: dict[str, Any] = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "Say hi"}],
    "max_tokens": 5,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
WHOLE = {key: value for key, value in BODY.items() if not key.startswith("stream")}


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble() as running:
        yield running


@pytest.fixture
async def client(engine: EngineDouble) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.url, timeout=0.5) as opened:
        yield opened


async def post(client: httpx.AsyncClient, body: dict[str, Any] = BODY) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body)


async def raw(engine: EngineDouble, body: dict[str, Any] = BODY) -> tuple[bytes, bool]:
    """All bytes of an answer, and whether the connection was reset."""
    reader, writer = await asyncio.open_connection(engine.host, engine.port)
    payload = json.dumps(body).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(payload), payload)
    )
    seen, reset = b"", False
    try:
        while piece := await asyncio.wait_for(reader.read(65536), 2):
            seen += piece
    except ConnectionResetError:
        reset = True
    writer.close()
    return seen, reset


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_status_before_the_first_byte(client: httpx.AsyncClient, engine: EngineDouble, status: int) -> None:
    engine.faults.faults.append(Fault(kind="status", status=status, retry_after="2", times=1))
    answer = await post(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
    assert answer.headers["retry-after"] == "2"
    assert (await post(client)).status_code == 200, "it was to happen once"


async def test_faults_are_set_listed_and_cleared_over_http(client: httpx.AsyncClient) -> None:
    fault = {"kind": "status", "status": 503, "times": 2, "path": "/health"}
    assert (await client.post("/_double/faults", json=[fault])).json()[0]["times"] == 2
    assert (await client.get("/health")).status_code == 503
    assert (await client.get("/_double/faults")).json()[0]["times"] == 1
    await client.delete("/_double/faults")
    assert (await client.get("/health")).status_code == 200
    assert (await client.post("/_double/faults", json={"kind": "nonsense"})).status_code == 400


async def test_probability_and_stream_choose_their_requests(client: httpx.AsyncClient, engine: EngineDouble) -> None:
    engine.faults.faults.append(Fault(kind="status", probability=0.5, stream=True))
    streamed = [(await post(client)).status_code for _ in range(40)]
    assert 5 < streamed.count(500) < 35
    assert (await post(client, WHOLE)).status_code == 200


async def test_refused_connections_until_it_listens_again(client: httpx.AsyncClient, engine: EngineDouble) -> None:
    await client.post("/_double/faults", json={"kind": "refuse", "seconds": 0.2})
    await asyncio.sleep(0.05)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(engine.host, engine.port)
    await asyncio.sleep(0.25)
    async with httpx.AsyncClient(base_url=engine.url) as fresh:
        assert (await fresh.get("/health")).status_code == 200


@pytest.mark.parametrize("rst", [False, True])
async def test_closed_before_and_after_the_headers(engine: EngineDouble, rst: bool) -> None:
    engine.faults.faults += [
        Fault(kind="close_before_headers", rst=rst, times=1),
        Fault(kind="close_after_headers", rst=rst, times=1),
    ]
    assert await raw(engine) == (b"", rst)
    seen, reset = await raw(engine)
    assert seen.startswith(b"HTTP/1.1 200 OK")
    assert seen.endswith(b"\r\n\r\n")
    assert reset is rst


@pytest.mark.parametrize("rst", [False, True])
async def test_closed_after_some_events(engine: EngineDouble, rst: bool) -> None:
    engine.faults.faults.append(Fault(kind="close", after=3, rst=rst))
    seen, reset = await raw(engine)
    assert seen.count(b"data: ") == 3
    assert not seen.endswith(b"0\r\n\r\n")
    assert reset is rst
    assert not engine.scheduler.in_flight
    assert engine.metrics.generation_tokens == 3, "the role, two tokens, and the one that was not written"


async def test_hanging(client: httpx.AsyncClient, engine: EngineDouble) -> None:
    engine.faults.faults += [
        Fault(kind="hang_before_headers", times=1),
        Fault(kind="hang_before_headers", seconds=0.1, times=1),
        Fault(kind="hang", after=2, times=1),
        Fault(kind="hang", after=2, seconds=0.1, times=1),
    ]
    with pytest.raises(httpx.ReadTimeout):
        await post(client)
    assert (await post(client)).elapsed.total_seconds() > 0.09
    async with client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
        lines = answer.aiter_lines()
        assert [(await anext(lines))[:5] for _ in range(4)] == ["data:", "", "data:", ""]
        with pytest.raises(httpx.ReadTimeout):
            await anext(lines)
    assert events((await post(client)).content)[-1] == "[DONE]"


async def test_an_error_inside_the_stream(client: httpx.AsyncClient, engine: EngineDouble) -> None:
    engine.faults.faults.append(Fault(kind="error_event", after=2))
    seen = events((await post(client)).content)
    assert [type(event) for event in seen] == [dict, dict, dict, str]
    assert seen[2]["error"]["code"] == 500
    assert not engine.scheduler.in_flight


async def test_broken_frames(engine: EngineDouble) -> None:
    engine.faults.faults += [
        Fault(kind="malformed_frame", after=2, times=1),
        Fault(kind="invalid_utf8", after=2, times=1),
        Fault(kind="comment", after=2, times=1),
        Fault(kind="large_frame", after=2, size=300_000, times=1),
    ]
    malformed, _ = await raw(engine)
    assert b'data: {"id":"chatcmpl-\n\n' in malformed
    invalid, _ = await raw(engine)
    with pytest.raises(UnicodeDecodeError):
        invalid.decode()
    assert b": keep-alive\n\n" in (await raw(engine))[0]
    large, _ = await raw(engine)
    assert b"x" * 300_000 in large
    for seen in (malformed, invalid, large):
        assert seen.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "the stream goes on"


async def test_frames_split_at_every_offset(client: httpx.AsyncClient, engine: EngineDouble) -> None:
    whole = (await post(client)).content
    longest = max(len(frame) + 2 for frame in whole.split(b"\n\n"))
    shape = [list(event) for event in events(whole) if isinstance(event, dict)]
    for offset in range(0, longest, 7):
        engine.faults.faults[:] = [Fault(kind="split", offset=offset)]
        seen = events((await post(client)).content)
        assert [list(event) for event in seen if isinstance(event, dict)] == shape
    engine.faults.faults[:] = [Fault(kind="split", size=1)]
    pieces = []
    async with client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
        async for piece in answer.aiter_raw():
            pieces.append(piece)
    assert len(events(b"".join(pieces))) == len(shape) + 1
    assert len(pieces) > len(shape) * 20


async def test_crlf(engine: EngineDouble) -> None:
    engine.faults.faults.append(Fault(kind="crlf"))
    seen, _ = await raw(engine)
    assert seen.count(b"}\r\n\r\n") == 7
    assert b"data: [DONE]\r\n\r\n" in seen


async def test_usage_and_done_can_be_missing(client: httpx.AsyncClient, engine: EngineDouble) -> None:
    engine.faults.faults[:] = [Fault(kind="usage_missing")]
    seen = events((await post(client)).content)
    assert all("usage" not in event and event["choices"] for event in seen[:-1])
    assert "usage" not in (await post(client, WHOLE)).json()
    engine.faults.faults[:] = [Fault(kind="usage_zero")]
    seen = events((await post(client)).content)
    assert {event["usage"]["completion_tokens"] for event in seen[:-1]} == {0}
    assert (await post(client, WHOLE)).json()["usage"]["total_tokens"] == 0
    engine.faults.faults[:] = [Fault(kind="done_missing")]
    assert isinstance(events((await post(client)).content)[-1], dict)


@pytest.mark.parametrize("size", [5, -5])
async def test_a_wrong_content_length(engine: EngineDouble, size: int) -> None:
    engine.faults.faults.append(Fault(kind="wrong_content_length", size=size))
    seen, _ = await raw(engine, WHOLE)
    head, _, body = seen.partition(b"\r\n\r\n")
    said = next(int(line.split(b": ")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    assert said == len(body) + size


async def test_a_body_that_is_read_late(engine: EngineDouble) -> None:
    engine.faults.faults.append(Fault(kind="slow_reader", seconds=0.2, times=1))
    big = {**WHOLE, "messages": [{"role": "user", "content": "hi"}], "padding": "x" * 5_000_000}
    async with httpx.AsyncClient(base_url=engine.url) as client:
        answer = await post(client, big)
    assert answer.status_code == 200
    assert answer.elapsed.total_seconds() > 0.19
