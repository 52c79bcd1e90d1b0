"""Whether limits hold, and what they cost: four front-door processes, 64 clients, one Valkey.

First the clients ask without end for a few windows of a minute, across their boundaries, and what was admitted is
compared with the limit. Then they stream, and the engine says how many it had at once. Last, one front door's CPU for a
small request is measured without limits, with one on requests alone, and with all of them at three levels; the way of
the unlimited one is what `tests.bench.relay` measures. The last line is one JSON object.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct

from forebay.platform.config.model import Config, Stores
from forebay.platform.config.secrets import secrets_of
from forebay.platform.limits.rules import Level, Limits
from forebay.platform.limits.window import WINDOW_MS, phase_of, window
from forebay.platform.local.probe import any_port
from forebay.platform.stores import embedded
from forebay.platform.tenancy.opened import opened
from tests.bench import load
from tests.bench.relay import cpu_seconds
from tests.processes import Door, front_door, python_process

DOORS, CLIENTS = 4, 64
PER_MINUTE, AT_ONCE = 600, 16
AFTER_REFUSAL_S = 0.25
_LOCAL = 'forebay_limit_reservations_total{where="local"}'
_HAS = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
SMALL = {"model": "bench", "messages": [{"role": "user", "content": "What does a forebay hold?"}], "max_tokens": 1}
ALL = Limits(10**6, 10**9, 10**9, 10**4, 10**4)


class Subject(Struct, frozen=True):
    """`keys` by what limits them."""

    doors: Sequence[Door]
    engine: str
    keys: dict[str, str]
    tenant: str  # of the key "requests"


async def admitted(subject: Subject, windows: int) -> dict[str, Any]:
    """By window; those that began in one and ended in the next are counted apart."""
    counts: dict[int | str, int] = {}
    refused = 0
    phase = phase_of(subject.tenant)

    def number() -> int:
        return window(int(time.time() * 1000), phase).number

    left_s = window(int(time.time() * 1000), phase).left_ms / 1000
    print(f"waiting {left_s:.0f} s for a window to begin", flush=True)
    await asyncio.sleep(left_s + 0.1)
    first, end = number(), time.monotonic() + windows * WINDOW_MS / 1000 - 0.4
    body = load.request("/v1/chat/completions", SMALL, key=subject.keys["requests"])

    async def client(place: int) -> None:
        nonlocal refused
        connection = await load.connect(subject.doors[place % DOORS].port)
        while time.monotonic() < end:
            before = number()
            status = await connection.exchange(body)
            if status == b"200":
                where = before - first if number() == before else "across"
                counts[where] = counts.get(where, 0) + 1
            elif status == b"429":
                refused += 1
                await asyncio.sleep(AFTER_REFUSAL_S)
            else:
                raise RuntimeError(f"answered {status.decode()}")
        connection.transport.close()  # type: ignore[union-attr]

    await asyncio.gather(*map(client, range(CLIENTS)))
    across = counts.pop("across", 0)
    most = max(counts.values())
    print(f"admitted by window: {counts}, across two: {across}, limit {PER_MINUTE}, refused {refused}", flush=True)
    return {
        "windows": windows, "limit": PER_MINUTE, "admitted_most": most, "admitted": sum(counts.values()) + across,
        "allowed": windows * PER_MINUTE, "refused": refused,
    }  # fmt: skip


async def by_share(subject: Subject) -> int:
    """How often a front door could not wait for Valkey: on a machine that is too busy for its deadline."""
    found = 0.0
    async with httpx.AsyncClient() as http:
        for door in subject.doors:
            lines = (await http.get(f"{door.url}/metrics")).text.splitlines()
            found += sum(float(line.split()[-1]) for line in lines if line.startswith(_LOCAL))
    return int(found)


async def at_once(subject: Subject, seconds: float) -> dict[str, Any]:
    """The most that the engine had, of clients that stream for half a second each."""
    body = load.request(
        "/v1/chat/completions", {**SMALL, "max_tokens": 50, "stream": True, "ignore_eos": True},
        key=subject.keys["concurrent"],
    )  # fmt: skip
    end, most, answered = time.monotonic() + seconds, 0, 0

    async def client(place: int) -> None:
        nonlocal answered
        connection = await load.connect(subject.doors[place % DOORS].port)
        while time.monotonic() < end:
            status = await connection.exchange(body)
            answered += status == b"200"
            await asyncio.sleep(0.05)
        connection.transport.close()  # type: ignore[union-attr]

    async def watch() -> None:
        nonlocal most
        async with httpx.AsyncClient() as http:
            while True:
                text = (await http.get(f"{subject.engine}/metrics")).text
                has = [line for line in text.splitlines() if line.startswith(_HAS)]
                most = max(most, int(sum(float(line.split()[-1]) for line in has)))
                await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(client, range(CLIENTS)))
    watching.cancel()
    print(f"at once: {most} of {AT_ONCE}, {answered} streams answered", flush=True)
    return {"at_once_limit": AT_ONCE, "at_once_most": most, "streams": answered}


async def cost(subject: Subject, rounds: int, total: int) -> dict[str, float]:
    """CPU of the front door, in ms for a request."""
    door = subject.doors[0]
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for name in ("none", "one", "all"):
            body = load.request("/v1/chat/completions", SMALL, key=subject.keys[name])
            await load.requests(door.port, body, connections=8, total=100)  # warm
            before = cpu_seconds(door.pid)
            await load.requests(door.port, body, connections=32, total=total)
            found.setdefault(name, []).append((cpu_seconds(door.pid) - before) / total * 1e3)
            print(f"round {number + 1} limits: {name:5} {found[name][-1]:.3f} ms/request", flush=True)
    return {f"ms_{name}": round(statistics.median(some), 4) for name, some in found.items()}


@asynccontextmanager
async def subjects() -> AsyncIterator[Subject]:
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        state, engine = Path(directory), any_port()
        state.chmod(0o711)
        url = f"http://127.0.0.1:{engine}"
        double = ("tests.doubles.engine", "--port", str(engine), "--model", "bench", "--token-seconds", "0.01",
                  "--answer-tokens", "none", "--no-tokenize")  # fmt: skip
        with embedded.start_postgres(state) as postgres, embedded.start_valkey(state) as valkey:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(python_process(*double, ready="engine double"))
                keys, tenant = await _keys(state, postgres.url)
                secrets = {"cacheSalt": f"{state}/secrets/cache-salt", "keyHash": f"{state}/secrets/key-hash"}
                doors = []
                for number in range(DOORS):
                    own = state / f"door-{number}"
                    own.mkdir()
                    doors.append(
                        await stack.enter_async_context(
                            front_door(own, [url], model="bench", postgres=postgres.url, valkey=valkey.url,
                                       key=keys["none"], secrets=secrets)
                        )
                    )  # fmt: skip
                yield Subject(doors, url, keys, tenant)


async def _keys(state: Path, postgres: str) -> tuple[dict[str, str], str]:
    """Each of a tenant of its own."""
    limits = {
        "none": {},
        "requests": {Level.TENANT: Limits(requests_per_minute=PER_MINUTE)},
        "concurrent": {Level.TENANT: Limits(concurrent_requests=AT_ONCE)},
        "one": {Level.KEY: Limits(requests_per_minute=10**6)},
        "all": dict.fromkeys(Level, ALL),
    }
    keys, chosen = {}, ""
    config = Config(stores=Stores(state_dir=str(state)))
    secrets_of(config, "cache-salt")  # made now, for all front doors
    async with opened(config, postgres) as tenancy:
        for name, levels in limits.items():
            tenant = await tenancy.create_tenant(name)
            project = await tenancy.create_project(tenant.id, "main")
            key = await tenancy.create_key(project.id)
            ids = {Level.TENANT: tenant.id, Level.PROJECT: project.id, Level.KEY: key.key.id}
            for level, some in levels.items():
                await tenancy.limits.set(level, ids[level], some)
            keys[name] = key.secret
            chosen = tenant.id if name == "requests" else chosen
    return keys, chosen


async def bench(windows: int, seconds: float, rounds: int, total: int) -> dict[str, Any]:
    async with subjects() as subject:
        costs = await cost(subject, rounds, total)
        once = await at_once(subject, seconds)
        found = {**await admitted(subject, windows), **once, **costs}
        return {**found, "local": await by_share(subject)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of streams that are counted at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2000)
    arguments = parser.parse_args()
    found = asyncio.run(bench(arguments.windows, arguments.seconds, arguments.rounds, arguments.requests))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
