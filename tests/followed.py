"""A follower on an engine double, and a sink that knows every block by the engine's own hash."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from prometheus_client import REGISTRY

from forebay.router.prefix.blocks import Event, Hash, Removed, Stored
from forebay.router.prefix.follower import Follower
from forebay.router.routing import Following
from tests.doubles.engine import EngineDouble
from tests.eventually import eventually

SMALL: dict[str, Any] = {
    "kv_events": "tcp://127.0.0.1:*",
    "kv_replay": "tcp://127.0.0.1:*",
    "kv_topic": "kv@here@model",
    "block_size": 4,
    "max_model_len": 64,
    "cache_blocks": 24,
}


class Held:
    """What an engine holds, as its events tell: how many blocks have each hash."""

    def __init__(self) -> None:
        self.blocks: Counter[Hash] = Counter()
        self.states: list[Following] = []
        self.clears = 0
        self.batches = 0
        self.failing = 0

    def apply(self, events: list[Event]) -> None:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the sink fails")
        self.batches += 1
        for event in events:
            if isinstance(event, Stored):
                self.blocks.update(event.hashes)
            elif isinstance(event, Removed):
                self.blocks -= Counter(event.hashes)  # keeps what is above 0
            else:
                self.blocks.clear()

    def clear(self) -> None:
        self.clears += 1
        self.blocks.clear()

    def follows(self, following: Following) -> None:
        self.states.append(following)

    def is_(self, engine: EngineDouble, name: Callable[[int], Hash] = int) -> bool:
        """Whether it is exactly what the engine's cache has."""
        return self.blocks == {name(key): copies for key, copies in engine.cache.contents().items()}

    def within(self, engine: EngineDouble) -> bool:
        """Whether the engine has everything that it is said to have."""
        return self.blocks <= Counter(engine.cache.contents())


def follower(engine: EngineDouble, sink: Any, **options: Any) -> Follower:
    assert engine.events is not None
    return Follower("pool", "endpoint", engine.events.endpoint, engine.events.replay, sink, **options)


@asynccontextmanager
async def running(*followers: Follower) -> AsyncIterator[None]:
    """They run until the block ends."""
    tasks = [asyncio.create_task(each.run()) for each in followers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                raise result or AssertionError("a follower ended by itself")


def metric(name: str, endpoint: str = "endpoint", **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"pool": "pool", "endpoint": endpoint, **labels}) or 0.0


async def settled(held: Held, engine: EngineDouble) -> None:
    """Returns when it is exactly what the engine's cache has."""
    await eventually(lambda: held.is_(engine), timeout=15)


class Traffic:
    """Requests as an engine meets them, in batches of one step each: turns of a few conversations, salted or not."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def step(self, engine: EngineDouble, requests: int = 1) -> None:
        """Prompts, some tokens of answer each, and one batch of events if there are any."""
        for _ in range(requests):
            talk, turns = self._random.randrange(6), self._random.randrange(1, 40)
            tokens = [talk * 1000 + turn for turn in range(turns)]
            allocation = engine.cache.admit(tokens, self._random.choice([None, "salt"]), 8)
            assert allocation is not None
            for token in range(self._random.randrange(8)):
                tokens.append(100_000 + token)
                engine.cache.fill(allocation, len(tokens))
            engine.cache.free(allocation)
        engine._publish()

    def steps(self, engine: EngineDouble, count: int) -> None:
        for _ in range(count):
            self.step(engine)
