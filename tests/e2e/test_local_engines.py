"""What the engines that `forebay up` starts can do: the features that the router and the meter build on."""

import struct
from pathlib import Path

import msgspec
import openai
import pytest
import zmq
import zmq.asyncio

from tests.e2e.engines import Engine

pytestmark = pytest.mark.engine
PROMPT = "Name the capital of Italy. " * 12  # more than one block of 32 tokens


async def test_it_serves_the_model_and_tells_cached_tokens(vllm_engine: Engine) -> None:
    async with openai.AsyncOpenAI(base_url=f"{vllm_engine.url}/v1", api_key="none") as client:
        assert [model.id async for model in client.models.list()] == [vllm_engine.model]
        cached = []
        for _ in range(2):
            answer = await client.completions.create(model=vllm_engine.model, prompt=PROMPT, max_tokens=2)
            assert answer.usage
            assert answer.usage.prompt_tokens_details
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[1] is not None
    assert cached[1] >= 32


async def test_it_publishes_its_kv_events_on_a_private_socket(vllm_engine: Engine) -> None:
    if vllm_engine.replica is None:
        pytest.skip("somebody else's engine")
    context = zmq.asyncio.Context()
    replay = context.socket(zmq.DEALER)
    try:
        replay.connect(vllm_engine.replica.replay)
        await replay.send_multipart([b"", struct.pack(">Q", 0)])
        _, topic, sequence, payload = await replay.recv_multipart()
    finally:
        replay.close(0)
        context.destroy(0)
    assert topic.decode() == f"kv@127.0.0.1:{vllm_engine.replica.port}@{vllm_engine.model}"
    assert struct.unpack(">Q", sequence) == (0,)
    (_, events, *_) = msgspec.msgpack.decode(payload)
    assert events[0]["block_size"] == 32
    directory = vllm_engine.replica.replay.removeprefix("ipc://").rpartition("/")[0]
    assert Path(directory).stat().st_mode & 0o077 == 0
