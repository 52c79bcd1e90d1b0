"""A higher tier while a lower one fills the engines: who is let in, who goes first, and who makes room."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import pre_tokenizers

from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import unbooked
from tests.integration.test_waiting import BUSY, long_prefill, noted, prompt, waiting
from tests.tokenizers import save, small

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TIERS = [
    {"name": "urgent", "rank": 0, "ttft": 6, "queue": 30},
    {"name": "batch", "rank": 1, "queue": 4, "shed": "shed", "default": True},
]


async def as_tenant(door: Door, key: str, tokens: int, tier: str, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": prompt(tokens)}]
    return await door.http.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": messages, "max_tokens": 2, "stream": True, "service_tier": tier, **body},
        headers={"authorization": f"Bearer {key}"},
    )


async def test_a_lower_tiers_burst_is_turned_away_and_a_higher_ones_request_is_not(open_door: OpenDoor) -> None:
    """confidential-model-router#421: who is refused in whose burst depends on the tier, and the refusal says which."""
    async with EngineDouble(BUSY) as engine, open_door(engine, tiers=TIERS) as door:
        crowd, person = await door.new_key(), await door.new_key()
        for _ in range(3):  # until it is known how long prefills take
            assert (await as_tenant(door, person, 100, "urgent")).status_code == 200
        async with long_prefill(door, engine, 1_500):
            burst = [asyncio.create_task(as_tenant(door, crowd, 1_500, "batch")) for _ in range(20)]
            await eventually(lambda: waiting(door) > 0)
            answer = await as_tenant(door, person, 100, "urgent")
            assert answer.status_code == 200
            assert '"error"' not in answer.text
            answers = await asyncio.gather(*burst)
        refused = [one.json()["error"] for one in answers if one.status_code == 429]
        assert len(refused) > 10
        assert {error["metadata"]["tier"] for error in refused} == {"batch"}
        assert {error["code"] for error in refused} == {"rate_limit_exceeded"}
        assert all(error["metadata"]["retry_after_s"] >= 1 for error in refused)
        assert {one.status_code for one in answers} <= {200, 429}
        await eventually(lambda: unbooked(door))


async def test_who_came_last_of_a_higher_tier_is_answered_first(open_door: OpenDoor) -> None:
    async with EngineDouble(BUSY) as engine, open_door(engine, tiers=TIERS) as door, long_prefill(door, engine):
        answered: list[int] = []
        tasks = []
        for number, (tokens, tier) in enumerate(((600, "batch"), (700, "batch"), (900, "urgent")), 1):
            tasks.append(asyncio.create_task(as_tenant(door, door.key, tokens, tier)))
            tasks[-1].add_done_callback(partial(noted, answered, tokens))
            await eventually(lambda number=number: waiting(door) == number, 0.5)  # type: ignore[misc]
        assert {(await task).status_code for task in tasks} == {200}
        assert answered == [900, 600, 700]  # the longest, and the last to come


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_is_full_of_a_lower_tier_makes_room(
    open_door: OpenDoor, tmp_path: Path, stream: bool
) -> None:
    """vllm#24365, #40004: an engine stops nobody once its places are taken; what may be stopped is, and goes on."""
    tiers = [{"name": "urgent", "rank": 0, "ttft": 2}, {**TIERS[1], "queue": 60}]
    full = Settings(token_seconds=0.02, answer_tokens=None, max_running=1)
    made = small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    (tmp_path / "tokenizer").mkdir()
    model = {"tokenizer": str(save(made, tmp_path / "tokenizer", chat_template=CHATML))}
    async with EngineDouble(full) as engine, open_door(engine, tiers=tiers, model=model) as door:
        lower = as_tenant(door, door.key, 20, "batch", max_tokens=250, stream=stream, temperature=0)
        batch = asyncio.create_task(lower)
        await eventually(lambda: engine.metrics.generation_tokens > 5)
        urgent = await as_tenant(door, await door.new_key(), 20, "urgent")
        assert (urgent.status_code, batch.done()) == (200, False)  # 250 tokens take it 5 s
        assert '"error"' not in urgent.text
        assert '"error"' not in (await batch).text
        records = [record for record in await door.records(3) if record["tier_used"] == "batch"]
        assert records[0]["error"] == "preempted"
        assert records[1]["status"] == "completed"
        assert sum(record["billable_output"] for record in records) == 250  # once, whoever made it
