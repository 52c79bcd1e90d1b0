"""KV events and their replay, as a router would read them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.doubles.engine import EngineDouble

LONG = "a story of many foxes and their rivers " * 8
END = b"\xff" * 8


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble(
        kv_events="tcp://127.0.0.1:*",
        kv_replay="tcp://127.0.0.1:*",
        kv_topic="kv@here@model",
        block_size=16,
        max_model_len=256,
        cache_blocks=16,
    ) as running:
        yield running


@pytest.fixture
def context() -> Any:
    with zmq.asyncio.Context() as made:
        yield made


async def ask(engine: EngineDouble, text: str, **fields: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=engine.url) as client:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 20, **fields}
        answer: dict[str, Any] = (await client.post("/v1/chat/completions", json=body)).json()
        return answer


async def replay(engine: EngineDouble, context: Any, start: int = 0) -> list[tuple[bytes, int, Any]]:
    assert engine.events is not None
    batches: list[tuple[bytes, int, Any]] = []
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(engine.events.replay)
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            empty, topic, number, payload = await asyncio.wait_for(dealer.recv_multipart(), 5)
            assert empty == b""
            if number == END:
                assert (topic, payload) == (b"", b"")
                return batches
            batches.append((topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))


@pytest.fixture
async def subscriber(engine: EngineDouble, context: Any) -> AsyncIterator[Any]:
    assert engine.events is not None
    with context.socket(zmq.SUB) as sub:
        sub.connect(engine.events.endpoint)
        sub.subscribe(b"kv@")
        await asyncio.sleep(0.1)
        yield sub


async def test_a_subscriber_hears_of_prompt_and_answer(engine: EngineDouble, subscriber: Any) -> None:
    usage = (await ask(engine, LONG, cache_salt="s"))["usage"]
    topic, number, payload = await asyncio.wait_for(subscriber.recv_multipart(), 5)
    stamp, events, rank = msgspec.msgpack.decode(payload)
    assert (topic, number, rank) == (b"kv@here@model", bytes(8), 0)
    assert isinstance(stamp, float)
    prompt, answered = events
    assert list(prompt) == [
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
        "extra_keys", "group_idx", "kv_cache_spec_kind",
    ]  # fmt: skip
    full = usage["prompt_tokens"] // 16
    assert len(prompt["block_hashes"]) == len(prompt["extra_keys"]) == full
    assert len(prompt["token_ids"]) == full * 16
    assert (prompt["parent_block_hash"], prompt["extra_keys"][:2]) == (None, [["s"], None])
    assert answered["parent_block_hash"] == prompt["block_hashes"][-1]
    assert len(answered["block_hashes"]) == 1


async def test_tokens_in_events_are_those_of_tokenize(engine: EngineDouble, context: Any) -> None:
    await ask(engine, LONG)
    async with httpx.AsyncClient(base_url=engine.url) as client:
        body = {"messages": [{"role": "user", "content": LONG}]}
        ids = (await client.post("/tokenize", json=body)).json()["tokens"]
    event = (await replay(engine, context))[0][2][1][0]
    assert event["token_ids"] == ids[: len(event["token_ids"])]


async def test_evictions_are_announced_and_the_replay_starts_where_asked(engine: EngineDouble, context: Any) -> None:
    for number in range(4):
        await ask(engine, f"{number} {LONG}")
    batches = await replay(engine, context)
    assert [number for _, number, _ in batches] == list(range(len(batches)))
    kinds = {event["type"] for _, _, batch in batches for event in batch[1]}
    assert kinds == {"BlockStored", "BlockRemoved"}
    removed = next(event for _, _, batch in batches for event in batch[1] if event["type"] == "BlockRemoved")
    assert list(removed) == ["type", "block_hashes", "medium", "group_idx"]
    assert [number for _, number, _ in await replay(engine, context, 2)] == list(range(2, len(batches)))


async def test_a_lost_batch_leaves_a_gap_that_the_replay_fills(
    engine: EngineDouble, context: Any, subscriber: Any
) -> None:
    assert engine.events is not None
    engine.events.lose(1)
    await ask(engine, LONG)
    await ask(engine, "again " + LONG)
    number = (await asyncio.wait_for(subscriber.recv_multipart(), 5))[1]
    assert int.from_bytes(number, "big") == 1
    assert [number for _, number, _ in await replay(engine, context)] == [0, 1]


async def test_a_reset_clears_everything(engine: EngineDouble, context: Any) -> None:
    await ask(engine, LONG)
    async with httpx.AsyncClient(base_url=engine.url) as client:
        await client.post("/reset_prefix_cache")
    assert (await replay(engine, context))[-1][2][1] == [{"type": "AllBlocksCleared"}]
    assert (await ask(engine, LONG))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
