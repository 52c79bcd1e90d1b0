"""KV events over ZMQ, as engines send them: PUB of (topic, sequence u64 BE, msgpack), and a ROUTER that replays."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import zmq
import zmq.asyncio

from tests.doubles.engine.cache import Event
from tests.doubles.engine.encodings import encode
from tests.doubles.engine.settings import Settings

_END = (-1).to_bytes(8, "big", signed=True)
GARBAGE = b"\xc1 no KV events"  # 0xc1 is nothing in msgpack


class EventPublisher:
    """One data-parallel rank's publisher. `endpoint` and `replay` are the bound addresses once started."""

    def __init__(self, settings: Settings, *, rank: int = 0) -> None:
        assert settings.kv_events is not None
        self.endpoint = settings.kv_events
        self.replay = settings.kv_replay
        self._settings = settings
        self._rank = rank
        self._topic = settings.kv_topic.encode()
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=settings.kv_replay_steps)
        self._next = 0
        self._losing = 0
        self._garbling = 0
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
        settings = self._settings
        payload = encode(events, time.time(), self._rank, encoding=settings.kv_encoding, hashes=settings.kv_hashes)
        if self._garbling:
            self._garbling -= 1
            payload = GARBAGE
        self._sent.append((self._next, payload))
        if self._losing:
            self._losing -= 1
        elif not self._pub.closed:
            self._pub.send_multipart((*self._topic_frame(settings.kv_topic_frame), self._number(self._next), payload))
        self._next += 1

    def lose(self, count: int = 1) -> None:
        """The next `count` batches never reach the subscribers; the replay has them."""
        self._losing += count

    def garble(self, count: int = 1) -> None:
        """The next `count` batches cannot be read, nor can their replay."""
        self._garbling += count

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pub.close(linger=0)
        self._context.destroy(linger=0)

    async def restart(self, forget: Callable[[], None]) -> None:
        """As the publisher of an engine that ends and starts again: connections break, the sequence begins at 0.
        `forget` is called while nothing is published."""
        await self.stop()
        forget()
        self._sent.clear()
        self._next = 0
        self.start()

    def _topic_frame(self, wanted: bool) -> tuple[bytes, ...]:
        return (self._topic,) if wanted else ()

    def _number(self, number: int) -> bytes:
        return number.to_bytes(8, "big")

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        wanted = self._settings.kv_replay_topic_frame
        topic, none = self._topic_frame(wanted), (b"",) if wanted else ()
        try:
            while True:
                request = await router.recv_multipart()
                if len(request) != 3:
                    continue
                client, _, start = request
                first = int.from_bytes(start, "big")
                for number, payload in list(self._sent):
                    if number >= first:
                        await router.send_multipart((client, b"", *topic, self._number(number), payload))
                await router.send_multipart((client, b"", *none, _END, b""))
        finally:
            router.close(linger=0)
