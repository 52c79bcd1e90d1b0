"""The least a Python front door can cost: a bare Litestar handler that passes bytes on, and nothing else.

No authentication, limits, validation, metering, placement or splicing: the same server, router connection and event
loop as the front door, so the difference is what Forebay itself costs.
"""

import argparse
import asyncio
from typing import Any

import uvloop
from granian.constants import Interfaces
from granian.server.embed import Server
from litestar import Litestar, asgi

from forebay.router.upstream import Client


async def serve(port: int, engine: str) -> None:
    client = Client(engine, connect_timeout=2.0)
    engine_host = engine.partition("://")[2].encode()

    async def relay(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        head = (
            b"POST "
            + scope["path"].encode()
            + b" HTTP/1.1\r\nhost: "
            + engine_host
            + b"\r\ncontent-type: application/json\r\ncontent-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
        )
        connection = await client.acquire()
        try:
            connection.send(head, body)
            await connection.head()
            headers = [(b"content-type", connection.headers[b"content-type"])]
            await send({"type": "http.response.start", "status": connection.status, "headers": headers})
            while data := await connection.read():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            client.release(connection)

    app = Litestar([asgi("/v1/chat/completions", copy_scope=False)(relay)], openapi_config=None, logging_config=None)
    server = Server(
        app,
        address="127.0.0.1",
        port=port,
        interface=Interfaces.ASGINL,
        websockets=False,
        backlog=1024,
        log_enabled=False,
    )
    print("ready", flush=True)
    await server.serve()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(arguments.port, arguments.engine))
