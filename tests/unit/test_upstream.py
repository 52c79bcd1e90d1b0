"""The connection to an engine, against scripted servers: what arrives, what is kept, how failures differ."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from forebay.platform.relay.client import PIECE
from forebay.platform.relay.client import Client as Tenant
from forebay.router.upstream import HIGH_WATER, RECEIVE_BUFFER, Client, Connection, UpstreamError, Wake
from tests.eventually import eventually

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"


@asynccontextmanager
async def server(script: Script) -> AsyncIterator[tuple[Client, list[int]]]:
    """A server that runs `script` per connection; yields a client of it and a list that grows by each connection."""
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(len(seen))
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", connect_timeout=1.0)
    try:
        yield client, seen
    finally:
        client.close()
        listening.close()
        await listening.wait_closed()


async def request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)


def answering(*answers: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await request(reader)
            writer.write(answer)
            await writer.drain()

    return script


async def exchange(client: Client) -> tuple[int, bytes]:
    connection = await client.acquire()
    try:
        connection.send(REQUEST, b"{}")
        await connection.head()
        return connection.status, await whole(connection)
    finally:
        client.release(connection)


async def whole(connection: Connection) -> bytes:
    parts = []
    while data := await connection.read():
        assert isinstance(data, bytes)
        parts.append(data)
    return b"".join(parts)


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_a_connection_is_used_again() -> None:
    async with server(answering(OK, CHUNKED, OK)) as (client, connections):
        assert [await exchange(client) for _ in range(3)] == [(200, b"hi"), (200, b"onetwo"), (200, b"hi")]
        assert len(connections) == 1
        assert repr(client).endswith("[0 active, 1 idle]>")


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi", b"HTTP/1.0 200 OK\r\n\r\nhi",
])  # fmt: skip
async def test_an_engine_that_closes_is_not_used_again(answer: bytes) -> None:
    async with server(answering(answer)) as (client, connections):
        assert [await exchange(client) for _ in range(2)] == [(200, b"hi")] * 2
        assert len(connections) == 2


async def test_an_interim_answer_is_followed_by_the_real_one() -> None:
    async with server(answering(b"HTTP/1.1 100 Continue\r\nx-a: b\r\n\r\n" + OK)) as (client, _):
        assert await exchange(client) == (200, b"hi")


async def test_the_keep_alive_race_is_told_from_a_failure() -> None:
    """llm-d#1564, vllm#18472."""
    async with server(answering(OK)) as (client, _):  # closes after the first answer, as an idle timer would
        await exchange(client)
        with pytest.raises(UpstreamError) as caught:
            await exchange(client)
        assert caught.value.reused


@pytest.mark.parametrize(("answer", "kind"), [
    (b"", "closed"), (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhi", "closed"), (CHUNKED[:-7], "closed"),
    (b"hello\r\n\r\n", "protocol"), (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "protocol"),
])  # fmt: skip
async def test_an_answer_that_breaks_off_is_an_error(answer: bytes, kind: str) -> None:
    async with server(answering(answer)) as (client, _):
        with pytest.raises(UpstreamError) as caught:
            await exchange(client)
        assert caught.value.kind == kind
        assert not caught.value.reused


async def test_nobody_there() -> None:
    client = Client("http://127.0.0.1:1", connect_timeout=1.0)
    with pytest.raises(UpstreamError) as caught:
        await client.acquire()
    assert caught.value.kind == "refused"


async def test_a_wait_can_be_interrupted_or_timed_before_during_and_after() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await asyncio.sleep(0.2)
        writer.write(OK)
        await reader.read()

    async with server(script) as (client, _):
        connection = await client.acquire()
        connection.send(REQUEST, b"{}")
        connection.interrupt()
        assert await connection.head() is Wake.INTERRUPT
        waiting = asyncio.create_task(connection.head())
        await asyncio.sleep(0)
        connection.interrupt()
        assert await waiting is Wake.INTERRUPT
        connection.wake_at = 0.0
        waiting = asyncio.create_task(connection.head())
        await asyncio.sleep(0)
        client.tick(1.0)
        assert await waiting is Wake.TICK
        assert await connection.head() is None
        assert await whole(connection) == b"hi"
        client.release(connection)


async def test_a_flow_is_taken_as_it_comes_until_somebody_has_to_wait() -> None:
    """The end, a wake and an error end it as they end a read; what came meanwhile is not lost."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    more = asyncio.Queue[bytes]()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(head)
        while part := await more.get():
            writer.write(part)

    taken: list[bytes] = []
    came = asyncio.Event()

    def take(data: bytes) -> bool:
        if data == b"bad":
            raise ValueError("bad")
        taken.append(data)
        came.set()
        return data != b"stop"

    async def tell(part: bytes) -> None:
        came.clear()
        more.put_nowait(b"%x\r\n%b\r\n" % (len(part), part))
        await came.wait()

    async with server(script) as (client, _):
        connection = await client.acquire()
        connection.send(REQUEST, b"{}")
        await connection.head()
        flow = asyncio.create_task(connection.flow(take))
        for part in (b"one", b"two", b"stop"):
            await tell(part)
        assert await flow is None
        flow = asyncio.create_task(connection.flow(take))
        await tell(b"three")
        connection.stop()
        assert await flow is None
        flow = asyncio.create_task(connection.flow(take))
        await tell(b"four")
        connection.interrupt()
        assert await flow is Wake.INTERRUPT
        more.put_nowait(b"3\r\nbad\r\n")
        with pytest.raises(ValueError, match="bad"):
            await connection.flow(take)
        more.put_nowait(b"0\r\n\r\n")
        assert await connection.flow(take) == b""
        assert taken == [b"one", b"two", b"stop", b"three", b"four"]
        assert connection.reusable
        more.put_nowait(b"")


async def test_what_a_tenant_did_not_take_at_once_is_sent_even_if_its_wait_has_just_ended() -> None:
    """The wake and the full tenant come in one turn: neither may be forgotten for the other."""
    event = b"x" * (PIECE + 1)
    waits, over = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(event) + 1))
        await waits.wait()
        writer.write(event)
        await over.wait()

    sent: list[bytes] = []
    arrived = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["body"])
        if sum(map(len, sent)) == len(event):
            arrived.set()

    tenant = Tenant(over.wait, send, "req_1")
    async with server(script) as (client, _):
        connection = await client.acquire()
        connection.send(REQUEST, b"{}")
        await connection.head()
        tenant.on_full = connection.stop

        def take(data: bytes) -> bool:
            tenant.put(data)
            connection.interrupt()
            return True

        async def relay() -> None:
            while True:
                if await connection.flow(take) is None:
                    await tenant.written()

        relaying = asyncio.create_task(relay())
        await asyncio.sleep(0)  # it waits now
        waits.set()
        try:
            await asyncio.wait_for(arrived.wait(), 5.0)
        finally:
            relaying.cancel()
            over.set()
        assert b"".join(sent) == event


async def test_a_stop_between_two_flows_ends_the_next() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return True

    async with server(answering(answer + b"one")) as (client, _):
        connection = await client.acquire()
        connection.send(REQUEST, b"{}")
        await connection.head()
        connection.stop()
        assert await connection.flow(take) is None
        assert await connection.flow(take) == b""
        assert taken == [b"one"]
        client.release(connection)


async def test_who_rests_holds_the_engine_up_until_somebody_waits_for_more() -> None:
    """Of a crowd that leaves at once, each is abandoned in its turn: until then nothing more of it is heard."""
    written = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 10_000)
            await writer.drain()
            written += 10_000

    heard = 0
    async with server(script) as (client, _):
        connection = await client.acquire()
        connection.send(REQUEST, b"{}")
        await connection.head()

        def take(data: bytes) -> bool:
            nonlocal heard
            heard += len(data)
            connection.rest()
            return True

        flowing = asyncio.create_task(connection.flow(take))
        await eventually(lambda: heard > 0)
        before = -1
        while before != written:  # what the kernel takes is not endless
            before = written
            await asyncio.sleep(0.2)
        assert heard < 4 * RECEIVE_BUFFER
        assert connection.held_up
        connection.interrupt()
        assert await flowing is Wake.INTERRUPT
        for _ in range(100):
            assert await connection.read()
        assert written > before
        connection.close()


async def test_a_flow_that_breaks_off_is_an_error() -> None:
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return True

    async with server(answering(CHUNKED[:-7])) as (client, _):
        connection = await client.acquire()
        connection.send(REQUEST, b"{}")
        await connection.head()
        with pytest.raises(UpstreamError) as caught:
            await connection.flow(take)
    assert caught.value.kind == "closed"
    assert b"".join(taken) == b"onetwo"


async def test_a_slow_consumer_stops_the_engine_from_sending() -> None:
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    async with server(script) as (client, _):
        connection = await client.acquire()
        connection.send(REQUEST, b"{}")
        await connection.head()
        await asyncio.sleep(0.3)
        stalled = sent
        assert stalled < 30_000_000  # what the sockets hold, not what the engine has
        assert connection.held_up
        heard = connection.last_activity
        first = await connection.read()
        assert connection.last_activity > heard  # meanwhile it was not silent: nobody listened
        assert isinstance(first, bytes)
        assert len(first) <= HIGH_WATER + 2 * RECEIVE_BUFFER
        assert len(first) + len(await whole(connection)) == 100_000_000
        client.release(connection)


async def test_idle_connections_are_dropped_before_the_engine_drops_them() -> None:
    """llm-d#1564, vllm#18472."""
    async with server(answering(OK, OK)) as (client, connections):
        await exchange(client)
        client.tick(asyncio.get_running_loop().time() + 60.0)
        assert repr(client).endswith("[0 active, 0 idle]>")
        await exchange(client)
        assert len(connections) == 2


async def test_a_tick_that_nobody_waits_for_comes_again() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await reader.read()

    async with server(script) as (client, _):
        connection = await client.acquire()
        connection.send(REQUEST, b"{}")
        connection.wake_at = 5.0
        connection.tick(6.0)  # the reader is busy, with a slow tenant or its disk
        waiting = asyncio.ensure_future(connection.head())
        await asyncio.sleep(0)
        connection.tick(6.1)
        assert await waiting is Wake.TICK
        connection.tick(7.0)  # once only
        waiting = asyncio.ensure_future(connection.head())
        await asyncio.sleep(0)
        connection.tick(8.0)
        assert not waiting.done()
        waiting.cancel()
        client.release(connection)
