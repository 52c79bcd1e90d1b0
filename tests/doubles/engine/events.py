"""KV events over ZMQ, as vLLM 0.32 sends them: PUB of (topic, sequence u64 BE, msgpack), and a ROUTER that replays."""

import asyncio
import time
from collections import deque

import msgspec
import zmq
import zmq.asyncio

from tests.doubles.engine.cache import Event

_END = (-1).to_bytes(8, "big", signed=True)


class EventPublisher:
    """One data-parallel rank's publisher. `endpoint` and `replay` are the bound addresses once started."""

    def __init__(self, endpoint: str, replay: str | None, topic: str, steps: int) -> None:
        self.endpoint = endpoint
        self.replay = replay
        self._topic = topic.encode()
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=steps)
        self._next = 0
        self._losing = 0
        self._pack = msgspec.msgpack.Encoder()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._context = zmq.asyncio.Context()
        # Publishing never waits: a plain socket of the same context.
        self._pub = zmq.Context(self._context).socket(zmq.PUB)
        self._pub.set_hwm(100_000)
        self._pub.bind(self.endpoint)
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        if self.replay is not None:
            router = self._context.socket(zmq.ROUTER)
            router.bind(self.replay)
            self.replay = router.getsockopt_string(zmq.LAST_ENDPOINT)
            self._task = asyncio.get_running_loop().create_task(self._serve(router))

    def publish(self, events: list[Event]) -> None:
        payload = self._pack.encode([time.time(), events, 0])
        self._sent.append((self._next, payload))
        if self._losing:
            self._losing -= 1
        else:
            self._pub.send_multipart((self._topic, self._next.to_bytes(8, "big"), payload))
        self._next += 1

    def lose(self, count: int = 1) -> None:
        """The next `count` batches never reach the subscribers; the replay has them."""
        self._losing += count

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pub.close(linger=0)
        self._context.destroy(linger=0)

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        try:
            while True:
                request = await router.recv_multipart()
                if len(request) != 3:
                    continue
                client, _, start = request
                first = int.from_bytes(start, "big")
                for number, payload in list(self._sent):
                    if number >= first:
                        await router.send_multipart((client, b"", self._topic, number.to_bytes(8, "big"), payload))
                await router.send_multipart((client, b"", b"", _END, b""))
        finally:
            router.close(linger=0)
