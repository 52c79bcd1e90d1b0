"""An engine that answers as fast as it is read: `max_tokens` events of 4 KB each, or one answer of as many pieces.

For benches of what a front door holds of answers that nobody reads. It knows nothing else of an engine.
"""

import argparse
import asyncio
import json
from typing import Any

import httptools
import msgspec
import uvloop

MODEL = "wide"
PIECE = "x" * 4000
_END = b"0\r\n\r\n"


def event(finish: str | None, tokens: int) -> bytes:
    """One frame as a chunk of HTTP."""
    choice = {"index": 0, "delta": {"content": PIECE}, "logprobs": None, "finish_reason": finish}
    usage = {"prompt_tokens": 5, "total_tokens": 5 + tokens, "completion_tokens": tokens}
    body = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice],
            "usage": usage}  # fmt: skip
    return _chunk(b"data: " + msgspec.json.encode(body) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._answering: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, []

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._url != b"/v1/chat/completions":
            models = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 1_000_000}]}
            self._whole(b"" if self._url != b"/v1/models" else json.dumps(models).encode())
            return
        asked: dict[str, Any] = msgspec.json.decode(b"".join(self._body))
        tokens = asked["max_tokens"]
        if asked.get("stream"):
            self._answering = asyncio.get_running_loop().create_task(self._stream(tokens))
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": PIECE * tokens}, "finish_reason": "length"}
        usage = {"prompt_tokens": 5, "total_tokens": 5 + tokens, "completion_tokens": tokens}
        self._whole(msgspec.json.encode({"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": MODEL,
                                         "choices": [choice], "usage": usage}))  # fmt: skip

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    async def _stream(self, tokens: int) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for number in range(1, tokens + 1):
            await self._may_write.wait()
            self._transport.write(event("length" if number == tokens else None, number))
            if number % 16 == 0:
                await asyncio.sleep(0)
        self._transport.write(_chunk(b"data: [DONE]\n\n") + _END)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Engine, "127.0.0.1", port, backlog=1024):
        print("torrent ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
