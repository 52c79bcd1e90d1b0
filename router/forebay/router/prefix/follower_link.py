"""The sockets of a follower: a subscription to an engine's KV events, what it says of its connection, and the socket
that asks the replay.

They are plain ZeroMQ sockets that never block: their descriptors wake the event loop, and what has come is taken a few
messages at a time, which costs less than awaiting each.
"""

import asyncio
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import zmq

Context = zmq.Context[zmq.Socket[bytes]]

_OPTIONS = {
    zmq.LINGER: 0,
    zmq.RCVHWM: 4096,  # messages; a publisher drops what is more, which shows as a gap
    zmq.MAXMSGSIZE: 16 << 20,  # a larger one breaks the connection
    zmq.CONNECT_TIMEOUT: 5000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.HEARTBEAT_IVL: 5000,  # a peer that vanished without a word is noticed
    zmq.HEARTBEAT_TIMEOUT: 15000,
}
_AT_ONCE = 32
_monitors = count()


class Link:
    """One connection. It becomes `connected` and `broken` once each; a broken one is only good to be closed, as ZeroMQ
    would connect again by itself and mix what two engines have sent. Raises `zmq.ZMQError` for senseless addresses."""

    def __init__(self, context: Context, address: str, replay: str | None) -> None:
        self.connected = False
        self.broken = False
        self._context = context
        self._replay = replay
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._dealer: zmq.Socket[bytes] | None = None
        self._open: list[zmq.Socket[bytes]] = []
        self._sub = self._socket(zmq.SUB, address)
        self._sub.subscribe(b"")
        wanted = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
        self._monitor = self._sub.get_monitor_socket(wanted, f"inproc://follower-{next(_monitors)}")
        self._watch(self._monitor)
        try:
            self._sub.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    async def wait(self, timeout: float | None) -> None:
        """Until something may have come, or `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        self._ready.clear()

    def receive(self) -> tuple[list[list[bytes]], list[list[bytes]]]:
        """A few messages of the subscription and of the replay, none of them from after a break. Take them until there
        are none, then `wait`."""
        if self.broken:
            return [], []
        live, rows = list(_some(self._sub)), list(_some(self._dealer))
        # A break is written here before anything of the next connection arrives: it was in time if it is not here yet.
        for event, _ in _some(self._monitor):
            if struct.unpack_from("=H", event)[0] == zmq.Event.DISCONNECTED:
                self.broken = True
                return [], []
            self.connected = True
        return live, rows

    def ask(self, start: int) -> None:
        """Ask the replay from batch `start` on. A socket of its own keeps earlier answers away."""
        if self.broken or self._replay is None:
            return
        if self._dealer is not None:
            self._drop(self._dealer)
        self._dealer = self._socket(zmq.DEALER, self._replay)
        self._dealer.connect(self._replay)
        self._dealer.send_multipart((b"", start.to_bytes(8, "big")), zmq.NOBLOCK)

    def close(self) -> None:
        self._sub.disable_monitor()
        for socket in list(self._open):
            self._drop(socket)

    def _socket(self, kind: int, address: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        for option, value in _OPTIONS.items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.IPV6, "[" in address)
        self._watch(socket)
        return socket

    def _watch(self, socket: "zmq.Socket[bytes]") -> None:
        self._open.append(socket)
        self._loop.add_reader(socket.fileno(), self._ready.set)
        self._ready.set()

    def _drop(self, socket: "zmq.Socket[bytes]") -> None:
        self._open.remove(socket)
        self._loop.remove_reader(socket.fileno())
        socket.close()


def _some(socket: "zmq.Socket[bytes] | None") -> Iterator[list[bytes]]:
    if socket is not None:
        with suppress(zmq.Again):
            for _ in range(_AT_ONCE):
                yield socket.recv_multipart(zmq.NOBLOCK)
