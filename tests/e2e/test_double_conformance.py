"""The engine double beside a real vLLM: the same requests, the same shapes, the same counting. Text is ignored.

The real engine is the fixture `vllm_engine` (FOREBAY_VLLM_URL names one that runs already), with --block-size 32,
--enable-prompt-tokens-details and --enable-scale-out. Nobody else may use it meanwhile: counters are compared.
"""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.doubles.engine import EngineDouble
from tests.doubles.wire import counters, events, growth
from tests.e2e.engines import Engine as Real

pytestmark = pytest.mark.engine

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
USAGE = {"include_usage": True, "continuous_usage_stats": True}
HI = [{"role": "user", "content": "Say hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
FIXED = {"ignore_eos": True}
TIMED = "_seconds"
_LITERAL = {"object", "role", "index", "finish_reason"}


class Engine:
    """One side of the comparison."""

    def __init__(self, url: str, model: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self.model = model
        self.client = client

    async def send(self, path: str, body: Any, request_id: str = "abc") -> httpx.Response:
        if isinstance(body, dict):
            body = {"model": self.model, **body}
        return await self.client.post(path, json=body, headers={"x-request-id": request_id})

    async def counters(self) -> dict[str, float]:
        """Once nothing runs and the engine has had time to count."""
        while True:
            await asyncio.sleep(0.3)
            seen = counters((await self.client.get("/metrics")).text)
            if not seen["vllm:num_requests_running"] and not seen["vllm:num_requests_waiting"]:
                return seen


@pytest.fixture
async def both(vllm_engine: Real) -> AsyncIterator[tuple[Engine, Engine]]:
    """The real engine and the double, which serves the same model's name."""
    async with httpx.AsyncClient(base_url=vllm_engine.url, timeout=300) as real_client:
        card = (await real_client.get("/v1/models")).json()["data"][0]
        settings = {"model": card["id"], "max_model_len": card["max_model_len"]}
        async with (
            EngineDouble(token_seconds=0.02, prefill_rate=3000, **settings) as double,
            httpx.AsyncClient(base_url=double.url, timeout=60) as client,
        ):
            yield Engine(vllm_engine.url, card["id"], real_client), Engine(double.url, card["id"], client)


def shape(value: Any, key: str = "") -> Any:
    """Keys in order, types, nulls; values only where they are part of the protocol."""
    if isinstance(value, dict):
        if key == "top_logprobs":
            return "by token"
        return [(name, shape(each, name)) for name, each in value.items()]
    if isinstance(value, list):
        shapes = [shape(each, key) for each in value]
        return [each for i, each in enumerate(shapes) if each not in shapes[:i]]
    if value is None or isinstance(value, bool) or key in _LITERAL:
        return value
    return type(value).__name__


def frame_kinds(answer: httpx.Response) -> dict[Any, list[Any]]:
    """A stream's frames by choice, in order, runs of the same kind as one; None holds those that have no choice."""
    kinds: dict[Any, list[Any]] = {}
    for event in events(answer.content):
        choices = event["choices"] if isinstance(event, dict) else []
        seen = kinds.setdefault(choices[0]["index"] if choices else None, [])
        if seen[-1:] != [shape(event)]:
            seen.append(shape(event))
    return kinds


def masked(answer: httpx.Response) -> set[bytes]:
    """The bytes of an answer's frames (or of the whole), less their strings and numbers: order, nulls and spacing."""
    text = re.sub(rb'"(?:[^"\\]|\\.)*"(:?)', lambda found: found[0] if found[1] else b"S", answer.content)
    text = re.sub(rb"-?\d+(?:\.\d+)?", b"N", text)
    return set(re.sub(rb"\[N(?:,N)*\]", b"[N]", text).split(b"\n\n"))


def said(message: str) -> str:
    """An error's message less its figures, and less the parser's own words about where JSON breaks."""
    return re.sub(r"\d+", "#", message.split(", 'ctx'", maxsplit=1)[0])


def fresh() -> list[dict[str, str]]:
    """A prompt that no cache has seen, of more than two blocks on either side."""
    return [{"role": "user", "content": f"{uuid.uuid4().hex} tell me of the fox " + "and its friends " * 20}]



ANSWERS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": HI, "max_tokens": 3}),
    (CHAT, {"messages": HI, "max_tokens": 3, "n": 2}),
    (CHAT, {"messages": HI, "max_tokens": 2, "logprobs": True, "top_logprobs": 1, "temperature": 0}),
    (CHAT, {"messages": HI, "max_tokens": 2, "return_token_ids": True}),
    (CHAT, {"messages": HI, "max_tokens": 3, "priority": 5, "min_tokens": 1, "session_id": "s", "no_such_field": {}}),
    (CHAT, {"messages": HI, "max_tokens": 2, "tools": [TOOL], "tool_choice": "none"}),
    (COMPLETION, {"prompt": "Say hi", "max_tokens": 3}),
    (COMPLETION, {"prompt": ["Say hi", "Yes"], "max_tokens": 3}),
    (COMPLETION, {"prompt": "Say hi", "max_tokens": 2, "logprobs": 1, "temperature": 0}),
    (COMPLETION, {"prompt": "Say hi", "max_tokens": 2, "return_token_ids": True}),
    (COMPLETION, {"prompt": [1, 2, 3], "max_tokens": 2, "echo": False}),
]


@pytest.mark.parametrize(
    "stream", [None, {}, {"include_usage": True}, USAGE], ids=["whole", "bare", "usage", "continuous"]
)
async def test_answers_have_the_same_shape(both: tuple[Engine, Engine], stream: dict[str, Any] | None) -> None:
    streamed = {} if stream is None else {"stream": True, "stream_options": stream}
    for path, body in ANSWERS:
        real, double = [await engine.send(path, {**body, **FIXED, **streamed}) for engine in both]
        where = f"{path} {body}"
        assert double.status_code == real.status_code == 200, where
        assert set(double.headers) == set(real.headers), where
        assert double.headers["content-type"] == real.headers["content-type"]
        if "logprobs" not in body:
            assert masked(double) == masked(real), where
        if stream is None:
            assert shape(double.json()) == shape(real.json()), where
            assert double.json()["id"] == real.json()["id"]
        else:
            assert frame_kinds(double) == frame_kinds(real), where
            assert events(double.content)[0]["id"] == events(real.content)[0]["id"]


REFUSED: list[tuple[str, Any]] = [
    (CHAT, {"model": "nope", "messages": HI}),
    (CHAT, {"messages": HI, "max_tokens": 9000}),
    (CHAT, {"messages": HI, "max_tokens": 0}),
    (CHAT, {"messages": HI, "max_tokens": -1}),
    (CHAT, {"messages": HI, "max_tokens": "5x"}),
    (CHAT, {"messages": HI, "max_tokens": 1.5}),
    (CHAT, {"messages": []}),
    (CHAT, {}),
    (CHAT, {"messages": "x"}),
    (CHAT, {"messages": HI, "temperature": -1}),
    (CHAT, {"messages": HI, "temperature": "hot"}),
    (CHAT, {"messages": HI, "top_p": 2}),
    (CHAT, {"messages": HI, "n": 0}),
    (CHAT, {"messages": HI, "n": 10**9}),
    (CHAT, {"messages": HI, "n": 2, "temperature": 0}),
    (CHAT, {"messages": HI, "stream_options": USAGE}),
    (CHAT, {"messages": HI, "cache_salt": ""}),
    (CHAT, {"messages": HI, "top_logprobs": 2}),
    (CHAT, {"messages": HI, "tool_choice": "auto"}),
    (CHAT, {"messages": HI, "tools": []}),
    (CHAT, {"messages": HI, "tools": [TOOL]}),
    (CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
    (CHAT, {"messages": HI, "add_generation_prompt": True, "continue_final_message": True}),
    (CHAT, {"messages": [{"role": "user", "content": "a " * 9000}]}),
    (CHAT, []),
    (CHAT, 5),
    (COMPLETION, {}),
    (COMPLETION, {"prompt": ""}),
    (COMPLETION, {"prompt": []}),
    (COMPLETION, {"prompt": "a " * 9000}),
    (COMPLETION, {"prompt": "x", "max_tokens": 0}),
    (COMPLETION, {"prompt": "x", "max_tokens": 9000}),
    ("/inference/v1/abort_requests", {}),
    ("/nope", {}),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_same(both: tuple[Engine, Engine], stream: bool) -> None:
    for path, body in REFUSED:
        sent = {**body, "stream": True} if stream and isinstance(body, dict) and "stream_options" not in body else body
        real, double = [await engine.send(path, sent) for engine in both]
        where = f"{path} {json.dumps(sent)[:200]}"
        assert double.status_code == real.status_code, f"{where}\n{real.text}\n{double.text}"
        assert double.headers["content-type"] == real.headers["content-type"], where
        wanted, given = real.json(), double.json()
        assert shape(given) == shape(wanted), where
        if "error" in wanted:
            assert said(given["error"].pop("message")) == said(wanted["error"].pop("message")), where
        assert given == wanted, where


async def test_unreadable_bodies_are_refused_alike(both: tuple[Engine, Engine]) -> None:
    good = json.dumps({"messages": HI, "max_tokens": 1}).encode()
    for body, kind in [
        (b"{bad", "application/json"),
        (b"", "application/json"),
        (b'{"model":"\xff"}', "application/json"),
        (good, "text/plain"),
        (good, ""),
    ]:
        headers = {"content-type": kind} if kind else {}
        real, double = [await each.client.post(CHAT, content=body, headers=headers) for each in both]
        assert double.status_code == real.status_code
        wanted, given = real.json(), double.json()
        assert shape(given) == shape(wanted)
        if "error" in wanted:
            assert said(given["error"]["message"]) == said(wanted["error"]["message"])


async def test_the_other_routes_are_alike(both: tuple[Engine, Engine]) -> None:
    for path in ("/v1/models", "/health", "/ping", "/version", "/nope", CHAT):
        real, double = [await each.client.get(path) for each in both]
        assert (double.status_code, set(double.headers)) == (real.status_code, set(real.headers)), path
        if real.content:
            assert shape(double.json()) == shape(real.json()), path
    for body in ({"prompt": "Say hi"}, {"messages": HI}):
        real, double = [await each.send("/tokenize", body) for each in both]
        assert shape(double.json()) == shape(real.json())
    samples = [set(counters((await each.client.get("/metrics")).text)) for each in both]
    assert samples[1] <= samples[0], "the double has no metric that the engine has not"


async def counted(engine: Engine, path: str, body: dict[str, Any]) -> tuple[list[Any], dict[str, float]]:
    """The answer's events (or the answer alone), and which counters grew by how much."""
    before = await engine.counters()
    answer = await engine.send(path, {**FIXED, **body})
    grown = growth(before, await engine.counters())
    return events(answer.content) if body.get("stream") else [answer.json()], grown


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_counters_and_cache_agree_with_usage(both: tuple[Engine, Engine], n: int, stream: bool) -> None:
    body: dict[str, Any] = {"max_tokens": 5, "n": n}
    if stream:
        body |= {"stream": True, "stream_options": USAGE}
    names = []
    for engine in both:
        messages = fresh()
        for again in (False, True):
            seen, grown = await counted(engine, CHAT, {**body, "messages": messages})
            usage = seen[-2]["usage"] if stream else seen[0]["usage"]
            prompt = usage["prompt_tokens"]
            possible = (prompt - 1) // 32 * 32
            hits = possible * (n if again else n - 1)
            assert usage["completion_tokens"] == 5 * n
            assert grown["vllm:prompt_tokens_total"] == prompt * n
            assert grown["vllm:generation_tokens_total"] == 5 * n
            assert grown["vllm:prefix_cache_queries_total"] == prompt * n
            assert grown.get("vllm:prefix_cache_hits_total", 0) == hits
            assert grown.get("vllm:prompt_tokens_cached_total", 0) == hits
            assert grown.get("vllm:prompt_tokens_by_source_total/local_cache_hit", 0) == hits
            assert grown["vllm:prompt_tokens_by_source_total/local_compute"] == prompt * n - hits
            assert grown["vllm:request_success_total/length"] == n
            assert grown["vllm:time_to_first_token_seconds_count"] == n
            details = usage["prompt_tokens_details"]
            reported = possible if again or (n > 1 and not stream) else 0
            assert details["cached_tokens"] == reported
            assert details["created_cache_tokens"] == prompt // 32 * 32 - reported
            names.append({name for name in grown if TIMED not in name})
    assert names[2] <= names[0]
    assert names[3] <= names[1]


async def test_a_salt_isolates_on_both(both: tuple[Engine, Engine]) -> None:
    for engine in both:
        messages, cached = fresh(), []
        for salt in ("a", "a", "b", None):
            body = {"messages": messages, "max_tokens": 1, **({"cache_salt": salt} if salt else {})}
            usage = (await engine.send(CHAT, body)).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, (usage["prompt_tokens"] - 1) // 32 * 32, 0, 0]


async def test_the_answer_is_cached_for_the_next_turn_on_both(both: tuple[Engine, Engine]) -> None:
    """Of an answer whose text is tokenized as it was generated: now and then one is not."""
    for engine in both:
        assert any([await answer_is_cached(engine) for _ in range(3)])


async def answer_is_cached(engine: Engine) -> bool:
    messages = fresh()
    first = (await engine.send(CHAT, {**FIXED, "messages": messages, "max_tokens": 70, "temperature": 0})).json()
    content = first["choices"][0]["message"]["content"]
    body = {"messages": [*messages, {"role": "assistant", "content": content}, *HI], "max_tokens": 1}
    cached: int = (await engine.send(CHAT, body)).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return bool(cached > first["usage"]["prompt_tokens"] // 32 * 32)


async def aborted_stream(engine: Engine, path: str, body: dict[str, Any], choices: int, *ids: str) -> list[Any]:
    """Aborted once each of the choices has begun: an engine knows a request's second prompt later than its first."""
    seen, aborted = b"", False
    sent = {"model": engine.model, **FIXED, **body, "stream": True, "stream_options": USAGE}
    async with engine.client.stream("POST", path, json=sent, headers={"x-request-id": "ab"}) as answer:
        async for piece in answer.aiter_raw():
            seen += piece
            begun = seen.count(b"data: ") >= 8 and all(b'"index":%d' % choice in seen for choice in range(choices))
            if begun and not aborted:
                aborted = True
                await engine.client.post("/inference/v1/abort_requests", json={"request_ids": ids})
    return events(seen)


@pytest.mark.parametrize(
    ("path", "body", "choices", "ids"),
    [
        (CHAT, {"messages": HI}, 1, ["chatcmpl-ab"]),
        (CHAT, {"messages": HI, "n": 2}, 2, ["chatcmpl-ab"]),
        (COMPLETION, {"prompt": ["The fox", "Once upon a time"]}, 2, ["cmpl-ab-0", "cmpl-ab-1", "unknown"]),
    ],
)
async def test_aborted_streams_end_alike(
    both: tuple[Engine, Engine], path: str, body: dict[str, Any], choices: int, ids: list[str]
) -> None:
    ends = []
    for engine in both:
        before = await engine.counters()
        seen = await aborted_stream(engine, path, {**body, "max_tokens": 600}, choices, *ids)
        grown = growth(before, await engine.counters())
        assert seen[-2]["usage"]["completion_tokens"] == grown["vllm:generation_tokens_total"]
        assert not {name: by for name, by in grown.items() if "request_success" in name}
        finished = [event for event in seen[:-1] if event["choices"] and event["choices"][0]["finish_reason"]]
        assert {event["choices"][0]["finish_reason"] for event in finished} == {"abort"}
        ends.append((sorted(map(repr, map(shape, finished))), shape(seen[-2]), seen[-1]))
    assert ends[0] == ends[1]


async def test_an_aborted_whole_answer_is_alike(both: tuple[Engine, Engine]) -> None:
    shapes = []
    for engine in both:
        before = await engine.counters()
        task = asyncio.create_task(engine.send(CHAT, {**FIXED, "messages": HI, "max_tokens": 300}, "whole"))
        await asyncio.sleep(1)
        await engine.client.post("/inference/v1/abort_requests", json={"request_ids": ["chatcmpl-whole"]})
        answer = (await task).json()
        grown = growth(before, await engine.counters())
        assert answer["choices"][0]["finish_reason"] == "abort"
        assert answer["usage"]["completion_tokens"] == grown["vllm:generation_tokens_total"]
        shapes.append(shape(answer))
    assert shapes[0] == shapes[1]


async def test_an_abort_before_the_first_token_is_alike(both: tuple[Engine, Engine]) -> None:
    kinds = []
    for engine in both:
        before = await engine.counters()
        text = uuid.uuid4().hex + " fox" * 3000
        task = asyncio.create_task(
            engine.send(
                CHAT,
                {"messages": [{"role": "user", "content": text}], "stream": True, "stream_options": USAGE},
                "early",
            )
        )
        await asyncio.sleep(0.5)
        await engine.client.post("/inference/v1/abort_requests", json={"request_ids": ["chatcmpl-early"]})
        seen = events((await task).content)
        kinds.append([shape(event) for event in seen])
        assert seen[-2]["usage"]["prompt_tokens"] > 3000
        assert seen[-2]["usage"]["completion_tokens"] == 0
        grown = growth(before, await engine.counters())
        assert "vllm:prompt_tokens_total" not in grown
        assert "vllm:generation_tokens_total" not in grown
    assert kinds[0] == kinds[1]


async def test_a_client_that_half_closes_stops_its_request_on_both(both: tuple[Engine, Engine]) -> None:
    for engine in both:
        before = await engine.counters()
        url = httpx.URL(engine.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        body = {**FIXED, "messages": HI, "max_tokens": 150, "stream": True, "stream_options": USAGE}
        payload = json.dumps({"model": engine.model, **body}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(payload), payload)
        )
        seen = b""
        while seen.count(b"data: ") < 8:
            seen += await reader.read(65536)
        writer.write_eof()
        seen += await asyncio.wait_for(reader.read(), 60)
        writer.close()
        last = int(re.findall(rb'"completion_tokens":(\d+)', seen)[-1])
        grown = growth(before, await engine.counters())
        assert grown["vllm:generation_tokens_total"] == last


async def replayed(endpoint: str) -> list[Any]:
    """All events that an engine still has, and the header of each batch checked."""
    seen: list[Any] = []
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(endpoint)
        await dealer.send_multipart([b"", bytes(8)])
        while True:
            empty, _, number, payload = await asyncio.wait_for(dealer.recv_multipart(), 30)
            assert empty == b""
            if number == b"\xff" * 8:
                assert payload == b""
                return seen
            stamp, events_, rank = msgspec.msgpack.decode(payload)
            assert isinstance(stamp, float)
            assert rank == 0
            seen += events_


async def test_kv_events_are_alike(vllm_engine: Real, both: tuple[Engine, Engine]) -> None:
    if vllm_engine.replica is None:
        pytest.skip("a borrowed engine does not say where its events are")
    real, _ = both
    settings: dict[str, Any] = {"model": real.model, "kv_events": "tcp://127.0.0.1:*", "kv_replay": "tcp://127.0.0.1:*"}
    async with EngineDouble(**settings) as double, httpx.AsyncClient(base_url=double.url) as client:
        assert double.events is not None
        assert double.events.replay is not None
        shapes = []
        for engine, replay in (
            (real, vllm_engine.replica.replay),
            (Engine(double.url, real.model, client), double.events.replay),
        ):
            shapes.append(await announced(engine, replay))
    assert shapes[0] == shapes[1]


async def announced(engine: Engine, replay: str) -> list[Any]:
    """The kinds of event that one salted request causes; their chain and tokens checked."""
    salt, messages = uuid.uuid4().hex, fresh()
    ids = (await engine.send("/tokenize", {"messages": messages})).json()["tokens"]
    body = {**FIXED, "messages": messages, "max_tokens": 70, "cache_salt": salt}
    usage = (await engine.send(CHAT, body)).json()["usage"]
    await asyncio.sleep(1)
    chain: list[Any] = []
    for event in await replayed(replay):
        first = bool(event.get("extra_keys")) and event["extra_keys"][0] == [salt]
        if first or (chain and event.get("parent_block_hash") == chain[-1]["block_hashes"][-1]):
            chain.append(event)
    tokens = [token for event in chain for token in event["token_ids"]]
    assert tokens[: len(ids) // 32 * 32] == ids[: len(ids) // 32 * 32]
    assert len(ids) == usage["prompt_tokens"]
    assert usage["prompt_tokens"] < len(tokens) <= usage["total_tokens"]
    assert all(len(event["token_ids"]) == 32 * len(event["block_hashes"]) for event in chain)
    return [shape(event) for event in (chain[0], chain[-1])]
