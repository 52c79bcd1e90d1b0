"""A worker's router and the router process, over a real socket in one event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from forebay.router.endpoints import EndpointSpec, Roster
from forebay.router.remote import RemoteRouter, RouterServer, RouterUnavailable
from forebay.router.remote.channel import UNSENT_LIMIT
from forebay.router.remote.wire import VERSION, Explain, Hello, States, frame
from forebay.router.routing import Ask, EndpointState, Health, Outcome, Placed, Refused, Why
from tests.doubles.shared_router import SharedRouter
from tests.eventually import eventually

ASK = Ask("main", b"12345678", 40, 10, session="0123456789abcdef" * 2)
PATIENT = msgspec.structs.replace(ASK, patience_s=30.0)


def spec(name: str) -> EndpointSpec:
    return EndpointSpec(name, f"http://{name}:8000", "vllm", "m", "its key", False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "router"


@asynccontextmanager
async def served(router: SharedRouter, path: Path, **options: object) -> AsyncIterator[RouterServer]:
    async with RouterServer(router, ["main"], path, **options) as server:  # type: ignore[arg-type]
        telling = asyncio.create_task(server.run())
        try:
            yield server
        finally:
            telling.cancel()


@asynccontextmanager
async def worker(path: Path, name: str = "0", **options: object) -> AsyncIterator[RemoteRouter]:
    router = RemoteRouter(path, name, **options)  # type: ignore[arg-type]
    running = asyncio.create_task(router.run())
    try:
        await router.until_connected(5.0)
        yield router
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_places_and_tells_in_the_order_in_which_it_does(path: Path) -> None:
    router = SharedRouter()
    async with served(router, path), worker(path) as client:
        placed = await client.place(ASK)
        assert isinstance(placed, Placed)
        assert (placed.endpoint, placed.cached, placed.alone) == ("e-0", 8, True)
        assert router.asked == [ASK]
        client.answered("main", "e-0")
        client.begun(placed.booking)
        outcome = Outcome(prompt_tokens=40, cached=8, output=3, first_token_s=0.1, returns=True)
        client.ended(placed.booking, outcome)
        client.failed("main", "e-0", "refused", at_once=True)
        await eventually(lambda: len(router.heard) == 4)
        assert router.heard == [
            ("answered", "main", "e-0"),
            ("begun", 1),
            ("ended", 1, outcome),
            ("failed", "main", "e-0", "refused", True),
        ]
        assert await client.place(Ask("nowhere", b"", 1, 1)) is None
        assert [candidate.endpoint for candidate in (await client.explain(ASK)).candidates] == ["e-0"]


async def test_tiers_are_told_both_ways(path: Path) -> None:
    router = SharedRouter()
    async with served(router, path), worker(path) as client:
        ask = Ask("main", b"", 1, 1, tier="flex", tenant="ten_1")
        placed = await client.place(ask)
        assert isinstance(placed, Placed)
        assert placed.tier == "flex"
        assert router.asked == [ask]
        router.busy = True
        waits = asyncio.create_task(client.place(ask))
        await eventually(lambda: router.waiting)
        router.settle(Refused(Why.CAPACITY, 12.5, "flex"))
        assert await waits == Refused(Why.CAPACITY, 12.5, "flex")


async def test_answers_find_their_questions_when_many_are_asked_at_once(path: Path) -> None:
    async with served(SharedRouter(), path), worker(path) as client:
        placed = await asyncio.gather(*(client.place(Ask("main", bytes(8 * n), n, 1)) for n in range(200)))
        assert [p.cached for p in placed if isinstance(p, Placed)] == [8 * n for n in range(200)]


async def test_workers_see_each_others_bookings_and_one_that_goes_takes_only_its_own(path: Path) -> None:
    router = SharedRouter()
    async with served(router, path), worker(path, "0") as stays:
        first = await stays.place(ASK)
        async with worker(path, "1") as leaves:
            second = await leaves.place(ASK)
            assert isinstance(first, Placed)
            assert isinstance(second, Placed)
            assert not second.alone
            assert len(router.booked) == 2
        await eventually(lambda: len(router.booked) == 1)
        stays.ended(first.booking, Outcome())
        await eventually(lambda: not router.booked)


async def test_endpoints_are_known_at_once_and_as_they_change(path: Path) -> None:
    router = SharedRouter()
    async with served(router, path), worker(path) as client:
        assert client.states("main") == router.endpoints["main"]
        router.endpoints["main"]["e-0"] = EndpointState("main", "e-0", Health.DOWN, "refused")
        await eventually(lambda: client.states("main")["e-0"].reason == "refused")
        router.endpoints["main"] = {"e-1": EndpointState("main", "e-1")}
        await eventually(lambda: list(client.states("main")) == ["e-1"])
        assert client.states("nowhere") == {}


async def test_a_worker_knows_how_an_endpoint_is_reached_before_anything_is_placed_there(path: Path) -> None:
    router, roster = SharedRouter(), Roster({"main": [spec("e-1")]})
    async with served(router, path, roster=roster), worker(path) as client:
        assert client.roster.pools == {"main": (spec("e-1"),)}
        heard: list[tuple[str, ...]] = []
        client.roster.listen(lambda _, specs: heard.append(tuple(one.name for one in specs)))
        assert heard == [("e-1",)]
        asking = asyncio.create_task(client.place(ASK))
        await asyncio.sleep(0)  # it is sent
        roster.change("main", [spec("e-0"), spec("e-1")])
        placed = await asking
        assert isinstance(placed, Placed)
        assert placed.endpoint in {one.name for one in client.roster.pools["main"]}
        roster.change("main", [spec("e-0"), spec("e-1")])
        roster.change("main", [])
        await eventually(lambda: client.roster.pools == {"main": ()})
        assert heard == [("e-1",), ("e-0", "e-1"), ()]


async def test_a_question_that_nobody_waits_for_any_more_leaves_no_booking(path: Path) -> None:
    router = SharedRouter()
    async with served(router, path), worker(path) as client:
        asking = asyncio.create_task(client.place(ASK))
        await asyncio.sleep(0)  # it is sent
        asking.cancel()
        await eventually(lambda: router.asked)
        await eventually(lambda: not router.booked)


@asynccontextmanager
async def silent(path: Path) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """A router that welcomes workers, and answers nothing. Yields its connections."""
    accepted: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        writer.write(frame(States([], True)))

    async with await asyncio.start_unix_server(accept, path):
        yield accepted
        for writer in accepted:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def raw(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that says what it wants."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_a_router_that_does_not_answer_is_not_waited_for_for_long(path: Path) -> None:
    async with silent(path), worker(path, deadline=0.05) as client:
        with pytest.raises(RouterUnavailable, match="did not answer within"):
            await client.place(ASK)


async def test_a_router_that_is_away_fails_what_is_asked_and_is_found_again(path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with served(SharedRouter(), path):
            client = await stack.enter_async_context(worker(path, deadline=0.1))
            before = await client.place(ASK)
        with pytest.raises(RouterUnavailable):
            await client.place(ASK)
        restarted = SharedRouter()
        async with served(restarted, path):
            await client.until_connected(5.0)
            after = await client.place(ASK)
            assert isinstance(before, Placed)
            assert isinstance(after, Placed)
            client.ended(before.booking, Outcome())  # of the router that went: the new one has the same number in use
            client.begun(after.booking)
            await eventually(lambda: restarted.heard)
            assert restarted.heard == [("begun", 1)]
            assert list(restarted.booked) == [1]


async def test_questions_in_flight_fail_when_the_router_goes(path: Path) -> None:
    async with silent(path) as accepted, worker(path) as client:
        asking = asyncio.create_task(client.place(ASK))
        await asyncio.sleep(0)
        accepted[0].transport.abort()
        with pytest.raises(RouterUnavailable, match="gone"):
            await asking


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(Hello(VERSION, "1")) + b"\x00\x00\x00\x02\x91\xff",
        frame(Hello(VERSION + 1, "1")),
        frame(Explain(1, ASK)),
    ],
)
async def test_nonsense_ends_its_own_connection_only(path: Path, said: bytes) -> None:
    router = SharedRouter()
    async with served(router, path), worker(path) as client:
        async with raw(path) as (reader, writer):
            writer.write(said)
            await _until_closed(reader)
        assert await client.place(ASK) is not None


async def _until_closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(5.0):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionResetError:
            pass


async def test_a_worker_that_does_not_read_is_not_answered_into_memory(path: Path) -> None:
    router = SharedRouter()
    router.explained = 2000  # some 200 KB an answer
    async with served(router, path) as server, worker(path) as client, raw(path) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(frame(Hello(VERSION, "slow")))
        await eventually(lambda: "slow" in server.workers)
        slow = server.workers["slow"]
        for number in range(1000):
            writer.write(frame(Explain(number, ASK)))
        await eventually(lambda: slow.gone or not slow.ready)
        assert slow.unsent <= UNSENT_LIMIT + (1 << 20)
        assert await client.place(ASK) is not None


async def test_either_side_can_ask_the_other_by_name(path: Path) -> None:
    async def shout(peer: str, body: bytes) -> bytes:
        return f"{peer}: ".encode() + body.upper()

    async def fault(_: str, __: bytes) -> bytes:
        raise ValueError("no")

    handlers = {"shout": shout, "fault": fault}
    async with (
        served(SharedRouter(), path, handlers=handlers) as server,
        worker(path, "0", handlers=handlers) as client,
        worker(path, "1"),
    ):
        assert await client.query("shout", b"hello", timeout=5.0) == b"0: HELLO"
        assert await server.gather("shout", b"hello", timeout=5.0) == {"0": b"router: HELLO", "1": None}
        with pytest.raises(RouterUnavailable, match="ValueError: no"):
            await client.query("fault", timeout=5.0)


async def test_a_worker_that_hangs_holds_up_a_round_of_questions_for_its_deadline_only(path: Path) -> None:
    async def hang(_: str, __: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def well(_: str, __: bytes) -> bytes:
        return b"well"

    async with (
        served(SharedRouter(), path) as server,
        worker(path, "0", handlers={"how": hang}),
        worker(path, "1", handlers={"how": well}),
    ):
        assert await server.gather("how", timeout=0.05) == {"0": None, "1": b"well"}


async def test_a_request_may_wait_longer_than_the_router_may_be_silent(path: Path) -> None:
    router = SharedRouter()
    router.busy = True
    async with served(router, path), worker(path, deadline=0.1) as client:
        first, second = asyncio.create_task(client.place(PATIENT)), asyncio.create_task(client.place(PATIENT))
        await asyncio.sleep(0.3)
        assert len(router.waiting) == 2
        assert (await client.explain(ASK)).before == 2
        router.settle()
        assert isinstance(await first, Placed)
        assert not second.done()
        router.settle(Refused(Why.FULL, 3.5))
        assert await second == Refused(Why.FULL, 3.5)


async def test_a_worker_that_got_no_answer_in_time_does_not_leave_its_request_in_the_line(path: Path) -> None:
    router = SharedRouter()
    router.busy = True
    impatient = msgspec.structs.replace(ASK, patience_s=0.1)
    async with served(router, path), worker(path, deadline=0.1) as client:
        with pytest.raises(RouterUnavailable, match="did not answer within"):
            await asyncio.wait_for(client.place(impatient), 5.0)
        await eventually(lambda: not router.waiting)
        router.busy = False
        assert isinstance(await client.place(ASK), Placed)
        assert len(router.booked) == 1


async def test_a_wait_that_is_cancelled_is_withdrawn_and_forgotten(path: Path) -> None:
    router = SharedRouter()
    router.busy = True
    async with served(router, path) as server, worker(path) as client:
        waiting = asyncio.create_task(client.place(PATIENT))
        await eventually(lambda: router.waiting)
        waiting.cancel()
        await eventually(lambda: router.heard == [("withdrawn", 1)])
        router.busy = False
        placed = await client.place(ASK)  # it comes behind the answer to the withdrawal
        assert isinstance(placed, Placed)
        assert list(router.booked) == [1]
        assert client._link is not None
        assert not client._link._asked
        assert not server.workers["0"]._unanswered


async def test_a_placement_on_its_way_to_one_who_waits_no_more_is_given_back(path: Path) -> None:
    router = SharedRouter()
    router.busy = True
    async with served(router, path), worker(path) as client:
        waiting = asyncio.create_task(client.place(PATIENT))
        await eventually(lambda: router.waiting)
        router.settle()
        waiting.cancel()
        await eventually(lambda: router.heard)
        assert not router.booked
        assert [heard[0] for heard in router.heard] == ["ended"]


async def test_a_worker_that_goes_waits_no_more(path: Path) -> None:
    router = SharedRouter()
    router.busy = True
    async with served(router, path), worker(path, "0") as stays:
        kept = asyncio.create_task(stays.place(PATIENT))
        async with worker(path, "1") as leaves:
            lost = asyncio.create_task(leaves.place(PATIENT))
            await eventually(lambda: len(router.waiting) == 2)
        with pytest.raises(RouterUnavailable):
            await lost
        await eventually(lambda: len(router.waiting) == 1)
        router.settle()
        assert isinstance(await kept, Placed)
