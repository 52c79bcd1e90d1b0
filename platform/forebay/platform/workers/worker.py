"""A worker: everything between a tenant's connection and an engine's, on a listening socket that it shares.

The router process starts it (see `crew`) as `python -m forebay.platform.workers.worker`, and it ends with that one.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import uvloop

from forebay.platform import allocator, logs
from forebay.platform.api.health import report
from forebay.platform.server import raise_file_limit, serve_until, until_signalled
from forebay.platform.service import FAULTS, Seat, Service, running
from forebay.platform.tasks import background, end
from forebay.platform.workers import gathered, orders, shares
from forebay.platform.workers.orders import Orders, OrdersError
from forebay.platform.workers.view import Status, View
from forebay.router import Handler, RemoteRouter, RouterUnavailable

log = logging.getLogger("forebay.platform.workers.worker")  # it runs as `__main__`
ROUTER_WITHIN_S = 10.0


def main() -> None:
    """Serve until told to stop. Exits with 1 after a fault, with one line of reason for the router process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the whole group; the router process passes it on
    try:
        its = orders.read(sys.stdin.buffer)
        logs.set_up(its.log_level, f"worker {its.name}")
        uvloop.run(_work(its))
    except (OrdersError, RouterUnavailable, *FAULTS) as error:
        _say(orders.fault(error))
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


async def _work(its: Orders) -> None:
    raise_file_limit()
    allocator.settle()
    listener = socket.socket(fileno=its.listener)
    async with until_signalled((signal.SIGTERM,)) as stop, AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()

        def hurry() -> None:
            loop.remove_reader(sys.stdin.fileno())
            log.warning("ending at once: the router process is gone, or wants it")
            stop.hurry()

        loop.add_reader(sys.stdin.fileno(), hurry)
        handlers: dict[str, Handler] = {"metrics": _metrics}
        router = RemoteRouter(Path(its.router), its.name, handlers=handlers)
        stack.push_async_callback(end, background("router", router.run))
        await router.until_connected(ROUTER_WITHIN_S)
        seat = Seat(its.name, its.of, router, View(router, its.name))
        service = await stack.enter_async_context(
            running(its.config, postgres_url=its.postgres_url, valkey_url=its.valkey_url, seat=seat)
        )
        handlers["status"] = lambda _, __: _status(service)
        gate = service.inferences.gate
        stack.push_async_callback(end, background("in flight", lambda: shares.follow(gate, router)))
        await serve_until(stop, service, listener, lambda: _say(orders.READY))


async def _metrics(_: str, __: bytes) -> bytes:
    return await gathered.taken()


async def _status(service: Service) -> bytes:
    ready, body = report(service)
    return msgspec.json.encode(Status(ready, {**body, "pid": os.getpid()}))


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
