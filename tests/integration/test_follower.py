"""A follower on the wire of an engine double: what it learns is exactly what the engine's cache has."""

import asyncio
from random import Random

import pytest
import uvloop

from forebay.router.prefix import follower as module
from forebay.router.routing import Following
from tests.doubles.engine import EngineDouble
from tests.eventually import eventually
from tests.followed import SMALL, Held, Traffic, follower, running, settled


@pytest.mark.parametrize("hashes", ["int", "bytes"])
@pytest.mark.parametrize("encoding", ["vllm", "vllm-rows", "vllm-maps", "sglang", "sglang-rows"])
async def test_every_encoding(encoding: str, hashes: str) -> None:
    async with EngineDouble(**SMALL, kv_encoding=encoding, kv_hashes=hashes) as engine:
        held, traffic = Held(), Traffic()
        traffic.steps(engine, 5)
        async with running(follower(engine, held)):
            traffic.steps(engine, 20)
            await eventually(lambda: held.batches > 5 and len(held.blocks) == len(engine.cache.contents()))
    assert sorted(held.blocks.values()) == sorted(engine.cache.contents().values())


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("replay", [True, False])
async def test_topics_may_be_missing(live: bool, replay: bool) -> None:
    async with EngineDouble(**SMALL, kv_topic_frame=live, kv_replay_topic_frame=replay) as engine:
        held, traffic = Held(), Traffic()
        traffic.steps(engine, 3)
        async with running(following := follower(engine, held)):
            await following.caught_up.wait()
            traffic.steps(engine, 3)
            await settled(held, engine)


async def test_unix_sockets(tmp_path: object) -> None:
    paths = {"kv_events": f"ipc://{tmp_path}/events", "kv_replay": f"ipc://{tmp_path}/replay"}
    async with EngineDouble(**{**SMALL, **paths}) as engine:
        held, traffic = Held(), Traffic()
        traffic.steps(engine, 3)
        async with running(follower(engine, held)):
            await settled(held, engine)
            await engine.restart()
            traffic.steps(engine, 3)
            await settled(held, engine)
    assert held.clears == 1


async def test_a_late_follower_learns_what_was_before() -> None:
    async with EngineDouble(**SMALL) as engine:
        held, traffic = Held(), Traffic()
        traffic.steps(engine, 200)
        following = follower(engine, held)
        assert following.state is Following.STARTING
        async with running(following):
            await asyncio.wait_for(following.caught_up.wait(), 10)
            assert held.is_(engine)
    assert held.states == [Following.STARTING, Following.FOLLOWING]


async def test_a_late_follower_without_a_replay_claims_only_what_it_heard() -> None:
    async with EngineDouble(**{**SMALL, "kv_replay": None}) as engine:
        held, traffic = Held(), Traffic()
        traffic.steps(engine, 10)
        async with running(following := follower(engine, held)):
            await eventually(lambda: following.state is Following.FOLLOWING)
            assert following.caught_up.is_set()
            for _ in range(50):
                traffic.step(engine)
                await asyncio.sleep(0)
            await eventually(lambda: held.batches and held.within(engine))
            engine.clear_cache()
            traffic.steps(engine, 3)
            await settled(held, engine)


async def test_ten_thousand_batches_of_replay() -> None:
    """More than an engine's socket queues: some rows are dropped and asked for again."""
    async with EngineDouble(**SMALL) as engine:
        held, traffic = Held(), Traffic()
        while engine.events._next < 10_000:  # type: ignore[union-attr]
            traffic.steps(engine, 100)
        async with running(following := follower(engine, held)):
            await asyncio.wait_for(following.caught_up.wait(), 30)
            await settled(held, engine)


async def test_lost_batches_are_fetched() -> None:
    async with EngineDouble(**SMALL) as engine:
        held, traffic = Held(), Traffic()
        async with running(following := follower(engine, held)):
            await following.caught_up.wait()
            for _ in range(3):
                engine.events.lose(2)  # type: ignore[union-attr]
                traffic.steps(engine, 10)
                await settled(held, engine)
    assert held.clears == 0


async def test_lost_batches_without_a_replay_are_forgotten_with_all_before_them() -> None:
    async with EngineDouble(**{**SMALL, "kv_replay": None}) as engine:
        held, traffic = Held(), Traffic()
        async with running(following := follower(engine, held)):
            await eventually(lambda: following.state is Following.FOLLOWING)
            traffic.steps(engine, 10)
            await settled(held, engine)
            engine.events.lose()  # type: ignore[union-attr]
            traffic.steps(engine, 10)
            await eventually(lambda: held.clears == 1)
            traffic.steps(engine, 10)
            await eventually(lambda: held.batches >= 25 and held.within(engine))


async def test_a_flood_leaves_nothing_out() -> None:
    async with EngineDouble(**SMALL) as engine:
        held, traffic = Held(), Traffic()
        async with running(following := follower(engine, held)):
            await following.caught_up.wait()
            traffic.steps(engine, 12_000)
            traffic.step(engine)
            await settled(held, engine)


async def test_a_flood_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    async with EngineDouble(**SMALL) as busy, EngineDouble(**SMALL) as quiet:
        flooded, calm, traffic = Held(), Held(), Traffic()
        turns = asyncio.Lock()
        followers = [follower(busy, flooded, turns=turns), follower(quiet, calm, turns=turns)]
        async with running(*followers):
            for each in followers:
                await each.caught_up.wait()
            traffic.steps(busy, 4_000)
            traffic.step(quiet)
            while not calm.batches:
                await asyncio.sleep(0)
            assert flooded.batches < 4_000, "the quiet one did not have to wait for the flood's end"
            await settled(flooded, busy)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("replay", [True, False])
async def test_whatever_happens(seed: int, replay: bool) -> None:
    """Requests, losses, restarts, resets in any order: never more than the engine has, and in the end just that."""
    random = Random(seed)
    settings = SMALL if replay else {**SMALL, "kv_replay": None}
    async with EngineDouble(**settings) as engine:
        held, traffic = Held(), Traffic(seed)
        async with running(following := follower(engine, held)):
            for _ in range(12):
                match random.choice(["steps", "steps", "lose", "reset", "restart"]):
                    case "steps":
                        traffic.steps(engine, random.randrange(20))
                    case "lose":
                        engine.events.lose(random.randrange(3))  # type: ignore[union-attr]
                    case "reset":
                        engine.clear_cache()
                    case "restart":
                        await engine.restart()
                        traffic.steps(engine, random.randrange(20))
                await asyncio.sleep(random.choice([0, 0, 0.05]))
            await eventually(lambda: following.state is Following.FOLLOWING, timeout=15)
            await asyncio.sleep(0.3)
            engine.events._losing = 0  # type: ignore[union-attr]
            traffic.step(engine, 5)
            await eventually(lambda: held.within(engine), timeout=15)
            if replay:
                await settled(held, engine)


def test_under_uvloop() -> None:
    async def scenario() -> None:
        async with EngineDouble(**SMALL) as engine:
            held, traffic = Held(), Traffic()
            traffic.steps(engine, 50)
            async with running(follower(engine, held)):
                await settled(held, engine)
                await engine.restart()
                traffic.steps(engine, 50)
                await settled(held, engine)
                traffic.steps(engine, 2_000)
                await settled(held, engine)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
