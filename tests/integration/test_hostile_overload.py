"""A tenant that uses all it may, as badly as it can, at once: others are answered, and nothing is left of it."""

import asyncio
import contextlib
import random
import socket
from collections import Counter
from typing import Any

import httpx
import pytest

from forebay.platform.config.load import load_config
from forebay.platform.local.paths import paths
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import Door
from tests.integration.hostile import CHAT, at_rest, chat, connected, head, request, send_unread, unread

SLOWLY = Settings(token_seconds=0.01, answer_tokens=None, max_running=2000, cache_blocks=20_000)
LARGE = Settings(answer_tokens=None, max_model_len=400_000, cache_blocks=20_000)


async def other(door: Door, headers: dict[str, str], count: int, **body: Any) -> list[int]:
    """The statuses of a tenant's ordinary requests, one after the other; a stream counts when it is whole."""
    found = []
    for number in range(count):
        stream = number % 2 == 0
        answer = await door.http.post(CHAT, content=chat(stream=stream, max_tokens=5, **body), headers=headers)
        whole = answer.status_code == 200 and (b"data: [DONE]" in answer.content or not stream)
        found.append(200 if whole else answer.status_code or 0)
    return found


async def bearer(door: Door) -> dict[str, str]:
    return {"authorization": f"Bearer {await door.new_key()}"}


def counted(*engines: EngineDouble) -> int:
    return sum(engine.metrics.generation_tokens for engine in engines)


async def test_streams_that_are_opened_and_not_read(open_door: OpenDoor) -> None:
    """Each is given up and billed for what its engine made."""
    wide = Fault(kind="large_frame", size=2_000_000, after=3, stream=True)
    slow = SLOWLY
    async with (
        EngineDouble(slow, faults=(wide,)) as engine,
        EngineDouble(slow) as calm,
        open_door(engine, calm, server={"stallTimeout": 1.0}) as door,
        contextlib.AsyncExitStack() as stack,
    ):
        theirs = await bearer(door)
        body = request(door, chat(stream=True, max_tokens=8000))
        ends = [stack.enter_context(socket.socket()) for _ in range(60)]
        await asyncio.gather(*(send_unread(end, door.service.config.server.port, body) for end in ends))
        await eventually(lambda: door.service.inferences.gate.in_flight >= 60)
        engine.faults.faults.clear()
        assert await other(door, theirs, 20) == [200] * 20
        for end in ends[30:]:
            end.close()
        for end in ends:
            end.close()
        await eventually(lambda: at_rest(door, engine, calm), 20.0)
        await eventually(lambda: not door.service.spool.unshipped, 10.0)
        records = await door.ledger()
        assert len({r["request_id"] for r in records}) == len(records)
        assert sum(r["engine_output"] for r in records) == counted(engine, calm)


async def test_one_who_reads_but_too_slowly_is_given_up(open_door: OpenDoor) -> None:
    large = Fault(kind="large_frame", size=7_000_000, after=3)
    async with (
        EngineDouble(LARGE, token_seconds=0.001, faults=(large,)) as engine,
        open_door(engine, server={"stallTimeout": 1.0}) as door,
        unread(door, request(door, chat(stream=True, max_tokens=300_000))) as end,
    ):
        reading = asyncio.create_task(_sip(end))
        await eventually(lambda: engine.scheduler.in_flight == 1)
        await eventually(lambda: at_rest(door, engine), 20.0)
        reading.cancel()
        (record,) = await door.records(1)
        assert (record["status"], record["terminated_by"]) == ("cancelled", "client")


async def _sip(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(end, 256):
            await asyncio.sleep(0.02)


async def test_whole_answers_that_are_not_read_take_no_more_memory_than_a_project_may_have(open_door: OpenDoor) -> None:
    bounds = {"memoryPerProject": 3_000_000, "bodyLimit": 100_000, "stallTimeout": 3.0}
    async with EngineDouble(LARGE) as engine, open_door(engine, server=bounds) as door:
        theirs = await bearer(door)
        body = chat(max_tokens=12_000, logprobs=True)
        one = await door.http.post(CHAT, content=body)
        assert one.status_code == 200
        assert 1_000_000 < len(one.content) < 1_400_000
        memory = door.service.inferences.memory
        async with unread(door, request(door, body)), unread(door, request(door, body)):
            await eventually(lambda: memory.held > 2 * len(one.content) * 0.9, 10.0)
            refused = [await door.http.post(CHAT, content=body) for _ in range(3)]
            assert 429 in {answer.status_code for answer in refused}
            assert memory.held <= 3_000_000
            assert (await door.http.post(CHAT, content=body, headers=theirs)).status_code == 200
            await eventually(lambda: at_rest(door, engine), 20.0)
        assert (await door.http.post(CHAT, content=body)).status_code == 200


async def test_leaving_at_random_is_nothing_to_others(open_door: OpenDoor) -> None:
    async with EngineDouble(SLOWLY) as one, EngineDouble(SLOWLY) as two, open_door(one, two) as door:
        theirs = await bearer(door)
        over = False

        async def leave(number: int) -> None:
            chance = random.Random(number)
            while not over:
                body = request(door, chat(stream=chance.random() < 0.7, max_tokens=200))
                async with connected(door) as (_, writer):
                    writer.write(body[: chance.choice((len(body), len(body), len(body) - 1, 60))])
                    await asyncio.sleep(chance.random() * 0.2)

        leaving = [asyncio.create_task(leave(number)) for number in range(60)]
        assert await other(door, theirs, 20) == [200] * 20
        over = True
        await asyncio.gather(*leaving)
        await eventually(lambda: at_rest(door, one, two), 10.0)
        await eventually(lambda: not door.service.spool.unshipped, 10.0)
        records = await door.ledger()
        assert len({(r["request_id"], r["attempt"]) for r in records}) == len(records)
        assert sum(r["engine_output"] for r in records) == counted(one, two)


async def test_retrying_everything_at_once_is_refused_cheaply(open_door: OpenDoor) -> None:
    """What is refused costs no engine anything, and leaves no record."""
    bounds = {"maxInFlight": 64, "maxInFlightPerProject": 8}
    async with EngineDouble(SLOWLY) as engine, open_door(engine, server=bounds) as door:
        theirs = await bearer(door)
        heard: Counter[bytes] = Counter()
        over = False

        async def retry() -> None:
            while not over:
                async with connected(door) as (reader, writer):
                    writer.write(request(door, chat(max_tokens=20)))
                    heard[(await reader.read(4096))[9:12]] += 1

        retrying = [asyncio.create_task(retry()) for _ in range(150)]
        assert await other(door, theirs, 20) == [200] * 20
        over = True
        await asyncio.gather(*retrying)
        assert set(heard) == {b"200", b"429"}
        assert heard[b"429"] > 150
        await eventually(lambda: at_rest(door, engine))
        records = await door.records(heard[b"200"] + 20)
        assert {r["status"] for r in records} == {"completed"}


async def test_the_largest_body_from_every_connection(open_door: OpenDoor) -> None:
    limit = 1_000_000
    bounds = {"bodyLimit": limit, "memoryPerProject": 4 * limit}
    async with EngineDouble() as engine, open_door(engine, server=bounds) as door:
        theirs = await bearer(door)
        memory, body = door.service.inferences.memory, chat(metadata={"x": "y" * (limit - 200)})
        async with contextlib.AsyncExitStack() as stack:
            ends = [await stack.enter_async_context(connected(door)) for _ in range(40)]
            for _, writer in ends:
                writer.write(head(door, f"content-length: {len(body)}") + body[:-1])
            await eventually(lambda: memory.held > 3 * limit)
            assert await other(door, theirs, 6) == [200] * 6
            assert (held := memory.held) <= 4 * limit
            for _, writer in ends:
                with contextlib.suppress(OSError):
                    writer.write(body[-1:])
            answers = await asyncio.gather(*(_status(reader) for reader, _ in ends))
            assert Counter(answers).keys() <= {b"200", b"429", b""}  # empty: hung up on while it sent
            assert answers.count(b"200") == 4, (Counter(answers), held)
        await eventually(lambda: at_rest(door, engine))


async def _status(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.read(4096))[9:12]
    except OSError:
        return b""


async def cheap(door: Door, admin: dict[str, str]) -> list[int]:
    paths_ = ["/v1/models", "/health", "/ready", "/metrics"]
    found = [(await door.http.get(path)).status_code for path in paths_]
    return [*found, (await door.http.get("/admin/v1/tenants", headers=admin)).status_code]


async def test_cheap_requests_are_answered_while_nobody_else_gets_in(open_door: OpenDoor) -> None:
    bounds = {"maxInFlight": 4, "maxInFlightPerProject": 4}
    async with EngineDouble(SLOWLY) as engine, open_door(engine, server=bounds) as door:
        admin = {"authorization": f"Bearer {(await door.service.tenancy.create_admin_key()).secret}"}
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                _, writer = await stack.enter_async_context(connected(door))
                writer.write(request(door, chat(stream=True, max_tokens=4000)))
            await eventually(lambda: door.service.inferences.gate.in_flight == 4)
            assert (await door.chat()).status_code == 503
            assert await cheap(door, admin) == [200] * 5
            assert door.service.inferences.gate.in_flight == 4


async def test_cheap_requests_are_answered_before_large_prompts_are_read(open_door: OpenDoor) -> None:
    """128 of them wait for a turn; who comes later and asks for little does not wait behind them."""
    weights = paths(load_config(None).stores.state_dir).weights
    if not (weights / "tokenizer.json").exists():
        pytest.skip("the tokenizer of SmolLM2 is not here: forebay up --prepare")
    unasked = Settings(tokenize=False, max_model_len=400_000, cache_blocks=20_000)
    model = {"tokenizer": str(weights)}
    async with EngineDouble(unasked) as engine, open_door(engine, model=model) as door:
        admin = {"authorization": f"Bearer {(await door.service.tenancy.create_admin_key()).secret}"}
        theirs = await bearer(door)
        ended: list[bytes] = []

        async def large(number: int) -> None:
            messages = [{"role": "user", "content": f"{number} " + "what does a forebay hold " * 3_000}]
            async with connected(door) as (reader, writer):
                writer.write(request(door, chat(messages=messages, max_tokens=1)))
                ended.append(await _status(reader))

        reading = [asyncio.create_task(large(number)) for number in range(128)]
        await eventually(lambda: door.service.inferences.gate.in_flight + len(ended) >= 128, 20.0)
        for _ in range(5):
            assert await cheap(door, admin) == [200] * 5
        assert await other(door, theirs, 4) == [200] * 4
        assert len(ended) < 128
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await eventually(lambda: at_rest(door, engine), 30.0)


async def test_metrics_tell_of_those_who_do_not_read(open_door: OpenDoor) -> None:
    large = Fault(kind="large_frame", size=7_000_000, after=3)
    async with (
        EngineDouble(LARGE, token_seconds=0.001, faults=(large,)) as engine,
        open_door(engine, server={"stallTimeout": 2.5}) as door,
    ):
        before = await _sample(door, "forebay_clients_stalled_total")
        async with unread(door, request(door, chat(stream=True, max_tokens=300_000))):

            async def blocked() -> bool:
                return await _sample(door, "forebay_clients_blocked") == 1

            await eventually(blocked, 10.0)
            await eventually(lambda: at_rest(door, engine), 10.0)
        assert await _sample(door, "forebay_clients_stalled_total") == before + 1
        assert await _sample(door, "forebay_clients_blocked") == 0
        assert await _sample(door, "forebay_held_bytes") == 0


async def _sample(door: Door, name: str) -> float:
    answer: httpx.Response = await door.http.get("/metrics")
    return next(float(line.split()[-1]) for line in answer.text.splitlines() if line.startswith(f"{name} "))
