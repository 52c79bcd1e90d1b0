"""The front door before two real vLLM replicas: what the ledger says and what the engines counted are the same."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.platform.local.paths import Paths
from tests.doubles.wire import counters, growth
from tests.e2e.engines import Engine
from tests.eventually import eventually
from tests.integration.door import MODEL, Door, config, opened

pytestmark = pytest.mark.engine
CHAT = "/v1/chat/completions"
PROMPT, CACHED, GENERATED = (
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:generation_tokens_total",
)
STORY = "Tell me a long story about a fox who crosses a river with a goose and a sack of corn, and spare no detail. "


async def counted(engines: tuple[Engine, ...]) -> list[dict[str, float]]:
    """The engines' own counters, once nothing runs on any of them."""
    async with httpx.AsyncClient(timeout=60.0) as client:

        async def idle() -> bool:
            texts = [(await client.get(f"{engine.url}/metrics")).text for engine in engines]
            return all(counters(found).get("vllm:num_requests_running") == 0 for found in texts)

        await eventually(idle, 60, every=0.3)
        return [counters((await client.get(f"{engine.url}/metrics")).text) for engine in engines]


def totals(records: list[dict[str, Any]]) -> tuple[int, int, int]:
    return (
        sum(r["engine_input_uncached"] + r["engine_cache_read"] + r["engine_cache_write"] for r in records),
        sum(r["engine_cache_read"] for r in records),
        sum(r["engine_output"] for r in records),
    )


def message(content: str, **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **members}


async def leave_after(door: Door, events: int, body: dict[str, Any]) -> None:
    """A client that closes its connection in the middle of a stream."""
    async with door.http.stream("POST", CHAT, json=body, timeout=300.0) as response:
        lines = response.aiter_lines()
        seen = 0
        async for line in lines:
            seen += line.startswith("data: ")
            if seen >= events:
                return


async def give_up(door: Door, seconds: float, body: dict[str, Any]) -> None:
    with contextlib.suppress(httpx.TimeoutException):
        await door.http.post(CHAT, json=body, timeout=seconds)


async def test_over_a_mixed_run_the_ledger_equals_the_engines_counters(
    vllm_pair: tuple[Engine, Engine], engine_state: Paths, database: str, valkey: str, tmp_path: Path
) -> None:
    configured = config(tmp_path, vllm_pair, model={"tokenizer": str(engine_state.weights)})
    async with opened(configured, database, valkey) as door:
        before = await counted(vllm_pair)
        for turn in range(3):  # the same beginnings again and again: cache hits
            await asyncio.gather(
                door.http.post(CHAT, json=message(STORY * 4, max_tokens=8), timeout=300.0),
                door.http.post(CHAT, json=message(STORY * 5, max_tokens=12, stream=True), timeout=300.0),
                leave_after(door, 6 + turn, message(STORY * 3, max_tokens=400, stream=True)),
                give_up(door, 2.0 + turn, message(STORY * 2 + str(turn), max_tokens=400)),
                give_up(door, 0.15, message(STORY * 40 + str(turn), max_tokens=5, stream=True)),
                door.http.post(CHAT, json=message("hi", max_tokens=100_000), timeout=300.0),
                door.http.post(CHAT, json=message("word " * 9000), timeout=300.0),
                door.http.post(
                    "/v1/completions", json={"model": MODEL, "prompt": STORY * 3, "max_tokens": 6}, timeout=300.0
                ),
            )
        service = door.service
        await eventually(
            lambda: not (service.inferences.gate.in_flight or service.spool.open_count or service.spool.unshipped), 60.0
        )
        # The prompts past the context were refused before any attempt; so may those be who left within moments.
        records = await door.ledger()
        assert 18 <= len(records) <= 21, len(records)
        after = await counted(vllm_pair)
        grown = [growth(a, b) for a, b in zip(before, after, strict=True)]
        assert {r["status"] for r in records} == {"completed", "cancelled", "failed"}
        expected = tuple(sum(g.get(name, 0) for g in grown) for name in (PROMPT, CACHED, GENERATED))
        assert totals(records) == expected
        assert expected[1] > 0
        for name, growth_here in (("engine-0", grown[0]), ("engine-1", grown[1])):
            mine = totals([r for r in records if r["endpoint"] == name])
            assert mine == tuple(growth_here.get(counter, 0) for counter in (PROMPT, CACHED, GENERATED))
        for r in records:
            charged = r["status"] != "failed"
            for kind in ("input_uncached", "cache_read", "cache_write", "output"):
                assert r[f"billable_{kind}"] == (r[f"engine_{kind}"] if charged else 0)
        assert all(r["measured"] for r in records)


async def test_of_several_choices_and_prompts_the_totals_are_exact(
    vllm_pair: tuple[Engine, Engine], database: str, valkey: str, tmp_path: Path
) -> None:
    async with opened(config(tmp_path, vllm_pair), database, valkey) as door:
        before = await counted(vllm_pair)
        answers = [
            await door.http.post(CHAT, json=message(STORY, n=3, max_tokens=6), timeout=300.0),
            await door.http.post(CHAT, json=message(STORY, n=2, max_tokens=6, stream=True), timeout=300.0),
            await door.http.post(
                "/v1/completions",
                json={"model": MODEL, "prompt": [STORY, "One"], "max_tokens": 6, "n": 2},
                timeout=300.0,
            ),
        ]
        assert {answer.status_code for answer in answers} == {200}
        await leave_after(door, 9, message(STORY, n=2, max_tokens=300, stream=True))
        records = await door.records(4)
        after = await counted(vllm_pair)
        grown = [growth(a, b) for a, b in zip(before, after, strict=True)]
        found = totals(records)
        summary = [(r["api"], r["status"], r["stream"], totals([r]), r["finish_reason"]) for r in records]
        assert found[0] == sum(g.get(PROMPT, 0) for g in grown), summary
        assert found[2] == sum(g.get(GENERATED, 0) for g in grown), summary
        assert not any(r["measured"] for r in records)


async def test_a_killed_engine_loses_no_request_that_had_not_begun_to_answer(
    vllm_pair: tuple[Engine, Engine], database: str, valkey: str, tmp_path: Path
) -> None:
    victim, _ = vllm_pair
    if victim.replica is None:
        pytest.skip("the engine is somebody else's (FOREBAY_VLLM_URL)")
    async with opened(config(tmp_path, vllm_pair), database, valkey) as door:
        long = [asyncio.create_task(_stream(door, message(f"{n} {STORY}", max_tokens=60))) for n in range(4)]
        await eventually(lambda: any(one.in_flight for one in door.service.router.states("main").values()), 30)
        await asyncio.sleep(1.0)
        victim.kill()
        late = [asyncio.create_task(_stream(door, message(f"late {n}", max_tokens=8))) for n in range(6)]
        outcomes = await asyncio.gather(*long, *late)
        assert all(status == 200 for status, _, _ in outcomes)
        assert all(error is None or began for _, began, error in outcomes)
        assert all(error is None for _, _, error in outcomes[len(long) :])
        whole = sum(error is None for _, _, error in outcomes)

        async def served() -> bool:
            return bool(sum(r["status"] == "completed" for r in await door.ledger()) == whole)

        await eventually(served, 20, every=0.2)
    await eventually(victim.ready, 180, every=1.0)


async def _stream(door: Door, body: dict[str, Any]) -> tuple[int, bool, str | None]:
    """The status, whether any content had come, and the error that ended the stream, if one did."""
    response = await door.http.post(CHAT, json={**body, "stream": True}, timeout=300.0)
    frames = [f for f in response.text.split("\n\n") if f.startswith("data: {")]
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    errors = [event["error"]["code"] for event in events if "error" in event]
    assert response.text.endswith("data: [DONE]\n\n")
    return response.status_code, len(events) > len(errors), errors[0] if errors else None
