"""Requests that wait, in a front door of several processes, and while it is told to stop."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.processes import Door, front_door
from tests.stores import state_directory

MODEL = "smollm2-135m-instruct"


@asynccontextmanager
async def opened(
    engine: EngineDouble, postgres: str, valkey: str, *, workers: int, drain: float = 5.0
) -> AsyncIterator[Door]:
    with state_directory() as state:
        async with front_door(
            state, [engine.url], model=MODEL, postgres=postgres, valkey=valkey,
            server={"workers": workers, "drainTimeout": drain}, timeouts={"heartbeatAfter": 0.2},
        ) as door:  # fmt: skip
            yield door


async def chat(door: Door, name: str, tokens: int, **members: Any) -> httpx.Response:
    """On a connection of its own, so that any worker may accept it."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{name} " + "word " * tokens}], "max_tokens": 2}
    async with httpx.AsyncClient(
        base_url=door.url, headers={"authorization": f"Bearer {door.key}"}, timeout=30.0
    ) as client:
        return await client.post("/v1/chat/completions", json={"stream": True, **body, **members})


async def waiting(door: Door) -> int:
    async with httpx.AsyncClient(base_url=door.url) as client:
        count: int = (await client.get("/health")).json()["waiting"]["main"]
        return count


def noted(answered: list[int], tokens: int, _: object) -> None:
    answered.append(tokens)


async def waits(door: Door, count: int) -> None:
    async def so_many() -> bool:
        return await waiting(door) == count

    await eventually(so_many, 5.0, every=0.05)


async def test_two_workers_requests_wait_in_one_line_and_one_that_leaves_is_out_of_it(
    database: str, valkey: str
) -> None:
    settings = Settings(prefill_rate=1_000.0, answer_tokens=None)
    async with EngineDouble(settings) as engine, opened(engine, database, valkey, workers=2) as door:
        long = asyncio.create_task(chat(door, "long", 4_000))
        await eventually(lambda: engine.scheduler.in_flight == 1)
        answered: list[int] = []
        tasks = []
        for number, tokens in enumerate((2_400, 900, 600, 800, 700), 1):
            tasks.append(asyncio.create_task(chat(door, f"{number}", tokens)))
            await waits(door, number)
            tasks[-1].add_done_callback(partial(noted, answered, tokens))
        assert engine.scheduler.in_flight == 1
        for number in (1, 3):
            tasks[number].cancel()
        await waits(door, 3)
        assert (await long).status_code == 200
        answers = await asyncio.gather(*(tasks[number] for number in (0, 2, 4)))
        for answer in answers:
            assert answer.status_code == 200
            assert answer.text.startswith(":")  # it was kept alive
            assert "error" not in answer.text
        await eventually(lambda: len(answered) == len(tasks))
        assert [tokens for tokens in answered if tokens not in {900, 800}] == [600, 700, 2_400]
        assert await waiting(door) == 0
        async with httpx.AsyncClient(base_url=door.url) as client:
            metrics = (await client.get("/metrics")).text
        assert 'forebay_wait_seconds_count{pool="main",tier="default",worker="router"} 5.0' in metrics
        assert 'forebay_endpoint_in_flight{endpoint="engine-0",pool="main",worker="router"} 0.0' in metrics


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_stop_serves_who_waits_as_long_as_there_is_time_and_cuts_the_rest(
    database: str, valkey: str, workers: int
) -> None:
    settings = Settings(prefill_rate=1_000.0, answer_tokens=None)
    async with EngineDouble(settings) as engine, opened(engine, database, valkey, workers=workers, drain=4.0) as door:
        long = asyncio.create_task(chat(door, "long", 2_500))
        await eventually(lambda: engine.scheduler.in_flight == 1)
        served = asyncio.create_task(chat(door, "served", 600))
        await waits(door, 1)
        endless = asyncio.create_task(chat(door, "endless", 7_000))
        await waits(door, 2)
        last = asyncio.create_task(chat(door, "last", 7_100))
        await waits(door, 3)
        os.kill(door.pid, signal.SIGTERM)
        for answer in await asyncio.gather(long, served):
            assert answer.status_code == 200
            assert "error" not in answer.text
        for answer in await asyncio.gather(endless, last):
            assert answer.status_code == 200
            assert '"code":"shutting_down"' in answer.text
            assert answer.text.endswith("data: [DONE]\n\n")
        async with asyncio.timeout(20):
            await door.process.wait()
        await eventually(lambda: not engine.scheduler.in_flight)
