"""Through the front door to an engine double and into the ledger: what tenants, engines and finance see."""

import asyncio
import contextlib
import json
import random
from typing import Any

import httpx
import msgspec
import pytest
from openai import APIError, AsyncOpenAI
from sqlalchemy import text

from forebay.platform.tenancy.principal import Scope
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import SLOW, counters, ledger, stopped, stream, unbooked


async def failovers(door: Door) -> float:
    """Requests that have moved, as an operator sees it."""
    lines = (await door.http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("forebay_failovers_total "))


async def test_the_plain_openai_client_streams_and_the_bill_agrees(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        chunks = [
            chunk
            async for chunk in await door.openai.chat.completions.create(
                model="alias",
                messages=[{"role": "user", "content": "hello there"}],
                max_tokens=7,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text
        assert {chunk.model for chunk in chunks} == {"alias"}
        usage = chunks[-1].usage
        assert usage is not None
        (record,) = await door.records(1)
        assert record["status"] == "completed"
        assert record["model"] == MODEL
        assert record["billable_output"] == usage.completion_tokens == 7
        assert record["billable_input_uncached"] + record["billable_cache_write"] == usage.prompt_tokens
        assert ledger([record]) == counters(engine)


async def test_a_whole_answer_names_the_alias_the_tier_and_the_request(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        response = await door.http.post("/v1/chat/completions", json={
            "model": "alias", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3,
            "service_tier": "priority",
        })  # fmt: skip
        body = response.json()
        assert body["model"] == "alias"
        assert body["service_tier"] == "default"  # as served, not as asked
        assert response.headers["x-request-id"].startswith("req_")
        assert response.headers["x-forebay-endpoint"] == "engine-0"
        assert int(response.headers["x-forebay-cached-tokens"]) >= 0
        assert int(response.headers["openai-processing-ms"]) >= 0
        (record,) = await door.records(1)
        assert record["request_id"] == response.headers["x-request-id"]
        assert (record["tier_requested"], record["tier_used"]) == ("priority", "default")


async def test_usage_is_shown_only_to_those_who_ask(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        silent = await stream(door, max_tokens=3)
        assert all("usage" not in event and event["choices"] for event in silent)
        asked = await stream(door, max_tokens=3, stream_options={"include_usage": True})
        assert [event["usage"] for event in asked[:-1]] == [None] * (len(asked) - 1)
        assert asked[-1]["choices"] == []
        assert asked[-1]["usage"]["completion_tokens"] == 3


async def test_completions_and_embeddings(open_door: OpenDoor) -> None:
    async with EngineDouble(embeddings=True) as engine, open_door(engine) as door:
        completion = await door.openai.completions.create(model=MODEL, prompt=["one", "two words"], max_tokens=4, n=2)
        assert len(completion.choices) == 4
        embedding = await door.openai.embeddings.create(model=MODEL, input=["one", "two words"])
        assert len(embedding.data) == 2
        records = await door.records(2)
        assert [r["api"] for r in records] == ["completions", "embeddings"]
        assert records[1]["billable_output"] == 0
        assert records[1]["billable_input_uncached"] > 0


async def test_an_engine_sees_only_what_it_should(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        secret: Any = {
            "cache_salt": "mine",
            "priority": -100,
            "request_id": "x",
            "kv_transfer_params": {"a": 1},
            "user": "bob",
        }
        await door.chat(max_tokens=2, temperature=0.5, **secret)
        await door.http.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "hello", "name": "n", "x_vendor": [1]}]},
            headers={"authorization": f"Bearer {await door.new_key()}", "x-request-id": "evil", "x-vllm-priority": "-9",
                     "x-session-id": "s", "cookie": "c"},
        )  # fmt: skip
        mine, other = (r for r in engine.requests if r.path == "/v1/chat/completions")
        assert set(msgspec.json.decode(mine.body)) == {"model", "messages", "max_tokens", "temperature", "cache_salt"}
        assert msgspec.json.decode(other.body)["messages"] == [
            {"role": "user", "content": "hello", "name": "n", "x_vendor": [1]}
        ]
        salts = {msgspec.json.decode(r.body)["cache_salt"] for r in (mine, other)}
        assert len(salts) == 2
        assert "mine" not in salts
        for seen in (mine, other):
            assert set(seen.headers) == {"host", "content-type", "content-length", "x-request-id"}
            assert seen.headers["x-request-id"].startswith("req_")
            assert door.key.encode() not in seen.body


@pytest.mark.parametrize("fault", [
    Fault(kind="status", status=500), Fault(kind="status", status=503), Fault(kind="status", status=429),
    Fault(kind="close_before_headers"), Fault(kind="close_before_headers", rst=True), Fault(kind="close_after_headers"),
    Fault(kind="error_event", after=0), Fault(kind="malformed_frame", after=0),
], ids=lambda f: f"{f.kind}-{f.status}-{f.rst}")  # fmt: skip
async def test_a_failure_before_the_first_byte_goes_to_the_other_replica(open_door: OpenDoor, fault: Fault) -> None:
    fault = msgspec.structs.replace(fault, path="/v1/chat")
    async with EngineDouble(faults=(fault,)) as broken, EngineDouble() as well, open_door(broken, well) as door:
        for number in range(12):  # whichever is picked first
            events = await stream(door, content=f"conversation {number}", max_tokens=3)
            assert events[-1]["choices"][0]["finish_reason"] == "length"
        asked = {r.headers["x-request-id"] for r in broken.requests if r.path.startswith("/v1/chat")}
        records = await door.records(12 + len(asked))
        assert sum(r["status"] == "completed" for r in records) == 12
        failed = [r for r in records if r["status"] == "failed"]
        assert failed
        assert all(r["billable_output"] == r["billable_input_uncached"] == 0 for r in failed)
        assert {r["attempt"] for r in failed} == {1}


@pytest.mark.parametrize("fault", [
    Fault(kind="error_event", after=0), Fault(kind="error_event", after=1), Fault(kind="malformed_frame", after=1),
    Fault(kind="close", after=1), Fault(kind="close_after_headers"),
], ids=lambda f: f"{f.kind}-{f.after}")  # fmt: skip
async def test_what_fails_before_the_first_token_is_no_200(open_door: OpenDoor, fault: Fault) -> None:
    """litellm#10593: an engine's 200, and even who is speaking, is held back until it has something to say."""
    fault = msgspec.structs.replace(fault, path="/v1/chat")
    async with EngineDouble(faults=(fault,)) as engine, open_door(engine) as door:
        response = await door.chat(stream=True, max_tokens=3)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_error")
        assert response.headers["content-type"] == "application/json"
        assert int(response.headers["retry-after"]) >= 1
        (record,) = await door.records(1)
        assert (record["status"], record["billable_output"]) == ("failed", 0)


async def test_a_replica_that_is_gone_costs_nothing(open_door: OpenDoor) -> None:
    async with EngineDouble() as gone, EngineDouble() as well, open_door(gone, well) as door:
        await gone.refuse()
        moved = await failovers(door)
        answers = await asyncio.gather(*(door.chat(f"conversation {n}", max_tokens=2) for n in range(20)))
        assert {a.status_code for a in answers} == {200}
        assert await failovers(door) > moved
        assert (await door.http.get("/health")).json()["status"] == "degraded"
        await gone.listen()

        async def well_again() -> bool:
            return bool((await door.http.get("/health")).json()["status"] == "ok")

        await eventually(well_again, every=0.1)


async def test_no_replica_left_is_a_503_that_says_when_to_retry(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        await engine.refuse()
        door.service.pools[0].endpoints["engine-0"].client.close()  # the connections that it has kept
        moved = await failovers(door)
        response = await door.chat(max_tokens=2)
        again = await door.chat(max_tokens=2)
        assert response.status_code == again.status_code == 503
        assert again.json()["error"]["code"] == "no_endpoint"
        assert int(again.headers["retry-after"]) >= 1
        assert (await door.http.get("/ready")).status_code == 503
        assert (await door.http.get("/health")).status_code == 200
        assert await failovers(door) == moved  # there was nowhere to go


@pytest.mark.parametrize("fault", [
    Fault(kind="close", after=4), Fault(kind="close", after=4, rst=True), Fault(kind="error_event", after=4),
    Fault(kind="malformed_frame", after=4),
], ids=lambda f: f"{f.kind}-{f.rst}")  # fmt: skip
async def test_an_engine_that_dies_while_streaming_ends_in_an_error_frame(open_door: OpenDoor, fault: Fault) -> None:
    """Portkey#1797, preloop#117, bifrost#597, litellm#39898."""
    async with EngineDouble(SLOW, faults=(fault,)) as engine, open_door(engine) as door:
        response = await door.chat(max_tokens=50, stream=True)
        frames = response.text.split("\n\n")
        assert frames[-2] == "data: [DONE]"
        error = json.loads(frames[-3].removeprefix("data: "))["error"]
        assert (error["code"], error["metadata"]) == ("engine_lost", {"reason": "template"})  # it is not known
        (record,) = await door.records(1)
        assert (record["status"], record["error"]) == ("failed", "engine_error")
        assert record["billable_output"] == 0
        assert record["engine_output"] > 0
        with pytest.raises(APIError):
            async for _ in await door.openai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True, max_tokens=50
            ):
                pass


async def test_a_stream_without_done_but_finished_is_whole(open_door: OpenDoor) -> None:
    async with EngineDouble(faults=(Fault(kind="done_missing"),)) as engine, open_door(engine) as door:
        events = await stream(door, max_tokens=3)
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        (record,) = await door.records(1)
        assert record["status"] == "completed"


async def test_zero_is_a_value(open_door: OpenDoor) -> None:
    async with EngineDouble(faults=(Fault(kind="usage_zero"),)) as engine, open_door(engine) as door:
        await door.chat(max_tokens=3)
        (record,) = await door.records(1)
        assert (record["status"], record["measured"], record["estimated"]) == ("completed", True, False)
        assert record["billable_output"] == 0


async def test_a_silent_engine_is_bridged_by_heartbeats_and_a_deadline(open_door: OpenDoor) -> None:
    fault = Fault(kind="hang_before_headers", path="/v1/chat")
    timeouts = {"heartbeatAfter": 0.3, "firstByte": 1.2}
    async with EngineDouble(faults=(fault,)) as engine, open_door(engine, timeouts=timeouts) as door:
        response = await door.chat(stream=True)
        frames = response.text.split("\n\n")
        assert response.status_code == 200
        assert frames[0] == ": heartbeat"
        assert frames.count(": heartbeat") >= 2
        assert json.loads(frames[-3].removeprefix("data: "))["error"]["code"] == "engine_timeout"
        assert frames[-2] == "data: [DONE]"
        whole = await door.chat()
        assert whole.status_code == 504
        assert {r["terminated_by"] for r in await door.records(2)} == {"deadline"}


async def test_the_openai_client_reads_through_heartbeats(open_door: OpenDoor) -> None:
    fault = Fault(kind="hang", after=2, seconds=0.9, times=1)
    async with EngineDouble(faults=(fault,)) as engine, open_door(engine, timeouts={"heartbeatAfter": 0.2}) as door:
        chunks = [
            chunk
            async for chunk in await door.openai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True, max_tokens=5
            )
        ]
        assert chunks[-1].choices[0].finish_reason == "length"


async def test_an_over_long_prompt_is_refused_before_any_engine_computes_it(open_door: OpenDoor) -> None:
    async with EngineDouble(max_model_len=256) as engine, open_door(engine) as door:
        response = await door.chat("word " * 1000)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert "256 tokens" in error["message"]
        assert (await door.chat(max_tokens=2)).status_code == 200
        (answered,) = await door.records(1)
        assert answered["status"] == "completed"


async def test_an_over_long_prompt_that_only_its_engine_can_count_is_named_as_such(open_door: OpenDoor) -> None:
    async with EngineDouble(max_model_len=256) as engine, open_door(engine, endpoint={"engine": "openai"}) as door:
        response = await door.chat("word " * 1000)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        (refused,) = await door.records(1)
        assert (refused["status"], refused["error"]) == ("failed", "context_length_exceeded")
        assert refused["engine_input_uncached"] == 0


async def test_a_revoked_key_stops_within_a_second_while_requests_run(open_door: OpenDoor) -> None:
    async with EngineDouble(SLOW) as engine, open_door(engine) as door:
        running = asyncio.create_task(door.chat(max_tokens=100, stream=True))
        await eventually(lambda: engine.scheduler.in_flight)
        await door.service.tenancy.revoke_key(door.key_id)
        began = asyncio.get_running_loop().time()
        while (response := await door.chat(max_tokens=1)).status_code != 401:
            assert asyncio.get_running_loop().time() - began < 1.0
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert (await running).text.endswith("data: [DONE]\n\n")


async def test_several_choices_bill_the_prompt_once_and_count_it_as_the_engine_does(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        response = await door.chat("hello", n=3, max_tokens=4)
        usage = response.json()["usage"]
        (record,) = await door.records(1)
        billed = record["billable_input_uncached"] + record["billable_cache_read"] + record["billable_cache_write"]
        assert billed == usage["prompt_tokens"]
        assert ledger([record])[0] == counters(engine)[0] == 3 * usage["prompt_tokens"]
        assert ledger([record])[2] == counters(engine)[2] == 12


async def test_over_a_mixed_run_the_ledger_equals_the_engines_counters(open_door: OpenDoor) -> None:
    """Normal, streamed, cancelled and failed requests at once, from two tenants, on engines that stay alive."""
    rng = random.Random(7)
    refusals = Fault(kind="status", status=500, path="/v1/chat", probability=0.1)
    async with (
        EngineDouble(token_seconds=0.005, answer_tokens=None, faults=(refusals,)) as one,
        EngineDouble(token_seconds=0.005, answer_tokens=None) as two,
        open_door(one, two) as door,
    ):
        clients = [door.http, httpx.AsyncClient(
            base_url=door.url, headers={"authorization": f"Bearer {await door.new_key()}"}, timeout=30.0)]  # fmt: skip

        async def request(number: int) -> None:
            content = f"{number % 7} " + "word " * (number % 90)
            body = {"model": MODEL, "messages": [{"role": "user", "content": content}],
                    "max_tokens": rng.randint(1, 60), "stream": number % 3 != 0}  # fmt: skip
            if number % 11 == 0:
                body["max_tokens"] = 100_000  # refused by the engine
            with contextlib.suppress(httpx.TimeoutException):
                await clients[number % 2].post(
                    "/v1/chat/completions", json=body, timeout=0.05 * (number % 5) if number % 5 else 30.0
                )

        for begin in range(0, 120, 24):
            await asyncio.gather(*(request(n) for n in range(begin, begin + 24)))
        await clients[1].aclose()
        await stopped(one, two)

        async def all_shipped() -> bool:
            return not door.service.spool.open_count and not await door.service.spool.pending(1)

        await eventually(all_shipped, every=0.1)
        async with door.service.engine.connect() as db:
            records = [dict(r) for r in (await db.execute(text("SELECT * FROM usage_records"))).mappings()]
        assert {r["status"] for r in records} == {"completed", "cancelled", "failed"}
        assert ledger(records) == counters(one, two)
        assert unbooked(door)


async def test_a_key_without_the_debug_scope_does_not_learn_the_endpoint(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        key = await door.new_key(scopes=(Scope.INFERENCE,))
        client = AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key)
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=1
        )
        assert not any(name.startswith("x-forebay-") for name in raw.headers)
        await client.close()
