"""What relaying costs: CPU of the front door per streamed event and per small request, everything included.

64 streams of one event each 10 ms, then small non-streamed requests over 32 connections, against the engine double;
front door and bare-handler floor in turns, medians of the rounds. Prompts are read with SmolLM2's files, and
the engine's KV events are followed. The last line is one JSON object.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from forebay.platform.config.load import load_config
from forebay.platform.local.paths import paths
from forebay.platform.local.probe import any_port
from forebay.platform.stores import embedded
from tests.bench import load
from tests.processes import front_door, python_process

STREAMS = 64
EVENT_S = 0.01
SMALL_CONNECTIONS = 32
_PROMPT = [{"role": "user", "content": "What does a forebay hold, and why is it placed before the intake?" * 8}]


async def bench(rounds: int, seconds: float, small: int) -> dict[str, float]:
    tokens = round(seconds / EVENT_S)
    stream_body = {"model": "bench", "messages": _PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    small_body = {"model": "bench", "messages": _PROMPT, "max_tokens": 1}
    results: dict[str, list[float]] = {}
    async with _subjects() as subjects:
        for number in range(rounds):
            for name, (pid, port, key, engine_reads_usage) in subjects.items():
                extra = (
                    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
                    if engine_reads_usage
                    else {}
                )
                stream = load.request("/v1/chat/completions", {**stream_body, **extra}, key=key)
                whole = load.request("/v1/chat/completions", small_body, key=key)
                await load.requests(port, whole, connections=4, total=100)  # warm
                before = cpu_seconds(pid)
                events = await load.streams(port, stream, count=STREAMS)
                us = (cpu_seconds(pid) - before) / events * 1e6
                before, began = cpu_seconds(pid), time.perf_counter()
                await load.requests(port, whole, connections=SMALL_CONNECTIONS, total=small)
                ms = (cpu_seconds(pid) - before) / small * 1e3
                rate = small / (time.perf_counter() - began)
                before = cpu_seconds(pid)
                await load.requests(port, whole, connections=1, total=small // 4)
                alone = (cpu_seconds(pid) - before) / (small // 4) * 1e3
                print(
                    f"round {number + 1} {name:8} {us:6.1f} us/event  {ms:.3f} ms/request ({rate:.0f}/s)  "
                    f"{alone:.3f} ms/request over one connection",
                    flush=True,
                )
                for key_, value in (("us_per_event", us), ("ms_per_request", ms), ("ms_per_request_alone", alone)):
                    results.setdefault(f"{name}_{key_}", []).append(value)
    return {key: round(statistics.median(values), 4) for key, values in results.items()}


def cpu_seconds(pid: int) -> float:
    """User and system time of the process and its children."""
    process = psutil.Process(pid)
    times = [process.cpu_times(), *(child.cpu_times() for child in process.children(recursive=True))]
    return sum(t.user + t.system for t in times)


@asynccontextmanager
async def _subjects() -> AsyncIterator[dict[str, tuple[int, int, str | None, bool]]]:
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        state = Path(directory)
        state.chmod(0o711)
        engine, floor = any_port(), any_port()
        double = (
            "tests.doubles.engine",
            "--port",
            str(engine),
            "--model",
            "bench",
            "--token-seconds",
            str(EVENT_S),
            "--tick-seconds",
            str(EVENT_S),
            "--answer-tokens",
            "none",
            "--no-tokenize",
            "--kv-events",
            f"ipc://{state}/kv",
            "--kv-replay",
            f"ipc://{state}/kv-replay",
        )
        tokenizer = str(paths(load_config(None).stores.state_dir).weights)
        events = {"kvEvents": f"ipc://{state}/kv", "kvReplay": f"ipc://{state}/kv-replay"}
        url = f"http://127.0.0.1:{engine}"
        with embedded.start_postgres(state) as postgres, embedded.start_valkey(state) as valkey:
            async with (
                python_process(*double, ready="engine double"),
                python_process("tests.bench.floor", "--port", str(floor), "--engine", url, ready="ready") as bare,
                front_door(
                    state, [url], model="bench", postgres=postgres.url, valkey=valkey.url,
                    endpoints=[events], tokenizer=tokenizer,
                ) as door,
            ):  # fmt: skip
                yield {"floor": (bare.pid, floor, None, True), "cpu": (door.pid, door.port, door.key, False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each stream")
    parser.add_argument("--requests", type=int, default=3000)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(bench(arguments.rounds, arguments.seconds, arguments.requests))))


if __name__ == "__main__":
    main()
