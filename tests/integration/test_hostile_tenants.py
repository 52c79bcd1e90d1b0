"""What one tenant, or a stranger without a key, does to the others: nothing that they would notice."""

import asyncio
import socket
import time

import psutil
import pytest

from forebay.platform import server
from forebay.platform.relay import client
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.hostile import CHAT, at_rest, chat, connected, head, request, unread
from tests.integration.observed import unbooked

ENDLESS = Settings(max_model_len=400_000, cache_blocks=20_000, answer_tokens=None)


def read_all(end: socket.socket) -> None:
    while end.recv(1 << 20):
        pass


def is_held(end: socket.socket) -> bool:
    """Whether the front door, which is in this process, still has its side of the connection."""
    return any(one.raddr == end.getsockname() for one in psutil.Process().net_connections("tcp"))


@pytest.mark.parametrize("sent", [b"", b"{"], ids=["nothing", "a byte"])
async def test_a_body_that_does_not_come_ends_in_408(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(client, "BODY_TIMEOUT_S", 0.3)
    async with EngineDouble() as engine, open_door(engine) as door, connected(door) as (reader, writer):
        writer.write(head(door, "content-length: 50") + sent)
        async with asyncio.timeout(3):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"request_timeout"' in answer
        assert await eventually(lambda: at_rest(door, engine))


@pytest.mark.parametrize("sent", [b"", b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], ids=["nothing", "a byte", "http 2"])
async def test_a_stranger_who_says_nothing_is_hung_up_on(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "HEADER_TIMEOUT_MS", 300)
    async with EngineDouble() as engine, open_door(engine) as door, connected(door) as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(3):
            await reader.read()
        assert reader.at_eof()


async def test_idle_connections_of_strangers_keep_nobody_out(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine, server={"maxInFlight": 1}) as door:
        idle = [await asyncio.open_connection("127.0.0.1", door.service.config.server.port) for _ in range(300)]
        async with asyncio.timeout(3):
            assert (await door.chat(max_tokens=1)).status_code == 200
        for _, writer in idle:
            writer.transport.abort()


async def test_a_stream_that_is_not_read_is_stopped_and_billed(open_door: OpenDoor) -> None:
    large = Fault(kind="large_frame", size=7_000_000, after=3)
    async with (
        EngineDouble(ENDLESS, token_seconds=0.001, faults=(large,)) as engine,
        open_door(engine, server={"stallTimeout": 0.5}) as door,
        unread(door, request(door, chat(stream=True, max_tokens=300_000))),
    ):
        await eventually(lambda: engine.scheduler.in_flight == 1)
        await eventually(lambda: at_rest(door, engine), 10.0)
        (record,) = await door.records(1)
        assert (record["status"], record["terminated_by"]) == ("cancelled", "client")
        assert record["measured"]
        assert record["engine_output"] == record["billable_output"] == engine.metrics.generation_tokens


async def test_the_connection_of_one_who_does_not_read_is_closed(open_door: OpenDoor) -> None:
    large = Fault(kind="large_frame", size=7_000_000, after=3)
    async with (
        EngineDouble(ENDLESS, token_seconds=0.001, faults=(large,)) as engine,
        open_door(engine, server={"stallTimeout": 0.5}) as door,
    ):
        async with unread(door, request(door, chat(stream=True, max_tokens=300_000))) as end:
            await eventually(lambda: engine.scheduler.in_flight == 1)
            await eventually(lambda: at_rest(door, engine), 10.0)
            assert await eventually(lambda: not is_held(end), 10.0)
            with pytest.raises(ConnectionResetError):
                read_all(end)
        assert (await door.records(1))[0]["terminated_by"] == "client"


async def test_a_whole_answer_that_is_not_read_stays_in_flight_until_it_is_given_up(open_door: OpenDoor) -> None:
    async with EngineDouble(ENDLESS) as engine, open_door(engine, server={"stallTimeout": 1.0}) as door:
        body = chat(max_tokens=20_000, n=4, logprobs=True, top_logprobs=5)
        async with unread(door, request(door, body)):
            await eventually(lambda: engine.metrics.generation_tokens == 80_000, 20.0)
            await asyncio.sleep(0.5)
            assert door.service.inferences.gate.in_flight == 1
            assert unbooked(door)  # the engine has done its part
            await eventually(lambda: at_rest(door, engine), 10.0)
        (record,) = await door.records(1)
        assert record["billable_output"] == 80_000
        whole = await door.chat(max_tokens=20_000, n=4, logprobs=True, top_logprobs=5)
        assert len(whole.json()["choices"]) == 4
        assert int(whole.headers["content-length"]) == len(whole.content) > 4 * client.PIECE


async def test_bodies_are_bounded_in_memory_for_a_project_and_others_are_not_touched(open_door: OpenDoor) -> None:
    small = {"bodyLimit": 100_000, "memoryPerProject": 1}  # one body of the largest size
    async with EngineDouble() as engine, open_door(engine, server=small) as door:
        async with connected(door) as (_, waiting):
            waiting.write(head(door, "content-length: 60000"))
            await eventually(lambda: door.service.inferences.memory.held == 60_000)
            refused = await door.chat("x" * 50_000, max_tokens=1)
            assert refused.status_code == 429
            assert refused.json()["error"]["metadata"] == {"limit": "project_body_bytes", "value": 100_000}
            assert (await door.chat("x" * 10_000, max_tokens=1)).status_code == 200
            headers = {"authorization": f"Bearer {await door.new_key()}"}
            other = await door.http.post(CHAT, content=chat(metadata={"x": "y" * 50_000}), headers=headers)
            assert other.status_code == 200
        await eventually(lambda: at_rest(door, engine))
        assert (await door.chat("x" * 30_000, max_tokens=1)).status_code == 200


async def test_requests_that_engines_fail_on_do_not_take_them_from_others(open_door: OpenDoor) -> None:
    poison = Fault(kind="status", status=500, path="/v1/chat", stream=True)
    bad = Settings(faults=(poison,))
    async with EngineDouble(bad) as one, EngineDouble(bad) as two, open_door(one, two) as door:
        failed = await asyncio.gather(*(door.chat(stream=True) for _ in range(8)))
        assert {(f.status_code, f.json()["error"]["code"]) for f in failed} == {(503, "engine_error")}
        assert (await door.chat(max_tokens=1)).status_code == 200


async def test_an_engine_that_fails_on_what_others_answer_is_passed_over(open_door: OpenDoor) -> None:
    broken = Fault(kind="status", status=500, path="/v1/chat")
    async with EngineDouble(faults=(broken,)) as one, EngineDouble() as two, open_door(one, two) as door:
        for number in range(30):
            assert (await door.chat(f"conversation {number}", max_tokens=1)).status_code == 200
        assert sum(r.path == CHAT for r in one.requests) <= 10


async def test_leaving_at_any_moment_leaves_nothing_behind(open_door: OpenDoor) -> None:
    slow = Settings(token_seconds=0.01, prefill_rate=400.0, answer_tokens=None)
    async with EngineDouble(slow) as engine, open_door(engine) as door:
        whole = request(door, chat(stream=True, max_tokens=8, messages=[{"role": "user", "content": "word " * 40}]))
        for cut in (10, len(whole) // 2, len(whole) - 1, len(whole)):
            for stay in (0.0, 0.003, 0.05, 0.1, 0.15, 0.17, 0.18, 0.19, 0.2) if cut == len(whole) else (0.0, 0.02):
                async with connected(door) as (_, writer):
                    writer.write(whole[:cut])
                    await asyncio.sleep(stay)
        await eventually(lambda: at_rest(door, engine))
        await eventually(lambda: not door.service.spool.unshipped)
        records = await door.ledger()
        assert {r["attempt"] for r in records} == {1}
        assert len({r["request_id"] for r in records}) == len(records)
        assert sum(r["engine_output"] for r in records) == engine.metrics.generation_tokens
        assert all(r["measured"] for r in records)


async def test_five_hundred_streams_opened_and_closed_leak_nothing(open_door: OpenDoor) -> None:
    slow = Settings(token_seconds=0.01, answer_tokens=None)
    async with EngineDouble(slow) as one, EngineDouble(slow) as two, open_door(one, two) as door:
        assert (await door.chat(max_tokens=1)).status_code == 200
        tasks = len(asyncio.all_tasks())

        async def visit(number: int) -> None:
            async with connected(door) as (_, writer):
                writer.write(request(door, chat(stream=number % 3 > 0, max_tokens=500)))
                await writer.drain()
                await asyncio.sleep((0.0, 0.002, 0.02, 0.1)[number % 4])

        for begin in range(0, 500, 50):
            await asyncio.gather(*(visit(number) for number in range(begin, begin + 50)))
        await eventually(lambda: at_rest(door, one, two))
        await eventually(lambda: not door.service.spool.unshipped)
        records = await door.ledger()
        assert len({(r["request_id"], r["attempt"]) for r in records}) == len(records)
        assert sum(r["engine_output"] for r in records) == sum(e.metrics.generation_tokens for e in (one, two))
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 2)


async def test_a_connection_goes_on_after_an_error(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine, server={"bodyLimit": 100_000}) as door:
        good = request(door, chat())
        for number, (bad, status) in enumerate((
            (request(door, b"abc"), b"400"),
            (good.replace(door.key.encode(), b"sk-unknown"), b"401"),
            (request(door, chat(model="none")), b"404"),
            (good.replace(b"POST", b"PUT", 1), b"405"),
            (head(door, "content-type: text/plain", "content-length: 5") + b"hello", b"415"),
            (head(door, "expect: 100-continue", "content-length: 2") + b"{}", b"100"),
            (good + good, b"200"),
        )):  # fmt: skip
            async with connected(door) as (reader, writer):
                writer.write(bad)
                assert (await reader.read(1 << 16)).startswith(b"HTTP/1.1 " + status), number
                writer.write(good)
                async with asyncio.timeout(3):
                    answer = b""
                    while b'"finish_reason"' not in answer:
                        piece = await reader.read(1 << 16)
                        assert piece
                        answer += piece
                assert b"HTTP/1.1 200 " in answer


@pytest.mark.parametrize(("arrays", "requests"), [(120_000, 30), (15_000, 100)], ids=["large", "small but slow"])
async def test_bodies_of_one_do_not_stop_the_streams_of_others(
    open_door: OpenDoor, arrays: int, requests: int
) -> None:
    """One decode at a time, and the event loop in between."""
    async with EngineDouble(token_seconds=0.01, answer_tokens=None) as engine, open_door(engine) as door:
        large = chat(tools=[{"type": "function", "x": [[]] * arrays}], model="none")
        headers = {"authorization": f"Bearer {await door.new_key()}"}
        arrived: list[float] = []

        async def watch() -> None:
            async with door.http.stream("POST", CHAT, content=chat(stream=True, max_tokens=2000)) as response:
                async for _ in response.aiter_bytes():
                    arrived.append(time.perf_counter())

        watching = asyncio.create_task(watch())
        await eventually(lambda: len(arrived) > 5)
        before = len(arrived)
        answers = await asyncio.gather(*(door.http.post(CHAT, content=large, headers=headers) for _ in range(requests)))
        assert {answer.status_code for answer in answers} == {404}
        assert len(arrived) - before >= 15
        watching.cancel()
