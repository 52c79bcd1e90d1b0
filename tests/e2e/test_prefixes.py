"""The front door over two real vLLM replicas: what it says is cached is what the engines then find."""

from pathlib import Path
from typing import Any

import pytest

from forebay.platform.local.paths import Paths
from tests.e2e.engines import Engine
from tests.eventually import eventually
from tests.integration.door import MODEL, Door, config, opened

pytestmark = pytest.mark.engine
BLOCK = 32
SYSTEM = "You answer in one short sentence, and you never speak of anything but what you were asked about. " * 3


def members(engines: tuple[Engine, ...], where: Paths) -> dict[str, Any]:
    events = [{"kvEvents": one.replica.events, "kvReplay": one.replica.replay} for one in engines if one.replica]
    return {"endpoints": events, "model": {"tokenizer": str(where.weights)}}


async def turn(door: Door, messages: list[dict[str, str]]) -> tuple[str, int, int, int]:
    """Asks and appends the answer: the endpoint, tokens predicted to be cached, tokens that were, tokens in all."""
    body = {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    response = await door.http.post("/v1/chat/completions", json=body, timeout=300.0)
    assert response.status_code == 200, response.text
    answer = response.json()
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    usage = answer["usage"]
    headers = response.headers
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return headers["x-forebay-endpoint"], int(headers["x-forebay-cached-tokens"]), cached, usage["prompt_tokens"]


async def explained(door: Door, messages: list[dict[str, str]]) -> dict[str, int]:
    """Tokens of the conversation that each endpoint is said to hold."""
    response = await door.http.post("/v1/explain/chat/completions", json={"model": MODEL, "messages": messages})
    assert response.status_code == 200, response.text
    return {one["endpoint"]: one["cached"] for one in response.json()["candidates"]}


async def test_every_turn_lands_on_its_context_and_finds_what_was_predicted(
    vllm_pair: tuple[Engine, Engine], engine_state: Paths, database: str, valkey: str, tmp_path: Path
) -> None:
    if any(engine.replica is None for engine in vllm_pair):
        pytest.skip("an engine is somebody else's (FOREBAY_VLLM_URL)")
    configured = config(tmp_path, vllm_pair, **members(vllm_pair, engine_state))
    async with opened(configured, database, valkey) as door:
        await eventually(lambda: door.service.routes, 30, every=0.1)
        talks = [[{"role": "system", "content": f"{n} {SYSTEM}"}] for n in range(3)]
        homes: dict[int, str] = {}
        for question in ("What is a river?", "And a bridge?", "Why do people build them?", "Where?"):
            for number, messages in enumerate(talks):
                before = len(messages)
                messages.append({"role": "user", "content": f"{question} Number {number}."})
                endpoint, predicted, cached, tokens = await turn(door, messages)
                assert predicted == cached, (number, messages)
                if before > 1:
                    assert endpoint == homes[number]
                    assert cached > tokens - len(question) - 24 - 2 * BLOCK
                homes[number] = endpoint
        assert len(set(homes.values())) == 2

        names = dict(zip(("engine-0", "engine-1"), vllm_pair, strict=True))
        victim = names.pop(homes[0])
        (other,) = names
        assert (await explained(door, talks[0]))[homes[0]] > 0
        victim.kill()
        await eventually(lambda: not door.service.router.states("main")[homes[0]].available, 30, every=0.1)
        talks[0].append({"role": "user", "content": "Go on."})
        endpoint, predicted, cached, _ = await turn(door, talks[0])
        assert (endpoint, predicted, cached) == (other, 0, 0)
        await eventually(victim.ready, 240, every=1.0)
        await eventually(lambda: door.service.router.states("main")[homes[0]].available, 30, every=0.1)
        held = await explained(door, talks[0])
        assert held[homes[0]] == 0
        assert held[other] > 0
        talks[0].append({"role": "user", "content": "And then?"})
        endpoint, predicted, cached, _ = await turn(door, talks[0])
        assert endpoint == other
        assert predicted == cached > 0
