"""SIGKILL to a real vLLM replica in the middle of its streams: each is whole, as if one engine had answered it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from forebay.platform.local.paths import Paths
from tests.e2e.engines import Engine
from tests.eventually import eventually
from tests.integration.door import MODEL, Door, config, opened
from tests.integration.failing import CHAT, TEXT, events, said

pytestmark = pytest.mark.engine
STREAMS = 8
IDS = 2  # of them, whose prompts are token ids
TOKENS = 80
# Answers whose every next token is far more likely than any other (measured): greedy ones of a small model are else not
# the same from run to run, since its engine rounds otherwise in other company.
LINES = (
    "red, blue, green", "one, two, three", "gold, silver, iron", "salt, pepper, oil", "north, east, south, west",
    "do, re, mi, fa", "spring, summer, autumn, winter", "sun, moon, star",
)  # fmt: skip


def question(number: int) -> dict[str, Any]:
    line = LINES[number]
    said_before = {"role": "assistant", "content": ", ".join([line] * 24)}
    repeat = {"role": "user", "content": f"Repeat: {line}"}
    return {
        "model": MODEL, "messages": [repeat, said_before, repeat], "max_tokens": TOKENS, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
        "stop": ["nowhere in the answer"] if number % 2 else None,  # its engine keeps something back
    }  # fmt: skip


async def as_ids(engine: Engine, number: int) -> dict[str, Any]:
    """The same question as a completion of token ids."""
    asked = question(number)
    async with httpx.AsyncClient(base_url=engine.url, timeout=600.0) as client:
        answer = await client.post("/tokenize", json={"model": MODEL, "messages": asked.pop("messages")})
    return {**asked, "prompt": answer.json()["tokens"]}


async def ask(base: str, request: dict[str, Any], key: str = "") -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=base, timeout=600.0) as client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        response = await client.post(TEXT if "prompt" in request else CHAT, json=request, headers=headers)
        assert response.status_code == 200, response.text
        return events(response.text)


def only(door: Door, name: str | None) -> None:
    """Send new requests to this endpoint alone; to all of them for None."""
    routing = door.service.routing
    assert routing is not None
    specs = routing.roster.pools["main"]
    shut = [msgspec.structs.replace(s, draining="" if name in (None, s.name) else "for the test") for s in specs]
    routing.reconcile("main", shut)


async def test_eight_streams_survive_the_engine_that_they_ran_on(
    vllm_pair: tuple[Engine, Engine], engine_state: Paths, database: str, valkey: str, tmp_path: Path
) -> None:
    victim, other = vllm_pair
    if victim.replica is None:
        pytest.skip("the engine is somebody else's (FOREBAY_VLLM_URL)")
    configured = config(tmp_path, vllm_pair, model={"tokenizer": str(engine_state.weights)})
    async with opened(configured, database, valkey) as door:
        only(door, "engine-0")
        chats = [question(n) for n in range(STREAMS - IDS)]
        requests = [*chats, *[await as_ids(other, n) for n in range(STREAMS - IDS, STREAMS)]]
        running = [asyncio.create_task(ask(door.url, one, door.key)) for one in requests]
        live = door.service.inferences._relay._means.live
        await eventually(lambda: sum(one.begun for one in live.values()) == STREAMS, 120, every=0.05)
        await asyncio.sleep(1.0)
        only(door, None)
        assert not any(task.done() for task in running)
        victim.kill()
        answers = await asyncio.gather(*running)
        records = await _all(door)
        whole = await asyncio.gather(*(ask(other.url, one) for one in requests))

    failed = [found[-1] for found in answers if any("error" in event for event in found)]
    assert not failed
    for number, (found, expected) in enumerate(zip(answers, whole, strict=True)):
        assert said(found) == said(expected), number
        usage = found[-1]["usage"]
        assert usage["completion_tokens"] == expected[-1]["usage"]["completion_tokens"], number
        assert usage["prompt_tokens"] == expected[-1]["usage"]["prompt_tokens"], number
        assert len({event["id"] for event in found}) == len({event["created"] for event in found}) == 1
        chain = sorted((r for r in records if found[0]["id"].endswith(r["request_id"])), key=lambda r: r["attempt"])
        assert [(r["status"], r["endpoint"]) for r in chain] == [("continued", "engine-0"), ("completed", "engine-1")]
        assert sum(r["billable_output"] for r in chain) == usage["completion_tokens"]
        prompt = sum(r[f"billable_{kind}"] for r in chain for kind in ("input_uncached", "cache_read", "cache_write"))
        assert prompt == usage["prompt_tokens"]
        assert chain[1]["billable_output"] == chain[1]["engine_output"]
    assert len(records) == 2 * STREAMS
    await eventually(victim.ready, 180, every=1.0)


async def _all(door: Door) -> list[dict[str, Any]]:
    service = door.service
    await eventually(
        lambda: not (service.inferences.gate.in_flight or service.spool.open_count or service.spool.unshipped), 60.0
    )
    return await door.ledger()
