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


async def _never() -> dict[str, Any]:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
