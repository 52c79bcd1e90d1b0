"""Many who are woken at once do not keep the loop from others, and each is woken once, in order."""

import asyncio
import logging

import pytest

from forebay.router.crowd import FEW, Crowd, in_turn


class Slow:
    """A clock by which whoever is woken takes a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def works(self, gate: "asyncio.Future[None]", done: list[int], number: int) -> None:
        await gate
        self.now += 0.001
        done.append(number)


async def test_others_have_their_turns_between_those_of_a_crowd() -> None:
    loop, clock, done = asyncio.get_running_loop(), Slow(), list[int]()
    crowd = Crowd(loop, clock)
    gates: list[asyncio.Future[None]] = [loop.create_future() for _ in range(200)]
    tasks = [asyncio.create_task(clock.works(gate, done, n)) for n, gate in enumerate(gates)]
    await asyncio.sleep(0)
    for gate in gates:
        crowd.wake(gate.set_result, None)
    assert sum(gate.done() for gate in gates) == FEW
    before = 0
    while len(done) < len(gates):
        await asyncio.sleep(0)  # another's turn
        assert len(done) - before <= FEW, before
        before = len(done)
    assert done == list(range(200))
    await asyncio.gather(*tasks)


async def test_those_who_take_little_are_woken_by_many() -> None:
    crowd, turns, woken = Crowd(asyncio.get_running_loop(), lambda: 0.0), 0, list[int]()
    for number in range(4000):
        crowd.wake(woken.append, number)
    while len(woken) < 4000:
        await asyncio.sleep(0)
        turns += 1
    assert woken == list(range(4000))
    assert turns < 100


async def test_a_crowd_does_not_wait_for_ever_where_others_make_the_turns_long() -> None:
    """A few of 500 in each turn of half a second would be minutes."""
    loop, clock, done = asyncio.get_running_loop(), Slow(), list[int]()
    crowd = Crowd(loop, clock)
    gates: list[asyncio.Future[None]] = [loop.create_future() for _ in range(500)]
    tasks = [asyncio.create_task(clock.works(gate, done, n)) for n, gate in enumerate(gates)]
    await asyncio.sleep(0)
    for gate in gates:
        crowd.wake(gate.set_result, None)
    while len(done) < 500:
        assert clock.now < 15.0
        clock.now += 0.5
        await asyncio.sleep(0)
    assert done == list(range(500))
    await asyncio.gather(*tasks)


async def test_a_few_are_woken_at_once_and_nobody_overtakes() -> None:
    crowd, woken = Crowd(asyncio.get_running_loop()), list[str]()
    for number in range(FEW + 1):
        crowd.wake(woken.append, str(number))
    assert len(woken) == FEW
    await asyncio.sleep(0)
    crowd.wake(woken.append, "late")
    for _ in range(8):
        await asyncio.sleep(0)
    assert woken == [*map(str, range(FEW + 1)), "late"]
    crowd.wake(woken.append, "alone")
    assert woken[-1] == "alone"


async def test_a_fault_in_one_is_no_other_ones(caplog: pytest.LogCaptureFixture) -> None:
    woken: list[int] = []
    for number in range(3 * FEW):
        if number == FEW + 1:
            in_turn(lambda: 1 // 0)
        in_turn(woken.append, number)
    with caplog.at_level(logging.CRITICAL, "asyncio"):
        while len(woken) < 3 * FEW:
            await asyncio.sleep(0)
    assert woken == list(range(3 * FEW))
