"""What the tests of failover share: engines that die, what a tenant is told, and what is billed."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PACE = Settings(token_seconds=0.01, answer_tokens=None)
DIES = Fault(kind="close", after=9, rst=True, path="/v1/", stream=True)
CLASSES = ("input_uncached", "cache_read", "cache_write", "output")


def body(content: str = "hello", **members: Any) -> dict[str, Any]:
    return {
        "model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 40, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True}, **members,
    }  # fmt: skip


def text_body(prompt: Any, **members: Any) -> dict[str, Any]:
    """As `body`, for a completion."""
    return {name: value for name, value in body(prompt=prompt, **members).items() if name != "messages"}


def events(text: str) -> list[dict[str, Any]]:
    """A stream's events without heartbeats, [DONE] checked and removed."""
    found = text.split("\n\n")
    assert found[-2:] == ["data: [DONE]", ""], text[-300:]
    return [json.loads(frame.removeprefix("data: ")) for frame in found[:-2] if not frame.startswith(":")]


def said(found: list[dict[str, Any]]) -> str:
    parts = [c["delta"].get("content") if "delta" in c else c["text"] for e in found for c in e.get("choices", ())]
    return "".join(part or "" for part in parts)


def billed(records: list[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(r[f"billable_{name}"] for r in records) for name in CLASSES}


@contextlib.asynccontextmanager
async def pair(
    open_door: OpenDoor, *faults: Fault, settings: Settings = PACE, **changes: Any
) -> AsyncIterator[tuple[EngineDouble, EngineDouble, Door]]:
    """An engine with faults, one without, and a front door before them."""
    async with (
        EngineDouble(settings, faults=faults) as dying,
        EngineDouble(settings) as well,
        open_door(dying, well, **changes) as door,
    ):
        yield dying, well, door


async def until_asked(door: Door, engine: EngineDouble, path: str, request: dict[str, Any]) -> httpx.Response:
    """The answer to the request when it was sent to this engine first."""
    for _ in range(60):
        before = len(engine.requests)
        response = await door.http.post(path, json=request)
        if any(r.path == path for r in list(engine.requests)[before:]):
            return response
    raise AssertionError("it was never asked")


async def plain(engine: EngineDouble, path: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    """What an engine answers that nothing happens to."""
    async with httpx.AsyncClient(base_url=engine.url, timeout=30.0) as client:
        faults, engine.faults.faults = engine.faults.faults, []
        try:
            return events((await client.post(path, json={**request, "model": MODEL})).text)
        finally:
            engine.faults.faults = faults


async def chain(door: Door, response: httpx.Response) -> list[dict[str, Any]]:
    """The usage records of one request, by attempt."""
    request_id = response.headers["x-request-id"]

    async def all_of_it() -> list[dict[str, Any]]:
        if door.service.spool.open_count or door.service.spool.unshipped:  # looked at first: it may land meanwhile
            return []
        return [r for r in await door.ledger() if r["request_id"] == request_id]

    found: list[dict[str, Any]] = await eventually(all_of_it, 10.0, every=0.05)
    return sorted(found, key=lambda r: r["attempt"])
