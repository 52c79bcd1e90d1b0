"""From an engine's cache over the wire into the index: what it claims for a prompt is what the engine would hit."""

from functools import partial
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest

from forebay.router.prefix.blocks import Event
from forebay.router.prefix.index import Index
from forebay.router.prefix.keys import GRID, Weights
from forebay.router.routing import Following
from tests.doubles.engine import EngineDouble
from tests.eventually import eventually
from tests.followed import SMALL, follower, running

NAME = "endpoint"
ENGINE: dict[str, Any] = {**SMALL, "block_size": 16, "max_model_len": 640, "cache_blocks": 96}


class Part:
    """An endpoint's part of an index."""

    def __init__(self) -> None:
        self.index = Index(Weights(b"secret"))
        self.index.attach(NAME)

    def apply(self, events: list[Event]) -> None:
        self.index.apply(NAME, events)

    def clear(self) -> None:
        self.index.clear(NAME)

    def follows(self, following: Following) -> None: ...

    def claims(self, tokens: list[int], salt: str | None) -> int:
        weights = self.index.weights
        keys = weights.extend(weights.seed(salt=salt), 0, np.array(tokens, np.uint32))[1]
        return self.index.held(NAME, keys).tokens


class Prompts:
    """Turns of a few conversations, each under a salt and under none."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.seen: dict[tuple[str | None, tuple[int, ...]], None] = {}

    def run(self, engine: EngineDouble, count: int) -> None:
        for _ in range(count):
            talk, turns = self._random.randrange(5), self._random.randrange(1, 600)
            tokens, salt = [talk * 1000 + turn for turn in range(turns)], self._random.choice([None, "a", "b"])
            self.seen[salt, tuple(tokens)] = None
            allocation = engine.cache.admit(tokens, salt, 0)
            assert allocation is not None
            engine.cache.free(allocation)
            engine._publish()

    def agree(self, engine: EngineDouble, part: Part) -> bool:
        """Whether every prompt, under every salt, is claimed as far as the engine has it."""
        return all(
            part.claims(list(tokens), salt) == engine.cache.peek([*tokens, 0], salt) // GRID * GRID
            for _, tokens in self.seen
            for salt in (None, "a", "b", "c")
        )


@pytest.mark.parametrize("block_size", [8, 16, 32])
async def test_claims_are_the_cache(block_size: int) -> None:
    async with EngineDouble(**{**ENGINE, "block_size": block_size, "cache_blocks": 1536 // block_size}) as engine:
        part, prompts = Part(), Prompts(block_size)
        prompts.run(engine, 10)
        async with running(following := follower(engine, part)):
            await following.caught_up.wait()
            for _ in range(5):
                prompts.run(engine, 10)
                await eventually(lambda: prompts.agree(engine, part))
        assert any(part.claims(list(tokens), salt) for salt, tokens in prompts.seen)
        assert part.index.sizes().blocks[NAME] == len(engine.cache.contents())


@pytest.mark.parametrize("encoding", ["vllm", "vllm-rows", "vllm-maps", "sglang", "sglang-rows"])
async def test_claims_are_the_cache_whatever_is_lost(encoding: str) -> None:
    async with EngineDouble(**ENGINE, kv_encoding=encoding) as engine:
        part, prompts = Part(), Prompts(1)
        async with running(following := follower(engine, part)):
            await following.caught_up.wait()
            prompts.run(engine, 20)
            engine.events.lose(5)  # type: ignore[union-attr]
            prompts.run(engine, 20)
            await eventually(lambda: prompts.agree(engine, part))
            await engine.restart()
            prompts.run(engine, 20)
            await eventually(lambda: prompts.agree(engine, part), timeout=15)
            engine.clear_cache()
            await eventually(lambda: prompts.agree(engine, part))
            assert part.index.sizes().blocks[NAME] == 0


async def test_blocks_wider_than_the_grid_are_claimed_to_less_than_a_block() -> None:
    """A key inside of a block says that the block begins alike: the engine hits it only whole."""
    async with EngineDouble(**{**ENGINE, "block_size": 64, "cache_blocks": 24}) as engine:
        part, prompts = Part(), Prompts(2)
        async with running(following := follower(engine, part)):
            await following.caught_up.wait()
            prompts.run(engine, 40)
            await eventually(lambda: part.index.sizes().blocks[NAME] == len(engine.cache.contents()))
            for _, tokens in prompts.seen:
                for salt in (None, "a", "b"):
                    assert 0 <= part.claims(list(tokens), salt) - engine.cache.peek([*tokens, 0], salt) < 64


async def test_claims_are_what_the_api_reports() -> None:
    """Over HTTP: the tokens claimed for a prompt are those that the engine then finds in its cache."""
    story = "a story of many foxes and their rivers " * 10
    async with EngineDouble(**ENGINE) as engine, httpx.AsyncClient(base_url=engine.url) as client:
        part = Part()
        async with running(following := follower(engine, part)):
            await following.caught_up.wait()
            for salt in ("a", "b"):
                messages: list[dict[str, str]] = []
                for turn in range(4):
                    messages.append({"role": "user", "content": "go on" if turn else story})
                    ids = (await client.post("/tokenize", json={"messages": messages})).json()["tokens"]
                    await eventually(partial(_agree, engine, part, ids, salt))
                    claimed = part.claims(ids, salt)
                    body = {"messages": messages, "max_tokens": 30, "cache_salt": salt}
                    answer = (await client.post("/v1/chat/completions", json=body)).json()
                    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                    assert 0 <= cached - claimed < GRID
                    assert bool(claimed) == (turn > 0), "the second one's turns do not hit the first one's"
                    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})


def _agree(engine: EngineDouble, part: Part, tokens: list[int], salt: str) -> bool:
    return part.claims(tokens, salt) == engine.cache.peek(tokens, salt) // GRID * GRID
