"""Engines that go and come back, connections that break, routers that begin from a snapshot."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zmq

from forebay.router.prefix import follower as module
from forebay.router.prefix import follower_link
from forebay.router.routing import Following
from tests.doubles.engine import EngineDouble
from tests.eventually import eventually
from tests.followed import SMALL, Held, Traffic, follower, metric, running, settled


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with EngineDouble(**SMALL) as running_:
        yield running_


async def test_an_engine_that_restarts_is_learnt_anew(engine: EngineDouble) -> None:
    held, traffic = Held(), Traffic()
    before = metric("forebay_kv_event_restarts_total")
    async with running(follower(engine, held)):
        traffic.steps(engine, 10)
        await settled(held, engine)
        await engine.restart()
        traffic.steps(engine, 3)
        await settled(held, engine)
    assert metric("forebay_kv_event_restarts_total") == before + 1
    assert held.states[-3:] == [Following.AWAY, Following.STARTING, Following.FOLLOWING]


@pytest.mark.parametrize("batches", [9, 10, 11, 30])
async def test_an_engine_that_restarts_and_has_overtaken(engine: EngineDouble, batches: int) -> None:
    """Its numbers go on where those of before ended, or beyond: they alone would hide the restart."""
    held, traffic = Held(), Traffic()
    async with running(follower(engine, held)):
        while engine.events._next < 10:  # type: ignore[union-attr]
            traffic.step(engine)
        await settled(held, engine)
        await engine.restart()
        while engine.events._next < batches:  # type: ignore[union-attr]
            traffic.step(engine)
        await eventually(lambda: held.clears == 1)
        traffic.steps(engine, 5)
        await settled(held, engine)
    assert held.clears == 1


async def test_another_rank_that_comes_to_the_address_is_followed() -> None:
    """Where nobody says which rank an endpoint is, it is the one that publishes there now."""
    async with EngineDouble(**SMALL) as engine:
        held, traffic = Held(), Traffic()
        async with running(follower(engine, held)):
            traffic.steps(engine, 10)
            await settled(held, engine)
            engine.events._rank = 3  # type: ignore[union-attr]
            await engine.restart()
            traffic.steps(engine, 5)
            await settled(held, engine)
            assert held.blocks


async def test_an_engine_without_a_replay_that_goes_is_forgotten_at_once() -> None:
    async with EngineDouble(**{**SMALL, "kv_replay": None}) as engine:
        held, traffic = Held(), Traffic()
        async with running(following := follower(engine, held)):
            await eventually(lambda: following.state is Following.FOLLOWING)
            traffic.steps(engine, 10)
            await settled(held, engine)
            await engine.events.stop()  # type: ignore[union-attr]
            await eventually(lambda: held.clears == 1)
            assert not held.blocks
            assert following.state is Following.AWAY


async def test_a_connection_that_breaks_costs_nothing_if_the_engine_is_the_same(engine: EngineDouble) -> None:
    held, traffic = Held(), Traffic()
    async with Proxy(engine) as proxy, running(follower(proxy, held)):  # type: ignore[arg-type]
        traffic.steps(engine, 10)
        await settled(held, engine)
        proxy.cut()
        traffic.steps(engine, 10)
        await settled(held, engine)
    assert held.clears == 0
    assert Following.AWAY in held.states


async def test_a_peer_that_falls_silent_is_away(engine: EngineDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = {**follower_link._OPTIONS, zmq.HEARTBEAT_IVL: 50, zmq.HEARTBEAT_TIMEOUT: 200}
    monkeypatch.setattr(follower_link, "_OPTIONS", patient)
    held, traffic = Held(), Traffic()
    async with Proxy(engine) as proxy, running(following := follower(proxy, held)):  # type: ignore[arg-type]
        traffic.steps(engine, 10)
        await settled(held, engine)
        proxy.frozen = True
        await eventually(lambda: following.state is Following.AWAY)
        proxy.frozen = False
        proxy.cut()
        traffic.steps(engine, 10)
        await settled(held, engine)
    assert held.clears == 0


async def test_a_router_goes_on_from_a_snapshot(engine: EngineDouble) -> None:
    first, second, traffic = Held(), Held(), Traffic()
    async with running(leader := follower(engine, first)):
        traffic.steps(engine, 10)
        await settled(first, engine)
        position, second.blocks = leader.position(), first.blocks.copy()
    traffic.steps(engine, 5)
    late = follower(engine, second)
    late.resume(position)
    async with running(late):
        await late.caught_up.wait()
        await settled(second, engine)
    assert (second.clears, second.batches) == (0, 5)


@pytest.mark.parametrize("batches", [0, 5, 10, 15])
async def test_a_snapshot_of_an_engine_that_has_restarted_since_is_dropped(engine: EngineDouble, batches: int) -> None:
    first, second, traffic = Held(), Held(), Traffic()
    async with running(leader := follower(engine, first)):
        while engine.events._next < 10:  # type: ignore[union-attr]
            traffic.step(engine)
        await settled(first, engine)
        position, second.blocks = leader.position(), first.blocks.copy()
    await engine.restart()
    while engine.events._next < batches:  # type: ignore[union-attr]
        traffic.step(engine)
    late = follower(engine, second)
    late.resume(position)
    async with running(late):
        await settled(second, engine)
    assert second.clears == 1


async def test_nothing_is_known_of_an_engine_that_was_never_heard(engine: EngineDouble) -> None:
    held = Held()
    following = follower(engine, held)
    assert following.position() == b""
    following.resume(b"")
    with pytest.raises(ValueError, match="not a position"):
        following.resume(b"nonsense")
    async with running(following):
        await following.caught_up.wait()
    assert following.position() == b""


async def test_it_can_be_stopped_and_run_again(engine: EngineDouble) -> None:
    held, traffic = Held(), Traffic()
    following = follower(engine, held)
    for _ in range(3):
        traffic.steps(engine, 5)
        async with running(following):
            await settled(held, engine)
    assert held.clears == 0
    await engine.restart()
    traffic.steps(engine, 5)
    async with running(following):
        await settled(held, engine)
    assert held.clears == 1


async def test_after_a_failure_of_the_sink_all_is_learnt_anew(
    engine: EngineDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSES_S", (0.05, 0.1))
    held, traffic = Held(), Traffic()
    async with running(follower(engine, held)):
        traffic.steps(engine, 5)
        await settled(held, engine)
        held.failing = 1
        traffic.steps(engine, 5)
        await settled(held, engine)
    assert "following the KV events of endpoint endpoint failed and begins anew" in caplog.text


async def test_nobody_waits_for_ever_for_an_engine_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CAUGHT_UP_S", 0.05)
    held = Held()
    async with EngineDouble(**SMALL) as engine:
        following = follower(engine, held)
    async with running(following):
        await asyncio.wait_for(following.caught_up.wait(), 5)
        assert following.state is Following.AWAY
    assert "nothing publishes KV events of endpoint endpoint at tcp://" in caplog.text


class Proxy:
    """Stands before an engine's publisher; its replay is reached directly."""

    def __init__(self, engine: EngineDouble) -> None:
        assert engine.events is not None
        self.events = self
        self.replay = engine.events.replay
        self.endpoint = ""
        self.frozen = False
        self._port = int(engine.events.endpoint.rpartition(":")[2])
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        onward = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, onward[1]}
        await asyncio.gather(self._carry(reader, onward[1]), self._carry(onward[0], writer), return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self.frozen:
                    writer.write(data)
        finally:
            writer.transport.abort()
