"""Prompts at the front door: counted before an engine computes them, placed by what is cached, no reason to fail."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.platform.config.load import load_config
from forebay.platform.local.paths import paths
from forebay.platform.tenancy.principal import Scope
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door

CHAT, EXPLAIN = "/v1/chat/completions", "/v1/explain/chat/completions"
LONG = "The weir holds back the river until the gates are raised in spring. " * 40
UNASKED = Settings(tokenize=False)  # the double's tokens are not SmolLM2's


@pytest.fixture
def tokenizer() -> str:
    weights = paths(load_config(None).stores.state_dir).weights
    if not (weights / "tokenizer.json").exists():
        pytest.skip("the tokenizer of SmolLM2 is not here: forebay up --prepare")
    return str(weights)


def body(*contents: str, **members: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    return {"model": MODEL, "messages": messages, **members}


async def explained(door: Door, request: dict[str, Any]) -> dict[str, Any]:
    response = await door.http.post(EXPLAIN, json=request)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def ways(door: Door) -> dict[str, str]:
    found: dict[str, str] = (await door.http.get("/health")).json()["prompts"][MODEL]
    return found


async def test_explaining_tells_where_a_request_would_go_and_sends_nothing(open_door: OpenDoor, tokenizer: str) -> None:
    async with (
        EngineDouble(UNASKED) as first,
        EngineDouble(UNASKED) as second,
        open_door(first, second, model={"tokenizer": tokenizer}) as door,
    ):
        answer = await explained(door, body(LONG))
        assert answer["model"] == MODEL
        assert answer["prompt"]["rung"] == "segments"
        assert answer["prompt"]["exact"]
        assert answer["prompt"]["tokens"] > 400
        assert [one["endpoint"] for one in answer["candidates"]] == ["engine-0", "engine-1"]
        assert sum(one["chosen"] for one in answer["candidates"]) == 1
        assert all(one["predicted_s"] > 0 and one["cached"] == 0 for one in answer["candidates"])
        assert await door.ledger() == []
        placed = await door.http.post(CHAT, json=body(LONG, max_tokens=2))
        later = await explained(door, body(LONG, "yes", "and now?"))
        (chosen,) = [one for one in later["candidates"] if one["chosen"]]
        assert chosen["endpoint"] == placed.headers["x-forebay-endpoint"]
        assert chosen["cached"] > 400


async def test_explaining_tells_the_tier_the_tenants_weight_and_whether_it_would_be_let_in(open_door: OpenDoor) -> None:
    async with EngineDouble(UNASKED) as engine, open_door(engine) as door:
        answer = await explained(door, body(LONG))
        assert (answer["tier"], answer["weight"], answer["before"], answer["refused"]) == ("default", 1, 0, None)
        assert answer["predicted_s"] > 0
        (tenant,) = await door.service.tenancy.tenants()
        await door.service.tenancy.set_weight(tenant.id, 2.5)

        async def known() -> bool:
            return bool((await explained(door, body(LONG)))["weight"] == 2.5)

        await eventually(known)


async def test_only_keys_that_may_debug_are_told(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        key = await door.new_key(scopes=(Scope.INFERENCE,))
        headers = {"authorization": f"Bearer {key}"}
        refused = await door.http.post(EXPLAIN, json=body("hello"), headers=headers)
        assert refused.status_code == 403
        answered = await door.http.post(CHAT, json=body("hello"), headers=headers)
        assert answered.status_code == 200
        assert not [name for name in answered.headers if name.startswith("x-forebay")]


async def test_a_growing_conversation_is_read_from_where_it_stopped(open_door: OpenDoor, tokenizer: str) -> None:
    async with EngineDouble(UNASKED) as engine, open_door(engine, model={"tokenizer": tokenizer}) as door:
        contents = [LONG]
        for turn in range(4):
            response = await door.http.post(CHAT, json=body(*contents, max_tokens=1))
            assert response.status_code == 200
            alone = await door.new_key()
            whole = await door.http.post(
                EXPLAIN, json=body(*contents), headers={"authorization": f"Bearer {alone}"}
            )
            assert whole.json()["prompt"] == (await explained(door, body(*contents)))["prompt"]
            contents += [f"answer {turn}", f"question {turn} {LONG[:300]}"]
        text = (await door.http.get("/metrics")).text
        counted = {
            how: sum(
                float(line.split()[-1])
                for line in text.splitlines()
                if line.startswith("forebay_prompts_read_tokens_total") and f'how="{how}"' in line
            )
            for how in ("remembered", "tokenized")
        }
        assert counted["remembered"] > 2_000


async def test_a_conversation_that_forks_often_at_one_message_is_read_as_if_it_never_had(
    open_door: OpenDoor, tokenizer: str
) -> None:
    async with EngineDouble(UNASKED) as engine, open_door(engine, model={"tokenizer": tokenizer}) as door:
        contents = [f"{number} {LONG[:700]}" for number in range(40)]
        await door.http.post(CHAT, json=body(*contents, max_tokens=1))
        for fork in range(4):
            request = body(*contents[:30], f"fork {fork} {LONG[:300]}", max_tokens=1)
            assert (await door.http.post(CHAT, json=request)).status_code == 200
            alone = await door.new_key()
            whole = await door.http.post(EXPLAIN, json=request, headers={"authorization": f"Bearer {alone}"})
            assert whole.json()["prompt"] == (await explained(door, request))["prompt"]


async def test_a_prompt_past_the_models_context_is_refused_here(open_door: OpenDoor, tokenizer: str) -> None:
    model = {"tokenizer": tokenizer, "contextLength": 300}
    async with EngineDouble(UNASKED) as engine, open_door(engine, model=model) as door:
        for stream in (False, True):
            response = await door.http.post(CHAT, json=body(LONG, stream=stream))
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
            assert "300 tokens" in error["message"]
        response = await door.http.post("/v1/completions", json={"model": MODEL, "prompt": [1] * 300})
        assert response.json()["error"]["param"] == "prompt"
        assert (await door.http.post("/v1/completions", json={"model": MODEL, "prompt": [1] * 299})).status_code == 200
        huge = await door.http.post(CHAT, json=body("word " * 4_000_000))
        assert huge.json()["error"]["code"] == "context_length_exceeded"
        assert len(await door.records(1)) == 1


async def test_engines_with_another_tokenizer_are_noticed_and_asked(open_door: OpenDoor, tokenizer: str) -> None:
    async with EngineDouble(kv_events="tcp://127.0.0.1:0", kv_replay="tcp://127.0.0.1:0") as engine:
        assert engine.events is not None
        events: dict[str, Any] = {"kvEvents": engine.events.endpoint, "kvReplay": engine.events.replay}
        async with open_door(engine, endpoint=events, model={"tokenizer": tokenizer}) as door:

            async def disputed() -> bool:
                return (await ways(door))["rung"] == "engine"

            await eventually(disputed, 10.0, every=0.1)
            assert "other tokens" in (await ways(door))["reason"]
            contents = [LONG]
            for turn in range(3):
                response = await door.http.post(CHAT, json=body(*contents, max_tokens=8))
                usage = response.json()["usage"]
                answer = response.json()["choices"][0]["message"]["content"]
                predicted = int(response.headers["x-forebay-cached-tokens"])
                assert predicted == usage["prompt_tokens_details"]["cached_tokens"]
                assert (predicted > 300) == (turn > 0)
                contents += [answer, f"question {turn}"]


@pytest.mark.parametrize("fault", ["missing", "broken", "template"])
async def test_what_cannot_be_loaded_costs_no_answer(
    fault: str, open_door: OpenDoor, tokenizer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    if fault != "missing":
        text = Path(tokenizer, "tokenizer.json").read_text()
        (directory / "tokenizer.json").write_text(text if fault == "template" else text[:1000])
        (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ raise_exception('no') }}"}))
    async with (
        EngineDouble() as first,
        EngineDouble() as second,
        open_door(first, second, model={"tokenizer": str(directory)}) as door,
    ):
        placed = [await door.http.post(CHAT, json=body(*[LONG] * n, max_tokens=1)) for n in (1, 3, 5)]
        assert [one.status_code for one in placed] == [200, 200, 200]
        assert len({one.headers["x-forebay-endpoint"] for one in placed}) == 1
        if fault != "template":
            assert str(directory) in (await ways(door))["reason"]
            assert str(directory) in caplog.text
