"""A request's wait for an engine against its tenant: who leaves, stalls or is cut leaves nothing booked."""

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

import pytest
from msgspec import structs

from forebay.platform.config.model import Timeouts
from forebay.platform.relay.call import Call
from forebay.platform.relay.client import Client, ClientLeft
from forebay.platform.relay.patience import Clock
from forebay.platform.relay.wait import Wait
from forebay.platform.tiers import Terms, TierTable
from forebay.router import Ask, Outcome, Placed, Refused, Result, Router, RouterUnavailable, Why
from tests.eventually import eventually

PLACED = Placed("a", 7, 0, 0.1, True)
TIMES = Timeouts(queue=5.0, heartbeat_after=0.02)
FAST = Terms("fast", 0, TIMES, Decimal(2))
SLOW = Terms("slow", 1, structs.replace(TIMES, queue=60.0, total=70.0), Decimal(1))
TIERS = TierTable([FAST, SLOW], "fast")


class _Inference:
    stream = True


class FakeCall:
    inference = _Inference()
    tier = "fast"

    def ask(
        self, exclude: tuple[str, ...], *, waited_s: float, patience_s: float, left_s: float, promised: bool, tier: str
    ) -> Ask:
        return Ask(
            "main", b"", 1, 1, exclude, patience_s=patience_s, waited_s=waited_s, left_s=left_s, promised=promised,
            tier=tier,
        )  # fmt: skip


class FakeRouter:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.ended_bookings: list[int] = []
        self.answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    async def place(self, ask: Ask) -> Result:
        self.asks.append(ask)
        return await self.answer

    def ended(self, booking: int, _: Outcome) -> None:
        self.ended_bookings.append(booking)


class House:
    def __init__(self) -> None:
        self.router = FakeRouter()
        self.sent: list[dict[str, Any]] = []
        self.reads = asyncio.Event()  # the tenant takes what it is sent
        self.reads.set()
        self.client = Client(self._receive, self._send, "req_1")
        self.clock = Clock(asyncio.get_running_loop().time())
        self.wait = Wait(cast("Call", FakeCall()), self.client, cast("Router", self.router), TIERS, self.clock)

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        await self.reads.wait()

    async def waiting(self) -> "asyncio.Task[Result]":
        task = asyncio.create_task(self.wait.place(()))
        await asyncio.sleep(0)
        assert len(self.router.asks) == 1
        return task

    def leave(self) -> None:
        self.client._leave()


async def test_what_the_router_answers_is_what_comes_of_the_wait() -> None:
    for answer in (PLACED, Refused(Why.FULL, 1.0), None):
        house = House()
        house.router.answer.set_result(answer)
        assert await house.wait.place(("b",)) == answer
        assert house.router.asks[0].exclude == ("b",)
        assert house.router.asks[0].patience_s == 5.0
        assert house.client.on_left is None
        await asyncio.sleep(0.05)
        assert not house.sent


async def test_a_tenant_who_leaves_ends_the_wait_and_its_task_goes_on() -> None:
    house = House()

    async def request() -> str:
        with pytest.raises(ClientLeft):
            await house.wait.place(())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)
        with pytest.raises(ClientLeft):
            await house.wait.place(())
        return "went on"

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    house.leave()
    assert await task == "went on"
    assert house.router.answer.cancelled()
    assert len(house.router.asks) == 1


async def test_a_request_that_is_cut_while_it_waits_is_cut() -> None:
    house = House()
    task = await house.waiting()
    house.leave()
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert house.router.answer.cancelled()


async def test_heartbeats_begin_after_a_while_and_count_for_what_follows() -> None:
    house = House()
    before = house.wait.quiet_since
    task = await house.waiting()
    await eventually(lambda: len(house.sent) >= 4)
    house.router.answer.set_result(PLACED)
    assert await task == PLACED
    assert house.sent[0]["type"] == "http.response.start"
    assert house.client.started
    assert house.wait.quiet_since > before
    sent = len(house.sent)
    await asyncio.sleep(0.06)
    assert len(house.sent) == sent


async def test_nobody_else_writes_while_a_heartbeat_is_on_its_way() -> None:
    house = House()
    house.reads.clear()
    task = await house.waiting()
    await eventually(lambda: house.sent)
    house.router.answer.set_result(PLACED)
    await asyncio.sleep(0.03)
    assert not task.done()
    house.reads.set()
    assert await task == PLACED
    assert not house.router.ended_bookings


def _leaves(house: House, _: "asyncio.Task[Result]") -> None:
    house.leave()


def _is_cut(_: House, task: "asyncio.Task[Result]") -> None:
    task.cancel()


@pytest.mark.parametrize(("end", "error"), [(_leaves, ClientLeft), (_is_cut, asyncio.CancelledError)])
async def test_what_was_placed_for_a_tenant_who_does_not_read_any_more_is_given_back(
    end: Callable[[House, "asyncio.Task[Result]"], None], error: type[BaseException]
) -> None:
    house = House()
    house.reads.clear()
    task = await house.waiting()
    await eventually(lambda: house.sent)
    house.router.answer.set_result(PLACED)
    await asyncio.sleep(0.01)
    end(house, task)
    with pytest.raises(error):
        await task
    assert house.router.ended_bookings == [7]
    assert all(one.done() for one in asyncio.all_tasks() if one is not asyncio.current_task())


async def test_a_router_that_fails_while_a_heartbeat_is_on_its_way_leaves_no_writer_behind() -> None:
    house = House()
    house.reads.clear()
    task = await house.waiting()
    await eventually(lambda: house.sent)
    house.router.answer.set_exception(RouterUnavailable("gone"))
    with pytest.raises(RouterUnavailable):
        await task
    assert all(one.done() for one in asyncio.all_tasks() if one is not asyncio.current_task())


async def test_patience_is_for_all_waits_of_a_request_together() -> None:
    house = House()
    task = await house.waiting()
    await asyncio.sleep(0.1)
    house.router.answer.set_result(None)
    assert await task is None
    await asyncio.sleep(0.1)  # at an engine, say
    house.router.answer = asyncio.get_running_loop().create_future()
    house.router.answer.set_result(PLACED)
    await house.wait.place(("a",))
    second = house.router.asks[1]
    assert 4.8 <= second.patience_s <= 4.91
    assert second.waited_s >= 0.19
    assert not second.promised  # no engine has had it
    assert second.tier == "fast"


async def test_a_request_goes_on_in_the_tier_in_which_it_was_placed_first() -> None:
    """It is asked for as one that was let in there: nothing downgrades it once more, or back."""
    house = House()
    house.router.answer.set_result(structs.replace(PLACED, tier="slow"))
    for exclude in ((), ("a",), ("a", "b")):
        await house.wait.place(exclude)
    assert [(ask.tier, ask.promised) for ask in house.router.asks] == [("fast", False), ("slow", True), ("slow", True)]
    assert house.router.asks[2].patience_s > 50  # as that tier waits


async def test_it_waits_no_longer_than_the_request_may_take() -> None:
    house = House()
    house.router.answer.set_result(structs.replace(PLACED, tier="slow"))
    house.clock.came_at -= 40
    await house.wait.place(())
    assert house.router.asks[0].patience_s <= 5.0
    await house.wait.place(("a",))
    assert 29.0 < house.router.asks[1].patience_s <= 30.0
    house.clock.came_at -= 40
    await house.wait.place(("a",))
    assert house.router.asks[2].patience_s == 0
