"""Background loops: a fault is logged and the loop begins again; an end is an end even if somebody swallows it."""

import asyncio
import logging

import pytest

from forebay.platform import tasks
from tests.eventually import eventually


async def test_a_loop_that_fails_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "RESTART_AFTER_S", 0.01)
    runs = []

    async def work() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise RuntimeError("broken")
        await asyncio.sleep(60)

    with caplog.at_level(logging.ERROR):
        task = tasks.background("loop", work)
        await eventually(lambda: len(runs) == 3)
        await tasks.end(task)
    assert task.done()
    assert [record.message for record in caplog.records] == ["loop failed and is started again"] * 2


async def test_an_end_is_final_even_where_a_cancellation_is_swallowed() -> None:
    swallowed = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.append(1)

    task = tasks.background("loop", work)
    await asyncio.sleep(0.01)
    async with asyncio.timeout(3):
        await tasks.end(task)
    assert swallowed
    assert len(swallowed) == 1


async def test_a_loop_that_fails_inside_a_task_group_is_started_again_and_still_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "RESTART_AFTER_S", 0.01)
    runs: list[bool] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    async def work() -> None:
        runs.append(tasks.ending())
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
            if len(runs) < 3:
                group.create_task(fail())

    task = tasks.background("loop", work)
    await eventually(lambda: len(runs) == 3)
    await asyncio.sleep(0.05)
    assert not task.done()
    assert runs == [False] * 3
    async with asyncio.timeout(3):
        await tasks.end(task)
    assert task.cancelled()


async def test_what_works_in_a_loop_knows_that_it_is_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "RESTART_AFTER_S", 0.01)
    seen: list[bool] = []

    async def work() -> None:
        while not tasks.ending():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:  # as a driver may that closes its connection
                seen.append(tasks.ending())

    task = tasks.background("loop", work)
    await asyncio.sleep(0.01)
    async with asyncio.timeout(3):
        await tasks.end(task)
    assert seen == [True]
