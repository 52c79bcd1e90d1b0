"""Prompts made to be slow to read, or to be read wrongly: they cost their tenant time, and nobody else."""

import asyncio
import json
import threading
from typing import Any

import pytest

from forebay.platform.api import inference, requests
from forebay.platform.config.load import load_config
from forebay.platform.local.paths import paths
from forebay.router.prompt.ladder import Ladder
from forebay.router.prompt.template import Template
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door

CHAT, TEXT = "/v1/explain/chat/completions", "/v1/explain/completions"
UNASKED = Settings(tokenize=False)  # the double's tokens are not SmolLM2's


class Filler:
    """Something remembered."""

    nbytes = 500


@pytest.fixture
def model() -> dict[str, Any]:
    weights = paths(load_config(None).stores.state_dir).weights
    if not (weights / "tokenizer.json").exists():
        pytest.skip("the tokenizer of SmolLM2 is not here: forebay up --prepare")
    return {"tokenizer": str(weights), "contextLength": 8192}


@pytest.fixture
def on_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters tokenized, and messages rendered, by the thread that everybody waits for."""
    done: list[int] = []
    encode, render, resume = Ladder.encode, Template.render, Template.resume

    def note(size: int) -> None:
        if threading.current_thread() is threading.main_thread():
            done.append(size)

    def encoded(self: Ladder, text: str, **options: Any) -> Any:
        note(len(text))
        return encode(self, text, **options)

    def rendered(self: Template, chat: Any, *rest: Any, **options: Any) -> Any:
        note(len(json.dumps(chat.messages)))
        return render(self, chat, *rest, **options)

    def resumed(self: Template, mark: Any, chat: Any, *rest: Any) -> Any:
        note(len(json.dumps(chat.messages)))
        return resume(self, mark, chat, *rest)

    monkeypatch.setattr(Ladder, "encode", encoded)
    monkeypatch.setattr(Template, "render", rendered)
    monkeypatch.setattr(Template, "resume", resumed)
    return done


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def explained(door: Door, path: str, key: str | None = None, **members: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = await door.http.post(path, json={"model": MODEL, **members}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["prompt"]


async def test_many_prompts_of_one_request_are_read_aside_like_one_long_one(
    open_door: OpenDoor, model: dict[str, Any], on_loop: list[int]
) -> None:
    async with EngineDouble(UNASKED) as engine, open_door(engine, model=model) as door:
        on_loop.clear()
        prompts = [f"prompt {number} " * 100 for number in range(128)]
        assert (await explained(door, TEXT, prompt=prompts))["tokens"] > 128 * 200
        await explained(door, TEXT, prompt="eight thousand characters " * 300)  # hundreds may come at once
        assert sum(on_loop) < 10_000
        assert max(on_loop, default=0) < 3_000


async def test_what_is_known_but_has_to_be_rendered_again_is_rendered_aside(
    open_door: OpenDoor, model: dict[str, Any], on_loop: list[int]
) -> None:
    parts = user([{"type": "text", "text": ""}] * 10_000)
    async with EngineDouble(UNASKED) as engine, open_door(engine, model=model) as door:
        await explained(door, CHAT, messages=[parts, user("one")])
        on_loop.clear()
        for effort in ("low", "high"):  # seen by the template, so its text may be another
            await explained(door, CHAT, messages=[parts, user("one"), user("two")], reasoning_effort=effort)
        await explained(door, CHAT, messages=[parts, user("one"), parts])
        assert max(on_loop, default=0) < 20_000


async def test_what_is_given_up_while_a_body_is_read_is_neither_missed_nor_built_upon(
    open_door: OpenDoor, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [user(f"turn {number} {'the weir holds ' * 300}") for number in range(3)]
    small = {"promptMemoryBytesPerProject": 1 << 20}
    decode, waiting, going = requests.decode, threading.Event(), threading.Event()

    def slow(api: str, body: bytes, prior: Any = None) -> Any:
        if b"slowly" in body:
            waiting.set()
            assert going.wait(20)
        return decode(api, body, prior)

    monkeypatch.setattr(inference, "decode", slow)
    monkeypatch.setattr(inference, "LIGHT_BYTES", 0)  # so that others come between
    async with EngineDouble(UNASKED) as engine, open_door(engine, model=model, router=small) as door:
        await explained(door, CHAT, messages=turns[:2])
        asked = asyncio.create_task(explained(door, CHAT, messages=turns, user="slowly"))
        await asyncio.to_thread(waiting.wait, 20)
        memory = door.service.inferences.prompts._transcripts._memory
        (project,) = memory._projects
        memory.extend(memory.root(project, "filler", b""), [(b"%06d" % n, Filler()) for n in range(4_000)])
        going.set()
        read = await asked
        assert read == await explained(door, CHAT, await door.new_key(), messages=turns)
        turn = json.dumps(turns[2], separators=(",", ":")).encode()
        bad = b'{"model":"%b","messages":[,%b,{"role":"user","content":"q"}]}' % (MODEL.encode(), turn)
        response = await door.http.post("/v1/chat/completions", content=bad)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
        assert not [one for one in engine.requests if one.path == "/v1/chat/completions"]
