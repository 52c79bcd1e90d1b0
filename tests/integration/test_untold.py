"""What an engine does not tell is counted here, and billed as such: never more than the engine did."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from tests.doubles.engine import tokens
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL
from tests.integration.failing import CHAT, TEXT, body, events, said, text_body
from tests.integration.templates import known_tokens

ALONE = Settings(tokenize=False, answer_tokens=None)
UNTOLD = Fault(kind="usage_missing")
PROMPT = "once upon a time"


def text(**members: Any) -> dict[str, Any]:
    return text_body(PROMPT, **{"max_tokens": 12, "stream_options": None, **members})


def alarms(part: str, counted: str) -> float:
    labels = {"model": MODEL, "part": part, "counted": counted}
    return REGISTRY.get_sample_value("forebay_usage_untold_total", labels) or 0.0


@pytest.mark.parametrize("engine", ["vllm", "openai"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_whose_engine_tells_nothing_is_billed_by_its_tokens(
    open_door: OpenDoor, tmp_path: Path, engine: str, stream: bool
) -> None:
    model, before = known_tokens(tmp_path), (alarms("prompt", "tokens"), alarms("output", "tokens"))
    async with (
        EngineDouble(ALONE, faults=(UNTOLD,)) as double,
        open_door(double, model=model, endpoint={"engine": engine}) as door,
    ):
        assert (await door.http.post(TEXT, json=text(stream=stream))).status_code == 200
        (record,) = await door.records(1)
    assert (record["status"], record["measured"], record["estimated"]) == ("completed", False, True)
    assert (record["billable_input_uncached"], record["billable_output"]) == (len(tokens.encode(PROMPT)), 12)
    assert (record["engine_input_uncached"], record["engine_output"]) == (0, 0)
    assert (alarms("prompt", "tokens"), alarms("output", "tokens")) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize(("engine", "faults"), [("openai", ()), ("vllm", (UNTOLD,))])
async def test_a_client_that_leaves_an_engine_which_has_told_nothing_pays_for_what_it_got(
    open_door: OpenDoor, tmp_path: Path, engine: str, faults: tuple[Fault, ...]
) -> None:
    slow = msgspec.structs.replace(ALONE, token_seconds=0.02, scale_out=False)
    async with (
        EngineDouble(slow, faults=faults) as double,
        open_door(double, model=known_tokens(tmp_path), endpoint={"engine": engine}) as door,
    ):
        async with door.http.stream("POST", TEXT, json=text(max_tokens=2000)) as response:
            lines, seen = response.aiter_lines(), 0
            while seen < 10:
                seen += (await anext(lines)).startswith("data: {")
        (record,) = await door.records(1)
        generated = double.metrics.generation_tokens
    assert (record["status"], record["measured"], record["estimated"]) == ("cancelled", False, True)
    assert record["billable_input_uncached"] == len(tokens.encode(PROMPT))
    assert 10 <= record["billable_output"] <= generated


async def test_without_a_tokenizer_words_are_counted_and_a_guessed_prompt_is_not_billed(open_door: OpenDoor) -> None:
    before = (alarms("prompt", "nothing"), alarms("output", "words"))
    async with EngineDouble(ALONE, faults=(UNTOLD,)) as double, open_door(double) as door:
        response = await door.http.post(CHAT, json=body(max_tokens=12))
        (record,) = await door.records(1)
    words = len(said(events(response.text)).split())
    assert 0 < words <= 12
    assert (record["estimated"], record["billable_input_uncached"], record["billable_output"]) == (True, 0, words)
    assert (alarms("prompt", "nothing"), alarms("output", "words")) == (before[0] + 1, before[1] + 1)


async def test_what_was_not_begun_stays_free(open_door: OpenDoor, tmp_path: Path) -> None:
    slow = msgspec.structs.replace(ALONE, prefill_rate=1.0, scale_out=False)
    async with (
        EngineDouble(slow) as double,
        open_door(
            double, model=known_tokens(tmp_path), endpoint={"engine": "openai"}, timeouts={"heartbeatAfter": 0.1}
        ) as door,
    ):
        async with door.http.stream("POST", TEXT, json=text()) as response:
            await anext(response.aiter_lines())
        (record,) = await door.records(1)
    assert (record["status"], record["estimated"]) == ("cancelled", False)
    assert record["billable_input_uncached"] == record["billable_output"] == 0
