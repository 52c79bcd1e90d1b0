"""A tenant that leaves stops the engine, and pays for what was generated until then."""

import asyncio
import itertools

import httpx
import pytest

from forebay.platform.relay.halt import DRAIN_S
from tests.doubles.engine.server import EngineDouble
from tests.doubles.scripted import SSE, ScriptedEngine, chunk
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL
from tests.integration.observed import SLOW, counters, ledger, stopped
from tests.integration.test_broken_engines import at_rest, event


async def test_a_client_that_leaves_a_stream_stops_the_engine_and_pays_for_what_it_got(open_door: OpenDoor) -> None:
    """litellm#33736, #36008, #37558; production-stack#634, litellm#8754, vllm#54947."""
    async with EngineDouble(SLOW) as engine, open_door(engine) as door:
        async with door.http.stream(
            "POST",
            "/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": "hello"}],
                "max_tokens": 2000,
                "stream": True,
            },
        ) as response:
            lines = response.aiter_lines()
            for _ in range(12):
                await anext(lines)
        await stopped(engine)
        (record,) = await door.records(1)
        assert (record["status"], record["terminated_by"]) == ("cancelled", "client")
        assert record["measured"]
        assert 0 < record["engine_output"] < 100
        assert record["billable_output"] == record["engine_output"]
        assert ledger([record]) == counters(engine)


@pytest.mark.parametrize("scale_out", [True, False])
async def test_a_client_that_leaves_a_whole_answer_stops_the_engine(open_door: OpenDoor, scale_out: bool) -> None:
    """litellm#13245, #17364."""
    async with EngineDouble(SLOW, scale_out=scale_out) as engine, open_door(engine) as door:
        with pytest.raises(httpx.ReadTimeout):
            await door.http.post(
                "/v1/chat/completions",
                timeout=0.5,
                json={"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2000},
            )
        await stopped(engine)
        (record,) = await door.records(1)
        assert record["status"] == "cancelled"
        assert record["measured"] is scale_out
        if scale_out:
            assert ledger([record]) == counters(engine)
            assert record["billable_output"] > 0


async def test_without_abort_by_id_leaving_a_stream_is_exact_too(open_door: OpenDoor) -> None:
    """openai-openapi#539, vllm#5708."""
    async with EngineDouble(SLOW, scale_out=False) as engine, open_door(engine) as door:
        for _ in range(2):
            async with door.http.stream(
                "POST",
                "/v1/chat/completions",
                json={
                    "model": MODEL,
                    "messages": [{"role": "user", "content": "hello"}],
                    "max_tokens": 2000,
                    "stream": True,
                },
            ) as response:
                await anext(response.aiter_lines())
        await stopped(engine)
        records = await door.records(2)
        assert {r["status"] for r in records} == {"cancelled"}
        assert ledger(records)[2] == counters(engine)[2]
        assert ledger(records)[0] == counters(engine)[0]


async def test_an_engine_that_does_not_stop_holds_nothing_here(open_door: OpenDoor) -> None:
    """sglang#36333, #36475: one that goes on generating for nobody is hung up on, and what it had told is what is
    billed."""
    ended = asyncio.Event()

    async def deaf(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE)
        try:
            for tokens in itertools.count(1):
                writer.write(chunk(event("a", tokens)))
                await writer.drain()
                await asyncio.sleep(0.02)
        finally:
            ended.set()

    async with ScriptedEngine(deaf, model=MODEL) as engine, open_door(engine) as door:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with door.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            for _ in range(6):
                await anext(lines)
        await asyncio.wait_for(ended.wait(), DRAIN_S + 2)
        (record,) = await door.records(1)
        assert (record["status"], record["terminated_by"]) == ("cancelled", "client")
        assert 0 < record["billable_output"] <= record["engine_output"]
        await eventually(lambda: at_rest(door))


async def test_leaving_before_the_first_token_is_free(open_door: OpenDoor) -> None:
    async with EngineDouble(SLOW, prefill_rate=20.0) as engine, open_door(engine) as door:
        with pytest.raises(httpx.ReadTimeout):
            await door.http.post("/v1/chat/completions", timeout=0.4, json={
                "model": MODEL, "messages": [{"role": "user", "content": "word " * 100}], "stream": True})  # fmt: skip
        await stopped(engine)
        (record,) = await door.records(1)
        assert record["status"] == "cancelled"
        assert ledger([record]) == counters(engine) == (0, 0, 0)
