"""How an answer is handed to the HTTP server: in pieces, and noticed where nobody takes them."""

import asyncio
from typing import Any

from forebay.platform.relay.client import PIECE, Client


async def test_what_is_written_goes_in_small_pieces_and_whole() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    client = Client(_never, send, "req_1")
    data = bytes(range(256)) * 300
    await client.start_stream()
    await client.write(data)
    await client.write(b"data: {}\n\n")
    bodies = [message["body"] for message in sent[1:]]
    assert max(map(len, bodies)) == PIECE
    assert b"".join(bodies) == data + b"data: {}\n\n"
    assert all(message["more_body"] for message in sent[1:])


async def test_nothing_more_is_handed_over_once_it_has_left() -> None:
    taken = asyncio.Event()
    sent = 0

    async def send(_: dict[str, Any]) -> None:
        nonlocal sent
        sent += 1
        await taken.wait()

    client = Client(_never, send, "req_1")
    writing = asyncio.create_task(client.write(b"x" * 10 * PIECE))
    await asyncio.sleep(0)
    assert not client.blocked  # not for long yet
    assert client.check_stalled(0.0)
    taken.set()
    await writing
    assert (sent, client.left) == (1, True)


async def test_what_is_put_is_handed_over_in_order_without_a_task() -> None:
    sent: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))

    client = Client(_never, send, "req_1")
    await client.start_stream()
    client.put(b"one ")
    client.put(b"two ")
    await asyncio.sleep(0)
    assert b"".join(sent) == b"one two "
    client.put(b"three ")
    await client.write(b"four ")
    client.put(bytes(2 * PIECE))
    await client.end_stream()
    assert b"".join(sent) == b"one two three four " + bytes(2 * PIECE) + b"data: [DONE]\n\n"
    assert max(map(len, sent)) == PIECE


async def test_a_tenant_who_does_not_read_is_waited_for_before_there_is_more() -> None:
    taken, full = asyncio.Event(), asyncio.Event()
    sent: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["body"])
        await taken.wait()

    client = Client(_never, send, "req_1")
    client.on_full = full.set
    client.put(b"one ")
    await full.wait()
    full.clear()
    client.put(b"two ")
    await full.wait()
    assert sent == [b"one "]
    writing = asyncio.create_task(client.written())
    await asyncio.sleep(0)
    assert not writing.done()
    taken.set()
    await writing
    assert sent == [b"one ", b"two "]
    assert not client.check_stalled(0.0)


async def test_a_tenant_who_does_not_read_what_was_put_is_given_up() -> None:
    async def send(_: dict[str, Any]) -> None:
        await asyncio.get_running_loop().create_future()

    client = Client(_never, send, "req_1")
    client.put(b"one")
    await asyncio.sleep(0)
    assert client.check_stalled(0.0)


async def test_a_connection_that_is_gone_is_noticed_by_what_is_put() -> None:
    async def send(_: dict[str, Any]) -> None:
        raise RuntimeError("the connection is gone")

    left = asyncio.Event()
    client = Client(_never, send, "req_1")
    client.on_left = left.set
    client.put(b"one")
    await left.wait()
    assert client.left


async def test_of_a_body_with_a_length_no_more_is_asked_for() -> None:
    """The server would have to be waited for to hear that this was all."""
    parts = [b"ab", b"c"]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": True}

    client = Client(receive, _none, "req_1")
    assert await client.body(10, 3, lambda _: None) == [b"ab", b"c"]


async def test_a_tenant_who_leaves_is_noticed() -> None:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]
    messages.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    left = asyncio.Event()
    client = Client(receive, _none, "req_1")
    client.on_left = left.set
    client.watch()
    await asyncio.wait_for(left.wait(), 5.0)
    assert client.left


async def _none(_: dict[str, Any]) -> None:
    """Nobody looks."""


async def _never() -> dict[str, Any]:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
