"""Who gets in, what is held for whom, and who is next."""

import asyncio

import pytest

from forebay.platform.api.bounds import Memory, Turns
from forebay.platform.errors import ApiError


def test_memory_is_bounded_per_project_and_in_all_and_given_back() -> None:
    memory = Memory(25, 10, body_limit=5)
    with memory.hold("a") as mine, memory.hold("b") as other, memory.hold("c") as third:
        mine.at_least(10)
        mine.at_least(3)  # it holds more already
        with memory.hold("a") as more, pytest.raises(ApiError) as caught:
            more.at_least(1)
        assert caught.value.status == 429
        other.at_least(4)
        other.at_least(10)
        with pytest.raises(ApiError) as caught:
            third.at_least(6)
        assert caught.value.status == 503
        third.at_least(5)
        assert memory.held == 25
    assert memory.held == 0
    with memory.hold("a") as again:
        again.at_least(10)


def test_one_body_of_the_largest_size_always_fits() -> None:
    memory = Memory(1, 1, body_limit=1000)
    with memory.hold("a") as held:
        held.at_least(1000)
        assert memory.held == 1000


async def test_turns_go_round_the_projects() -> None:
    turns, order = Turns(), []

    async def work(project: str) -> None:
        async with turns.take(project):
            order.append(project)
            await asyncio.sleep(0)

    await asyncio.gather(*(work("a") for _ in range(5)), *(work("b") for _ in range(2)), work("c"))
    assert order.index("c") <= 3
    assert sorted(order) == ["a"] * 5 + ["b"] * 2 + ["c"]


async def test_turns_survive_those_who_leave_the_queue() -> None:
    turns = Turns()
    async with turns.take("a"):
        waiting = [asyncio.create_task(_take(turns, project)) for project in ("a", "b")]
        await asyncio.sleep(0)
        waiting[0].cancel()
    await asyncio.wait(waiting, timeout=1.0)
    assert waiting[1].result()


async def _take(turns: Turns, project: str) -> bool:
    async with turns.take(project):
        return True
