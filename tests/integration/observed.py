"""What tests of the relay look at: a stream's events, and tokens as engines and the ledger count them."""

import json
from typing import Any

from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.door import Door

SLOW = Settings(token_seconds=0.02, answer_tokens=None)


async def stream(door: Door, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed chat, [DONE] checked and removed."""
    response = await door.chat(stream=True, **body)
    assert response.status_code == 200, response.text
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2] if not frame.startswith(":")]


def counters(*engines: EngineDouble) -> tuple[int, int, int]:
    """Prompt, cached and generated tokens by the engines' own counters."""
    return (
        sum(e.metrics.prompt_tokens for e in engines),
        sum(e.metrics.cached_tokens for e in engines),
        sum(e.metrics.generation_tokens for e in engines),
    )


def ledger(records: list[dict[str, Any]]) -> tuple[int, int, int]:
    """The same of the ledger's engine-side quantities."""
    return (
        sum(r["engine_input_uncached"] + r["engine_cache_read"] + r["engine_cache_write"] for r in records),
        sum(r["engine_cache_read"] for r in records),
        sum(r["engine_output"] for r in records),
    )


async def stopped(*engines: EngineDouble) -> None:
    """Returns when the engines have nothing running; raises if that takes more than a second."""
    await eventually(lambda: not any(engine.scheduler.in_flight for engine in engines), timeout=1.0)


def unbooked(door: Door) -> bool:
    """Whether no load is held on any endpoint."""
    routing = door.service.routing
    assert routing is not None
    core = routing.core
    loads = [member.load for pool in core.pools.values() for member in pool.members.values()]
    return not core.bookings and not any(
        load.in_flight or load.waiting or load.prefill or load.silent or load.output for load in loads
    )
