"""Events that cannot be read, or are another's: an alarm, nothing claimed, and back to work when they are right."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from forebay.router.prefix import follower as module
from forebay.router.prefix.follower import Follower
from forebay.router.routing import Following
from tests.doubles.engine import EngineDouble
from tests.eventually import eventually
from tests.followed import SMALL, Held, Traffic, follower, metric, running, settled


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble(**SMALL) as running_:
        yield running_


def counted(kind: str, endpoint: str = "endpoint") -> float:
    return metric("forebay_kv_events_total", endpoint, kind=kind)


@pytest.mark.parametrize("replay", [True, False])
async def test_what_cannot_be_read_raises_an_alarm_once(replay: bool, caplog: pytest.LogCaptureFixture) -> None:
    settings = SMALL if replay else {**SMALL, "kv_replay": None}
    async with EngineDouble(**settings) as engine:
        held, traffic = Held(), Traffic()
        async with running(following := follower(engine, held)):
            await eventually(lambda: following.state is Following.FOLLOWING)
            traffic.steps(engine, 10)
            await settled(held, engine)
            engine.events.garble(3)  # type: ignore[union-attr]
            traffic.steps(engine, 3)
            await eventually(lambda: following.state is Following.UNDECODABLE)
            assert not held.blocks, "what it removed is not known"
            traffic.steps(engine, 5)
            await eventually(lambda: following.state is Following.FOLLOWING)
            await eventually(lambda: held.batches and held.within(engine))
            engine.clear_cache()
            traffic.steps(engine, 5)
            await settled(held, engine)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "endpoint" in errors[0]
    assert "c1 20 6e 6f" in errors[0], "the first bytes"


async def test_alarms_that_come_and_go_with_every_batch_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with EngineDouble(**{**SMALL, "kv_replay": None}) as engine:
        held, traffic = Held(), Traffic()
        undecodable = metric("forebay_kv_event_undecodable_total")
        async with running(following := follower(engine, held)):
            await eventually(lambda: following.state is Following.FOLLOWING)
            for _ in range(20):
                engine.events.garble(1)  # type: ignore[union-attr]
                traffic.steps(engine, 4)
            await eventually(lambda: metric("forebay_kv_event_undecodable_total") == undecodable + 20)
            await eventually(lambda: following.state is Following.FOLLOWING)
    assert caplog.text.count("cannot be read") == 1


async def test_the_replay_of_what_was_spoilt_on_the_way_brings_it_all_back(engine: EngineDouble) -> None:
    """Only the subscription gets garbage; the replay has what was meant."""
    held, traffic = Held(), Traffic()
    async with running(following := follower(engine, held)):
        await following.caught_up.wait()
        traffic.steps(engine, 10)
        await settled(held, engine)
        publisher: Any = engine.events
        publisher._pub.send_multipart((b"kv", publisher._next.to_bytes(8, "big"), b"\xc1"))
        publisher.lose(1)
        traffic.steps(engine, 10)
        await settled(held, engine)
    assert Following.UNDECODABLE in held.states


async def test_messages_of_something_else(engine: EngineDouble, caplog: pytest.LogCaptureFixture) -> None:
    held, traffic = Held(), Traffic()
    async with running(following := follower(engine, held)):
        await following.caught_up.wait()
        traffic.steps(engine, 3)
        await settled(held, engine)
        for message in ([b"x"], [b"topic", b"12", b"payload"], [b"1", b"2", b"3", b"4"], [b"topic", b"\0" * 8, b"x"]):
            engine.events._pub.send_multipart(message)  # type: ignore[union-attr]
        await eventually(lambda: following.state is Following.UNDECODABLE)
        traffic.steps(engine, 3)
        await settled(held, engine)
        assert following.state is Following.FOLLOWING
    assert "frames, not" in caplog.text


async def test_events_of_unknown_types_are_counted_and_passed_over(engine: EngineDouble) -> None:
    held, traffic = Held(), Traffic()
    malformed = counted("malformed")
    async with running(following := follower(engine, held)):
        await following.caught_up.wait()
        publisher: Any = engine.events
        payload = msgspec.msgpack.encode([1.0, [{"type": "BlockTouched"}, {"type": "AllBlocksCleared"}], 0])
        publisher._pub.send_multipart((b"kv", b"\0" * 8, payload))
        publisher._next = 1
        traffic.steps(engine, 3)
        await settled(held, engine)
    assert counted("malformed") == malformed + 1
    assert Following.UNDECODABLE not in held.states


async def test_events_of_another_rank_are_not_taken(engine: EngineDouble, caplog: pytest.LogCaptureFixture) -> None:
    held, traffic = Held(), Traffic()
    misdirected = counted("misdirected")
    async with running(following := follower(engine, held, rank=1)):
        await following.caught_up.wait()
        traffic.steps(engine, 5)
        await eventually(lambda: counted("misdirected") >= misdirected + 5)
    assert not held.batches
    assert "rank 0" in caplog.text
    assert caplog.text.count("rank 0") == 1


async def test_metrics_count_blocks(engine: EngineDouble) -> None:
    held, traffic = Held(), Traffic()
    assert engine.events is not None
    following = Follower("pool", "counted", engine.events.endpoint, engine.events.replay, held)
    async with running(following):
        await following.caught_up.wait()
        assert metric("forebay_kv_events_following", "counted") == 1
        traffic.steps(engine, 30)
        engine.events.lose(2)
        traffic.steps(engine, 30)
        await settled(held, engine)
        engine.clear_cache()
        await settled(held, engine)
    assert counted("removed", "counted") > 0
    assert counted("cleared", "counted") == 1
    assert metric("forebay_kv_event_gaps_total", "counted") == 1
    assert metric("forebay_kv_event_replays_total", "counted", result="complete") == 2
    assert metric("forebay_kv_event_undecodable_total", "counted") == 0


async def test_a_publisher_that_says_hello_and_goes_is_not_chased() -> None:
    """Connections that break at once are made again at a growing distance."""
    opened = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        writer.write(b"\xff\0\0\0\0\0\0\0\1\x7f")
        await reader.read(10)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1")
    address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    held = Held()
    async with running(Follower("pool", "hello", address, address, held)):
        await eventually(lambda: opened >= 2)
    server.close()
    assert not held.batches


@pytest.mark.parametrize("which", ["events", "replay"])
async def test_an_address_that_makes_no_sense_is_said_once(
    which: str, engine: EngineDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSES_S", (0.01, 0.01))
    assert engine.events is not None
    events, replay = ("nowhere", None) if which == "events" else (engine.events.endpoint, "nowhere")
    held = Held()
    async with running(Follower("pool", "senseless", events, replay, held)):
        await eventually(lambda: held.states.count(Following.AWAY) >= (1 if which == "events" else 3))
    assert caplog.text.count("KV events of endpoint senseless cannot be followed at") == 1
