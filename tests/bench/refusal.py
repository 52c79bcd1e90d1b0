"""How soon refused requests hear of it from a real front door whose engines have more than they can do.

A front door in this process before two engine doubles that compute prompts at 1,000 tokens a second. A client asks for
five times as much as they can do from its first request on, open loop; a request may wait one second for an engine.
Measured at the client, from the connection's first byte on; the front door, the doubles and the client share this
process and its core.

Before it, what refusing costs the router alone while thousands wait.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from msgspec.structs import replace

from forebay.platform.stores import embedded
from forebay.router import Refused
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.integration.door import MODEL, Door, config, opened
from tests.virtual import Table

RATE, TOKENS, TIMES = 1_000.0, 400, 5.0
BUSY = Settings(prefill_rate=RATE, answer_tokens=None)
WARM_S, SECONDS = 5.0, 12.0
QUEUE_S = 1.0
WAITING, ENDPOINTS = 3_600, ("a", "b", "c", "d")


def crowded(tenants: int, times: int = 200) -> float:
    """Milliseconds of a predicted refusal, the median, while requests of so many tenants wait."""
    table, rng = Table(*ENDPOINTS), random.Random(1)
    for name in ENDPOINTS:
        table.place((f"long, at {name}", 200_000), without=tuple(one for one in ENDPOINTS if one != name))
    for n in range(WAITING):
        ask = table.ask((f"{n}", rng.choice((40, 400, 2_000))))
        table.core.request(replace(ask, patience_s=6_000.0, tenant=f"{n % tenants}"), table.now)
    assert table.settled() == {}
    table.pool.rates.prefills = 20  # from now on what is predicted is believed
    took = []
    for n in range(times):
        asked = replace(table.ask((f"new {n}", 400)), patience_s=5.0, tenant=f"{n % tenants}")
        began = time.perf_counter()
        table.core.request(asked, table.now)
        took.append((time.perf_counter() - began) * 1e3)
    assert sum(isinstance(one, Refused) for one in table.settled().values()) == times
    return statistics.median(took)


async def bench() -> float:
    """Milliseconds, the median. Prints what became of the requests."""
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        state = Path(directory)
        state.chmod(0o711)
        with embedded.start_postgres(state) as postgres, embedded.start_valkey(state) as valkey:
            async with EngineDouble(BUSY) as one, EngineDouble(BUSY) as other:
                configured = config(state, [one, other], timeouts={"queue": QUEUE_S})
                async with opened(configured, postgres.url, valkey.url) as door:
                    return await _measure(door)


async def _measure(door: Door) -> float:
    rng = random.Random(1)
    asked: list[asyncio.Task[tuple[int, float, float]]] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=door.url, headers=door.http.headers, timeout=60.0, limits=limits) as http:
        began = time.perf_counter()
        while (at := time.perf_counter() - began) < WARM_S + SECONDS:
            asked.append(asyncio.create_task(_ask(http, len(asked), at)))
            await asyncio.sleep(rng.expovariate(TIMES * 2 * RATE / TOKENS))
        answers = [one for one in await asyncio.gather(*asked) if one[2] >= WARM_S]
    refused = sorted(seconds for status, seconds, _ in answers if status in (429, 503))
    print(f"\n    a real front door: {len(answers)} requests in {SECONDS:.0f} s, {len(refused)} refused: heard after "
          f"{statistics.median(refused) * 1e3:.1f} ms (p50), {refused[int(len(refused) * 0.95)] * 1e3:.1f} ms (p95)",
          flush=True)  # fmt: skip
    return round(statistics.median(refused) * 1e3, 2)


async def _ask(http: httpx.AsyncClient, number: int, at: float) -> tuple[int, float, float]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{number} " + "word " * TOKENS}],
            "stream": True, "max_tokens": 2}  # fmt: skip
    began = time.perf_counter()
    answer = await http.post("/v1/chat/completions", json=body)
    return answer.status_code, time.perf_counter() - began, at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for tenants in (1, 3, 30, 1_000):
        print(f"    the router alone, {WAITING:,} of {tenants:,} tenants wait: {crowded(tenants):.2f} ms a refusal")
    print(asyncio.run(bench()))


if __name__ == "__main__":
    main()
