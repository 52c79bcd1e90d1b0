"""What one hostile tenant, or strangers, cost the others: memory of the front door, and the answers of everybody else.

One attack after the other on a front door in a process of its own, each for `--seconds`; beside it another tenant keeps
`OTHERS` streams going, and `/health`, `/v1/models` and `/metrics` are asked for on fresh connections all the time. Said
of each: the most memory that the front door's processes had, what they kept, the others' whole and failed answers, and
how long the cheap routes took. The last line is one JSON object.
"""

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop
from msgspec import Struct

from forebay.platform.config.load import load_config
from forebay.platform.local.paths import paths
from forebay.platform.local.probe import any_port
from forebay.platform.server import raise_file_limit
from forebay.platform.stores import embedded
from tests.bench.load import request
from tests.bench.seen import get
from tests.bench.streams import Bad, Stream
from tests.processes import Door, front_door, make_key, python_process

MODEL = "hostile"
WIDE = "wide"  # a model whose engine answers as fast as it is read, with 4 KB a token
CHAT = "/v1/chat/completions"
OTHERS = 20
CHEAP = ("/health", "/v1/models", "/metrics")
EVERY_S = 0.05
BODY_LIMIT = 32 << 20
REST_S = 3.0  # between two attacks

Attack = Callable[["Scene"], Awaitable[None]]


class Scene(Struct):
    """What an attack is given: the front door, the attacker's key, and when it is over."""

    door: Door
    key: str
    ends_at: float
    seen: Counter[str]

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends_at

    async def until_over(self) -> None:
        await asyncio.sleep(max(0.0, self.ends_at - time.monotonic()))


def chat(content: str = "hello", model: str = MODEL, **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **members}


# -- attacks


async def nothing(scene: Scene) -> None:
    await scene.until_over()


async def unread(scene: Scene) -> None:
    """500 streams of 40 MB each, of which nothing is read."""
    body = request(CHAT, chat(model=WIDE, stream=True, max_tokens=10_000), key=scene.key)
    await _held(scene, 500, body, buffer=4096)


async def unread_whole(scene: Scene) -> None:
    """500 whole answers of 8 MB, of which nothing is read."""
    body = request(CHAT, chat(model=WIDE, max_tokens=2000), key=scene.key)
    await _held(scene, 500, body, buffer=4096)


async def bodies(scene: Scene) -> None:
    """The largest legal body from 500 connections, its last byte held back."""
    text = "x" * (BODY_LIMIT - 300)
    await _held(scene, 500, request(CHAT, chat(text, max_tokens=1), key=scene.key)[:-1])


async def bodies_whole(scene: Scene) -> None:
    """The largest legal body from 64 connections, again and again, each refused for its length or its sum."""
    body = request(CHAT, chat("word " * (BODY_LIMIT // 5 - 100), max_tokens=1), key=scene.key)
    await _again(scene, 64, body)


async def silent(scene: Scene) -> None:
    """5,000 connections that say nothing."""
    await _held(scene, 5000, b"")


async def headers(scene: Scene) -> None:
    """2,000 connections with headers that never end, as many as are taken."""
    line = b"x-filler: " + b"y" * 4000 + b"\r\n"
    await _held(scene, 2000, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + line * 120)


async def trickle(scene: Scene) -> None:
    """500 bodies at a byte a second."""
    head, _, rest = request(CHAT, chat("x" * 1000, max_tokens=1), key=scene.key).partition(b"\r\n\r\n")
    ends = await _opened(scene, 500, head + b"\r\n\r\n")
    at = 0
    while not scene.over:
        for end in ends:
            with contextlib.suppress(OSError):
                end.send(rest[at : at + 1])
        at += 1
        await asyncio.sleep(1.0)
    _close(ends)


async def pipelined(scene: Scene) -> None:
    """200 connections that send requests ahead, and read nothing."""
    await _held(scene, 200, request(CHAT, chat(max_tokens=200), key=scene.key) * 2000)


async def leaving(scene: Scene) -> None:
    """200 clients that leave at any moment."""
    body = request(CHAT, chat(stream=True, max_tokens=200), key=scene.key)

    async def visit(number: int) -> None:
        chance = random.Random(number)
        while not scene.over:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", scene.door.port)
                writer.write(body[: chance.choice((len(body), len(body), 100))])
                await asyncio.sleep(chance.random() * 0.3)
                writer.transport.abort()
                scene.seen["left"] += 1

    await asyncio.gather(*(visit(number) for number in range(200)))


async def retrying(scene: Scene) -> None:
    """1,000 clients that ask again at once whatever they hear."""
    await _again(scene, 1000, request(CHAT, chat(stream=True, max_tokens=100), key=scene.key))


async def prompts(scene: Scene) -> None:
    """128 clients with new prompts of a megabyte, all of which are to be tokenized."""

    async def ask(number: int) -> None:
        chance = random.Random(number)
        while not scene.over:
            text = " ".join(f"{chance.getrandbits(40):x}" for _ in range(100_000))
            await _one(scene, request(CHAT, chat(text, max_tokens=1), key=scene.key))

    await asyncio.gather(*(ask(number) for number in range(128)))


ATTACKS: dict[str, Attack] = {
    each.__name__: each
    for each in (
        nothing, unread, unread_whole, bodies, bodies_whole, silent, headers, trickle, pipelined, leaving, retrying,
        prompts,
    )
}  # fmt: skip


async def _opened(scene: Scene, count: int, data: bytes, *, buffer: int | None = None) -> list[socket.socket]:
    """Connections on which as much of `data` was sent as was taken by the time that the attack is over."""
    loop = asyncio.get_running_loop()
    ends: list[socket.socket] = []

    async def send(end: socket.socket) -> None:
        try:
            await loop.sock_connect(end, ("127.0.0.1", scene.door.port))
            await loop.sock_sendall(end, data)
            scene.seen["sent"] += 1
        except OSError as error:
            scene.seen[type(error).__name__] += 1

    for _ in range(count):
        end = socket.socket()
        end.setblocking(False)
        if buffer is not None:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        ends.append(end)
    sending = [asyncio.create_task(send(end)) for end in ends]
    await asyncio.wait(sending, timeout=max(0.1, scene.ends_at - time.monotonic()))
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    return ends


async def _held(scene: Scene, count: int, data: bytes, *, buffer: int | None = None) -> None:
    ends = await _opened(scene, count, data, buffer=buffer)
    await scene.until_over()
    _close(ends)


def _close(ends: Sequence[socket.socket]) -> None:
    for end in ends:
        end.close()


async def _again(scene: Scene, clients: int, data: bytes) -> None:
    async def client() -> None:
        while not scene.over:
            await _one(scene, data)

    await asyncio.gather(*(client() for _ in range(clients)))


async def _one(scene: Scene, data: bytes) -> None:
    """A request on a connection of its own; what it hears is counted."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.door.port)
        writer.write(data)
        head = await asyncio.wait_for(reader.read(4096), 60)
        scene.seen[head[9:12].decode() or "closed"] += 1
        if head[9:12] == b"200":
            while await reader.read(1 << 16) and b"0\r\n\r\n" not in head:
                if scene.over:
                    break
    except (OSError, TimeoutError) as error:
        scene.seen[type(error).__name__] += 1
    finally:
        if writer is not None:
            writer.transport.abort()


# -- the others


class Others:
    """Another tenant's streams, and whoever asks the cheap routes."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.reset()

    def reset(self) -> None:
        self.whole = 0
        self.failed: Counter[str] = Counter()
        self.took: dict[str, list[float]] = {path: [] for path in CHEAP}
        self.first: list[float] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(OTHERS):
                tasks.create_task(self._stream(number))
            for path in CHEAP:
                tasks.create_task(self._ask(path))

    async def _stream(self, number: int) -> None:
        data = request(CHAT, chat(f"conversation {number}", stream=True, max_tokens=30), key=self._door.key)
        while True:
            try:
                stream = await Stream.connect(self._door.port)
                async with asyncio.timeout(30):
                    await stream.exchange(data)
                self.whole += 1
            except (Bad, OSError, TimeoutError) as error:
                self.failed[str(error)[:200] or type(error).__name__] += 1
                await asyncio.sleep(0.1)
            finally:
                stream.close()

    async def _ask(self, path: str) -> None:
        while True:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(30):
                    await get(self._door.url, path, key=self._door.key)
            except (OSError, TimeoutError) as error:
                self.failed[f"{path}: {str(error)[:100] or type(error).__name__}"] += 1
            self.took[path].append(time.perf_counter() - began)
            await asyncio.sleep(EVERY_S)


def _ms(took: Sequence[float]) -> dict[str, float]:
    if len(took) < 2:
        return {"n": len(took)}
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return {"n": len(took), "p50": round(cuts[49] * 1000, 1), "p99": round(cuts[98] * 1000, 1),
            "max": round(max(took) * 1000, 1)}  # fmt: skip


# -- the bench


class Memory:
    """Of the front door's processes, sampled."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.most = 0.0

    def now(self) -> float:
        some = [self._process, *self._process.children(recursive=True)]
        rss = sum(one.memory_info().rss for one in some) / 2**20
        self.most = max(self.most, rss)
        return rss

    async def run(self) -> None:
        while True:
            self.now()
            await asyncio.sleep(0.1)


async def bench(names: Sequence[str], seconds: float, workers: int, tokenizer: bool) -> dict[str, Any]:
    results: dict[str, Any] = {}
    async with _subjects(workers, tokenizer) as (door, attackers_key):
        memory, others = Memory(door.pid), Others(door)
        background = [asyncio.create_task(memory.run()), asyncio.create_task(others.run())]
        await asyncio.sleep(2.0)
        for name in names:
            others.reset()
            before = memory.most = memory.now()
            scene = Scene(door, attackers_key, time.monotonic() + seconds, Counter())
            await ATTACKS[name](scene)
            took, whole, failed = others.took, others.whole, dict(others.failed)
            most = memory.most
            await asyncio.sleep(REST_S)
            results[name] = {
                "rss_mb": {"before": round(before), "most": round(most), "after": round(memory.now())},
                "others_whole": whole,
                "others_failed": sum(failed.values()),
                **{path: _ms(took[path]) for path in CHEAP},
            }
            print(f"{name:13} {json.dumps(results[name])} heard {dict(scene.seen)} {failed or ''}", flush=True)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
    return results


@asynccontextmanager
async def _subjects(workers: int, tokenizer: bool) -> AsyncIterator[tuple[Door, str]]:
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        state = Path(directory)
        state.chmod(0o711)
        port, wide = any_port(), any_port()
        double = [
            "tests.doubles.engine", "--port", str(port), "--model", MODEL, "--token-seconds", "0.05",
            "--tick-seconds", "0.05", "--answer-tokens", "none", "--no-tokenize", "--max-running", "5000",
            "--max-model-len", "120000", "--cache-blocks", "100000", "--request-log", "1",
        ]  # fmt: skip
        weights = str(paths(load_config(None).stores.state_dir).weights) if tokenizer else None
        with embedded.start_postgres(state) as postgres, embedded.start_valkey(state) as valkey:
            async with (
                python_process(*double, ready="engine double"),
                python_process("tests.bench.torrent", "--port", str(wide), ready="torrent ready"),
                front_door(
                    state, [], model=MODEL, postgres=postgres.url, valkey=valkey.url,
                    server={"workers": workers, "bodyLimit": BODY_LIMIT},
                    pools=[_pool(MODEL, port), _pool(WIDE, wide, engine="openai")],
                    models=[_model(MODEL, tokenizer=weights), _model(WIDE)],
                ) as door,
            ):  # fmt: skip
                yield door, await make_key(state, postgres.url)


def _pool(name: str, port: int, **endpoint: Any) -> dict[str, Any]:
    return {"name": name, "endpoints": [{"url": f"http://127.0.0.1:{port}", "name": f"engine-{name}", **endpoint}]}


def _model(name: str, tokenizer: str | None = None) -> dict[str, Any]:
    price = {"version": "v1", "effectiveFrom": "2026-01-01T00:00:00Z", "input": "0.5", "output": "1.5"}
    return {"name": name, "pool": name, "prices": [price], **({"tokenizer": tokenizer} if tokenizer else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", metavar="attack", help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each attack")
    parser.add_argument("--workers", type=int, default=1, help="of the front door")
    parser.add_argument("--no-tokenizer", action="store_true", help="do not read prompts with SmolLM2's files")
    options = parser.parse_args()
    unknown = set(options.attacks) - set(ATTACKS)
    if unknown:
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    raise_file_limit()
    found = uvloop.run(
        bench(options.attacks or list(ATTACKS), options.seconds, options.workers, not options.no_tokenizer)
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
