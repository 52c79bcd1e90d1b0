"""Front doors over the same engines and one Valkey: each places as if it knew what the others have booked."""

import asyncio
import logging
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.platform.sharing.link import DEADLINE_S
from forebay.platform.sharing.wire import channel_of, encoded
from forebay.platform.stores import embedded
from forebay.platform.stores.daemon import Daemon
from forebay.platform.stores.valkey import create_client
from forebay.router import Peers, Report
from forebay.router.reporting import HEARTBEAT_S, TELL_EVERY_S
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.door import MODEL, Door, config, opened
from tests.processes import front_door
from tests.stores import state_directory
from tests.virtual import tokens

SLOW = Settings(token_seconds=0.2, answer_tokens=None)
FAST = Settings(answer_tokens=None)
HEARD = Settings(token_seconds=0.05, answer_tokens=None, kv_events="tcp://127.0.0.1:*", kv_replay="tcp://127.0.0.1:*")
OpenDoors = Callable[..., AbstractAsyncContextManager[list[Door]]]


@pytest.fixture
def open_doors(database: str, valkey: str, tmp_path: Path) -> OpenDoors:
    """`async with open_doors(engine, …) as (a, b)`: front doors of one deployment, in this process."""

    @asynccontextmanager
    async def open_(
        *engines: EngineDouble, count: int = 2, url: str = valkey, **changes: Any
    ) -> AsyncIterator[list[Door]]:
        async with AsyncExitStack() as stack:
            doors = []
            for number in range(count):
                state = tmp_path / f"door-{number}"
                secrets = {"cacheSalt": str(tmp_path / "door-0/secrets/cache-salt")} if number else {}
                configured = config(state, engines, secrets=secrets, **changes)
                doors.append(await stack.enter_async_context(opened(configured, database, url, f"tenant {number}")))
            yield doors

    return open_


def peers(door: Door) -> Peers:
    assert door.service.routing is not None
    return door.service.routing.core.peers


async def acquainted(*doors: Door) -> None:
    await eventually(lambda: all(len(peers(door)) == len(doors) - 1 for door in doors))


async def streams(door: Door, count: int, stack: AsyncExitStack) -> None:
    """Start so many answers that go on until the stack ends."""
    tasks = [asyncio.create_task(_read(door)) for _ in range(count)]
    stack.push_async_callback(_ended, tasks)


async def _read(door: Door) -> None:
    await door.chat(f"{os.urandom(8).hex()} hello", stream=True, max_tokens=1_000)


async def _ended(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_burst_through_one_front_door_sends_the_others_requests_elsewhere(open_doors: OpenDoors) -> None:
    async with (
        EngineDouble(SLOW) as one,
        EngineDouble(SLOW) as other,
        open_doors(one, other) as (a, b),
        AsyncExitStack() as stack,
    ):
        await acquainted(a, b)
        a.service.router.failed("main", "engine-1", "for the test", at_once=True)
        await streams(a, 6, stack)
        await eventually(lambda: one.scheduler.in_flight == 6)
        await eventually(lambda: load_of_peers(b)[0] == 6)
        await streams(b, 6, stack)
        await eventually(lambda: one.scheduler.in_flight + other.scheduler.in_flight == 12)
        assert (one.scheduler.in_flight, other.scheduler.in_flight) == (6, 6)
        metrics = (await b.http.get("/metrics")).text
        assert 'forebay_endpoint_peers_load{endpoint="engine-0",pool="main",what="requests"} 6.0' in metrics
        explained = await b.http.post("/v1/explain/chat/completions", json={"model": MODEL, "messages": [
            {"role": "user", "content": "hello"}]})  # fmt: skip
        assert [candidate["in_flight"] for candidate in explained.json()["candidates"]] == [6, 6]
        await stack.aclose()
        await eventually(lambda: load_of_peers(a) == load_of_peers(b) == (0, 0))


def load_of_peers(door: Door) -> tuple[int, int]:
    """Requests of other front doors at the first and the second endpoint."""
    routing = door.service.routing
    assert routing is not None
    loads = [member.load.peers.in_flight for member in routing.core.pools["main"].members.values()]
    return loads[0], loads[1]


async def test_front_doors_that_take_turns_spread_as_one(open_doors: OpenDoors) -> None:
    async with (
        EngineDouble(SLOW) as one,
        EngineDouble(SLOW) as other,
        open_doors(one, other) as doors,
        AsyncExitStack() as stack,
    ):
        await acquainted(*doors)
        expected = 0

        def begun() -> bool:
            return one.scheduler.in_flight + other.scheduler.in_flight == expected

        for turn in range(10):
            expected += 1
            await streams(doors[turn % 2], 1, stack)
            await eventually(begun)
            await asyncio.sleep(4 * TELL_EVERY_S)
        assert (one.scheduler.in_flight, other.scheduler.in_flight) == (5, 5)


async def test_reports_are_few_when_nothing_happens_and_bounded_when_much_does(
    open_doors: OpenDoors, valkey: str
) -> None:
    async with EngineDouble(FAST) as engine, open_doors(engine) as (a, b), counting(a, valkey) as counted:
        await acquainted(a, b)
        await asyncio.sleep(0.1)
        counted.clear()
        await asyncio.sleep(3 * HEARTBEAT_S)
        assert 4 <= len(counted) <= 8  # two front doors
        counted.clear()
        began = time.monotonic()
        for _ in range(20):
            await asyncio.gather(*(a.chat(f"{n}", max_tokens=2) for n in range(10)))
        took = time.monotonic() - began
        assert 0 < len(counted) <= took / TELL_EVERY_S + 2 * took / HEARTBEAT_S + 3


@asynccontextmanager
async def counting(door: Door, valkey: str) -> AsyncIterator[list[bytes]]:
    """Reports on the channel of the door's deployment, as they come."""
    found: list[bytes] = []
    client = create_client(valkey, deadline=5.0)
    heard = client.pubsub(ignore_subscribe_messages=True)
    await heard.subscribe(channel_of(door.service.config))

    async def read() -> None:
        while True:
            if (message := await heard.get_message(timeout=1.0)) is not None:
                found.append(message["data"])

    task = asyncio.create_task(read())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await heard.aclose()  # type: ignore[no-untyped-call]
        await client.aclose()


async def test_noise_on_the_channel_is_said_once_and_changes_nothing(
    open_doors: OpenDoors, valkey: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = create_client(valkey, deadline=5.0)
    async with EngineDouble() as engine, open_doors(engine) as (a, b):
        await acquainted(a, b)
        channel = channel_of(a.service.config)
        newer = b"\x92\x63" + encoded(Report("x", 1, []))[2:]
        for _ in range(5):
            for noise in (b"", b"\x00garbage", newer, b"x" * (3 << 20)):
                await client.publish(channel, noise)
        await client.publish(channel, encoded(Report("a third", 1, [])))
        await eventually(lambda: len(peers(a)) == len(peers(b)) == 2)
        assert (await a.chat(max_tokens=1)).status_code == 200
        assert (await a.http.get("/health")).json()["load_sharing"]["status"] == "up"
        said = [record.getMessage() for record in caplog.records if "of no use" in record.getMessage()]
        assert sorted({line.rpartition(": ")[2] for line in said}) == ["garbage", "of another version", "too large"]
        assert len(said) == 6  # by both
    await client.aclose()


async def test_valkey_dies_and_comes_back_while_requests_run(
    open_doors: OpenDoors, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay.platform.sharing.link")
    async with (
        valkey_of_its_own() as (start, first),
        EngineDouble(FAST) as engine,
        open_doors(engine, url=first.url) as (a, b),
    ):
        await acquainted(a, b)
        server, losses = first, 0
        while losses < 3:  # a machine that others use stands still for moments, but not each time
            losses += 1
            calm = await timed(a, 2.0)
            assert server.process is not None
            os.kill(server.pid, signal.SIGSTOP)  # it hangs first
            hanging = await timed(a, 1.0)
            assert (await sharing(a))["status"] == "down"
            server.process.kill()
            dead = await timed(a, 4.0)
            await asyncio.to_thread(server.process.wait)
            health = (await a.http.get("/health")).json()
            assert health["status"] == "degraded"
            assert (health["load_sharing"]["status"], health["load_sharing"]["peers"]) == ("down", 0)
            assert "forebay_load_shared 0.0" in (await a.http.get("/metrics")).text
            server = await start()
            await eventually(lambda: is_shared(a), every=0.05)
            await acquainted(a, b)
            usual, meanwhile = statistics.median(calm), sorted(hanging + dead)
            as_usual = meanwhile[len(meanwhile) * 95 // 100] < usual + 0.05
            if as_usual and meanwhile[-1] < max(calm) + 0.8 * DEADLINE_S:  # none waited for the loss to be noticed
                break
        else:
            pytest.fail(f"a request took {meanwhile[-1]} s in the last of {losses} losses, each time too long")
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if line.startswith("load is not shared")]) == 2 * losses  # by both
    assert len([line for line in said if line.startswith("load is shared")]) == 2 + 2 * losses


@asynccontextmanager
async def valkey_of_its_own() -> AsyncIterator[tuple[Callable[[], Awaitable[Daemon]], Daemon]]:
    """What starts it again, and the first one."""
    with state_directory() as state:
        started: list[Daemon] = []

        async def start() -> Daemon:
            started.append(await asyncio.to_thread(embedded.start_valkey, state))
            return started[-1]

        try:
            yield start, await start()
        finally:
            for server in started:  # the last holder ends the one that it started
                await asyncio.to_thread(server.release)


async def timed(door: Door, seconds: float) -> list[float]:
    """Seconds that requests took, of four clients without pause."""
    found: list[float] = []
    until = time.monotonic() + seconds

    async def ask(number: int) -> None:
        while (began := time.monotonic()) < until:
            assert (await door.chat(f"client {number}", max_tokens=1)).status_code == 200
            found.append(time.monotonic() - began)

    await asyncio.gather(*(ask(number) for number in range(4)))
    return found


async def sharing(door: Door) -> dict[str, Any]:
    found: dict[str, Any] = (await door.http.get("/health")).json()["load_sharing"]
    return found


async def is_shared(door: Door) -> bool:
    return bool((await sharing(door))["status"] == "up")


async def test_it_can_be_turned_off(open_doors: OpenDoors, valkey: str) -> None:
    async with (
        EngineDouble(FAST) as engine,
        open_doors(engine, router={"shareLoad": False}) as (a, b),
        counting(a, valkey) as said,
    ):
        assert (await a.chat(max_tokens=1)).status_code == 200
        await asyncio.sleep(1.5 * HEARTBEAT_S)
        assert (said, len(peers(a)), len(peers(b))) == ([], 0, 0)
        assert await sharing(a) == {"status": "off"}
        assert (await a.http.get("/health")).json()["status"] == "ok"
        assert "forebay_load_shared" not in (await a.http.get("/metrics")).text


async def test_a_front_door_that_is_killed_is_forgotten_within_seconds(database: str, valkey: str) -> None:
    """Processes; the one that stays has two workers, whose router process shares their load."""
    with state_directory() as directory:
        for name in ("a", "b"):
            (directory / name).mkdir()
        async with (
            EngineDouble(SLOW) as one,
            EngineDouble(SLOW) as other,
            front_door(directory / "a", [one.url, other.url], model=MODEL, postgres=database, valkey=valkey) as a,
            front_door(
                directory / "b", [one.url, other.url], model=MODEL, postgres=database, valkey=valkey, key=a.key,
                server={"workers": 2}, secrets={"cacheSalt": str(directory / "a/secrets/cache-salt"),
                                                "keyHash": str(directory / "a/secrets/key-hash")},
            ) as b,
            httpx.AsyncClient(headers={"authorization": f"Bearer {a.key}"}, timeout=30.0) as http,
        ):  # fmt: skip
            async def seen(what: str) -> list[float]:
                lines = (await http.get(f"{b.url}/metrics")).text.splitlines()
                found = [line for line in lines if line.startswith("forebay_endpoint_peers_load") and what in line]
                return [float(line.rpartition(" ")[2]) for line in found]

            async def b_sees(expected: list[float]) -> bool:
                return await seen('what="requests"') == expected

            asking = [asyncio.create_task(stream(http, a.url)) for _ in range(6)]
            await eventually(lambda: one.scheduler.in_flight + other.scheduler.in_flight == 6)
            await eventually(lambda: b_sees([3.0, 3.0]))
            assert sum(await seen('what="output"')) > 0
            health = (await http.get(f"{b.url}/health")).json()
            assert (health["status"], health["router"]) == ("ok", {"status": "ok"})
            assert (health["load_sharing"]["status"], health["load_sharing"]["peers"]) == ("up", 1)
            os.kill(a.pid, signal.SIGKILL)
            await eventually(lambda: b_sees([0.0, 0.0]), timeout=5.0)
            await asyncio.gather(*asking, return_exceptions=True)
            health = (await http.get(f"{b.url}/health")).json()
            assert (health["status"], health["load_sharing"]["peers"]) == ("ok", 0)


async def test_what_a_killed_front_door_knew_and_served_goes_on_at_the_other(database: str, valkey: str) -> None:
    """Processes, over engines whose events both follow; neither asks the other for its index."""
    talk = tokens(("a conversation", 640)).tolist()
    following = [*talk, *tokens(("its next turn", 64)).tolist()]
    with state_directory() as directory:
        for name in ("a", "b"):
            (directory / name).mkdir()
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(EngineDouble(HEARD)) for _ in range(2)]
            events = [{"kvEvents": one.events.endpoint, "kvReplay": one.events.replay} for one in engines if one.events]
            urls = [one.url for one in engines]
            a = await stack.enter_async_context(
                front_door(directory / "a", urls, model=MODEL, postgres=database, valkey=valkey, endpoints=events)
            )
            secrets = {"cacheSalt": str(directory / "a/secrets/cache-salt"),
                       "keyHash": str(directory / "a/secrets/key-hash")}  # fmt: skip
            b = await stack.enter_async_context(
                front_door(directory / "b", urls, model=MODEL, postgres=database, valkey=valkey, endpoints=events,
                           key=a.key, secrets=secrets)
            )  # fmt: skip
            http = await stack.enter_async_context(
                httpx.AsyncClient(headers={"authorization": f"Bearer {a.key}"}, timeout=30.0)
            )

            async def ask(url: str, prompt: list[int], **body: Any) -> dict[str, Any]:
                response = await http.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": prompt, **body})
                assert response.status_code == 200, response.text
                found: dict[str, Any] = response.json()
                return found

            async def cached_at_b() -> list[int]:
                body = {"model": MODEL, "prompt": following}
                response = await http.post(f"{b.url}/v1/explain/completions", json=body)
                return [one["cached"] for one in response.json()["candidates"]]

            async def b_hears_of_it() -> bool:
                return sorted(await cached_at_b()) == [0, 640]

            await ask(a.url, talk, max_tokens=1)
            await eventually(b_hears_of_it)
            prompts = [tokens((f"somebody {number}", 64)).tolist() for number in range(6)]
            asking = [asyncio.create_task(ask(a.url, prompt, max_tokens=1_000)) for prompt in prompts]
            await eventually(lambda: sum(one.scheduler.in_flight for one in engines) == 6)
            os.kill(a.pid, signal.SIGKILL)
            broken = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(one, httpx.TransportError) for one in broken)
            again = await asyncio.gather(*(ask(b.url, prompt, max_tokens=4) for prompt in prompts))
            assert [one["usage"]["completion_tokens"] for one in again] == [4] * 6
            await eventually(lambda: sum(one.scheduler.in_flight for one in engines) == 0)  # what a had asked, too
            usage = (await ask(b.url, following, max_tokens=1))["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 640


async def stream(http: httpx.AsyncClient, url: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": os.urandom(8).hex()}], "max_tokens": 1_000,
            "stream": True}  # fmt: skip
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        async for _ in response.aiter_lines():
            pass
