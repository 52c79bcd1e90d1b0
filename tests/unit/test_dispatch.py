"""Requests that wait in the router, on a clock of numbers: who is told what, and when. Rates are the cold ones, half a
millisecond for a prompt token, so an engine has room again when less than 500 tokens are booked ahead there."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from forebay.router.clocked import LocalRouter, SharedRouter
from forebay.router.core import Core
from forebay.router.dispatch import PUMP_S, Dispatch
from forebay.router.line import Line
from forebay.router.routing import Ask, Outcome, Placed, Refused, Result, Why
from tests.eventually import eventually
from tests.virtual import POOL, WEIGHTS

LONG = 10_000


class House:
    """A router over engines that say what the test says. `now` is moved by the test, and `looks` counts how often
    somebody looked at the clock."""

    def __init__(self, *engines: str) -> None:
        self.now = 1000.0
        self.looks = 0
        self.core = Core({POOL: engines or ("a",)}, WEIGHTS)
        self.dispatch = Dispatch(self.core, self._clock)
        self.router = LocalRouter(self.dispatch)
        self.shared = SharedRouter(self.dispatch)

    def _clock(self) -> float:
        self.looks += 1
        return self.now

    @property
    def waiting(self) -> int:
        return len(self.core.lines[POOL].line)

    async def placed(self, tokens: int, **ask: Any) -> Placed:
        result = await self.router.place(request(tokens, **ask))
        assert isinstance(result, Placed)
        return result

    async def wait(self, tokens: int, **ask: Any) -> "asyncio.Task[Result]":
        """One that waits."""
        before = self.waiting
        task = asyncio.create_task(self.router.place(request(tokens, **ask)))
        await asyncio.sleep(0)
        assert self.waiting == before + 1
        return task

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.core.tick(self.now)
        self.dispatch.pump()

    def idle(self) -> bool:
        loads = [member.load for member in self.core.pools[POOL].members.values()]
        return not self.core.bookings and not self.waiting and not any(load.in_flight for load in loads)


def request(tokens: int, **ask: Any) -> Ask:
    return Ask(POOL, b"", tokens, 64, **ask)


def at_once(placing: Coroutine[Any, Any, Result]) -> Result:
    """Raises AssertionError where it has to be waited for."""
    try:
        placing.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    placing.close()
    raise AssertionError("it waits")


def test_where_there_is_room_nothing_is_waited_for_and_no_event_loop_is_needed() -> None:
    house = House()
    assert isinstance(at_once(house.router.place(request(LONG))), Placed)
    assert at_once(house.router.place(Ask("nowhere", b"", 10, 10))) is None


async def test_what_waits_is_placed_shortest_first_and_one_behind_the_other() -> None:
    house = House()
    running = await house.placed(LONG)
    longer = await house.wait(4_000)
    shorter = await house.wait(1_000)
    assert (await house.router.explain(request(2_000))).before == 1
    house.router.begun(running.booking)
    first = await shorter
    assert isinstance(first, Placed)
    assert house.waiting == 1
    assert not longer.done()
    house.router.ended(first.booking, Outcome())
    second = await longer
    assert isinstance(second, Placed)
    house.router.ended(second.booking, Outcome())
    house.router.ended(running.booking, Outcome())
    assert house.idle()


async def test_one_that_has_waited_elsewhere_already_is_not_put_behind() -> None:
    house = House()
    running = await house.placed(LONG)
    shorter = await house.wait(1_000)
    moved = await house.wait(2_000, waited_s=10.0)
    house.router.begun(running.booking)
    assert isinstance(await moved, Placed)
    assert not shorter.done()
    shorter.cancel()


async def test_a_prefill_that_is_predicted_to_end_lets_the_next_in_without_a_word() -> None:
    house = House()
    await house.placed(700)
    waiting = await house.wait(600)
    await asyncio.sleep(3 * PUMP_S)
    assert not waiting.done()
    house.now += 0.3
    assert isinstance(await asyncio.wait_for(waiting, 5), Placed)


async def test_the_clock_is_left_alone_while_nobody_waits() -> None:
    house = House()
    running = await house.placed(LONG)
    waiting = await house.wait(600)
    looks = house.looks
    await eventually(lambda: house.looks > looks + 2)
    house.router.begun(running.booking)
    await waiting
    looks = house.looks
    await asyncio.sleep(3 * PUMP_S)
    assert house.looks == looks
    again = await house.wait(600)
    again.cancel()
    await asyncio.wait((again,))
    looks = house.looks
    await asyncio.sleep(3 * PUMP_S)
    assert house.looks == looks


async def test_whoever_is_cancelled_waits_no_more_and_leaves_nothing() -> None:
    house = House()
    running = await house.placed(LONG)
    waiting = await house.wait(600)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert not house.waiting
    house.router.ended(running.booking, Outcome())
    assert house.idle()


@pytest.mark.parametrize("order", ["placed first", "cancelled first"])
async def test_whoever_is_cancelled_in_the_moment_of_its_placement_leaves_nothing_booked(order: str) -> None:
    house = House()
    running = await house.placed(LONG)
    waiting = await house.wait(600)
    if order == "placed first":
        house.router.ended(running.booking, Outcome())
        waiting.cancel()
    else:
        waiting.cancel()
        house.router.ended(running.booking, Outcome())
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert house.idle()


async def test_one_that_gives_its_place_back_lets_the_next_in() -> None:
    house = House()
    running = await house.placed(LONG)
    gone = await house.wait(4_000)
    house.router.ended(running.booking, Outcome())  # it is placed, and has not heard yet
    gone.cancel()
    next_one = asyncio.create_task(house.router.place(request(600)))
    assert isinstance(await asyncio.wait_for(next_one, 5), Placed)


async def test_nobody_waits_longer_than_it_may() -> None:
    house = House()
    await house.placed(LONG)
    short, long = await house.wait(600, patience_s=5.0), await house.wait(600, patience_s=50.0)
    house.tick(4.9)
    await asyncio.sleep(0)
    assert not short.done()
    house.tick(0.2)
    refused = await short
    assert isinstance(refused, Refused)
    assert refused.why is Why.LATE
    assert refused.retry_s > 0
    assert not long.done()
    long.cancel()


async def test_who_finds_too_many_waiting_is_refused_at_once() -> None:
    house = House()
    house.core.lines[POOL].line = Line(most=1)
    await house.placed(LONG)
    waiting = await house.wait(600)
    refused = at_once(house.router.place(request(600)))
    assert isinstance(refused, Refused)
    assert refused.why is Why.FULL
    waiting.cancel()


async def test_when_the_last_engine_goes_nobody_waits_for_it() -> None:
    house = House("a", "b")
    await house.placed(LONG)
    await house.placed(LONG)
    waiting = await house.wait(600)
    house.router.failed(POOL, "a", "refused", at_once=True)
    await asyncio.sleep(0)
    assert not waiting.done()
    house.router.failed(POOL, "b", "refused", at_once=True)
    assert await waiting is None


async def test_an_owner_that_goes_takes_what_it_waits_for_and_makes_room_for_the_others() -> None:
    house, gone, stayed = House(), list[Result](), list[Result]()
    assert house.shared.place(request(LONG), 1, gone.append) is None
    assert house.shared.place(request(600), 1, gone.append) is not None
    assert house.shared.place(request(700), 2, stayed.append) is not None
    assert (len(gone), len(stayed), house.waiting) == (1, 0, 2)
    house.shared.release_owner(1)
    assert (len(gone), len(stayed), house.waiting) == (1, 1, 0)
    assert house.core.bookings == 1


async def test_who_withdraws_is_told_nothing() -> None:
    house, told = House(), list[Result]()
    house.shared.place(request(LONG), 1, told.append)
    number = house.shared.place(request(600), 1, told.append)
    assert number is not None
    assert len(told) == 1
    house.shared.withdraw(number)
    house.shared.withdraw(number)
    assert not house.waiting
    house.shared.release_owner(1)
    assert len(told) == 1
    assert house.idle()


async def test_answers_that_do_not_say_when_they_begin_are_not_held_back_for_each_other() -> None:
    house = House()
    placed = [at_once(house.router.place(request(LONG, stream=False))) for _ in range(20)]
    assert all(isinstance(one, Placed) for one in placed)
    assert isinstance(at_once(house.router.place(request(LONG))), Placed)  # the first that does
    waiting = await house.wait(600, stream=False)
    waiting.cancel()
