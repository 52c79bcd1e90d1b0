"""The front door under many streams for a long time: what it holds, whether that grows, and whether all is given back.

`--streams` at once, each of one event a second, from engine doubles in processes of their own. Half of them last as
long as the run; the others end after 20 to 60 events and ask again on the same connection, so that what a request
leaves behind would show as well. All of the front door's processes are looked at once a second. At the end every
stream has to be whole, every request in the ledger, and nothing booked, running or open. The last line is one JSON
object; exits with 1 where something is wrong.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop
from msgspec import Struct
from sqlalchemy import text

from forebay.platform.local.probe import any_port
from forebay.platform.server import raise_file_limit
from forebay.platform.stores import embedded
from forebay.platform.stores.database import create_engine
from tests.bench.load import request
from tests.bench.seen import exposed, get, total
from tests.bench.streams import Bad, Stream
from tests.processes import Door, front_door, python_process

MODEL = "soak"
WARM_S = 60.0  # after which memory must not grow
RAMP_S = 15.0  # over which streams are begun
SHORT = (20, 60)  # events of a stream that is followed by another; fewer in a run of less than three minutes
LEAST = 5  # events; who has ended his stream later than that before the end begins none
SLACK_S = 30.0  # for the last events, records and leases
GROWTH_MB = 16.0  # that is taken for none: allocators and metrics breathe
ALLOWED_MB = 1024.0


class Sample(Struct, frozen=True):
    at_s: float
    rss_mb: float
    files: int


class Result(Struct, frozen=True):
    """`growth_mb`: from the median of the half minute that follows the first one to that of the last. Slopes: since the
    first minute, and of the second half. `leases_left`:
    all that is booked, running, open or in flight afterwards, at the front door and at the engines."""

    streams: int
    seconds: float
    errors: int
    requests: int
    unrecorded: int
    events: int
    rss_mb_start: float
    rss_mb_after_minute: float
    rss_mb_end: float
    rss_mb_max: float
    growth_mb: float
    slope_mb_per_min: float
    slope_later_mb_per_min: float
    files_max: int
    files_end: int
    leases_left: int
    cpu: float

    @property
    def well(self) -> bool:
        nothing = not (self.errors or self.unrecorded or self.leases_left)
        return nothing and self.growth_mb <= GROWTH_MB and self.rss_mb_max <= ALLOWED_MB


class Soak:
    """The streams of one run. `lasting_s`: how long it is to last in all."""

    def __init__(self, door: Door, streams: int, lasting_s: float) -> None:
        self._door = door
        self._streams = streams
        self._ends_at = time.monotonic() + lasting_s
        self._lasting_s = lasting_s
        self._open: set[Stream] = set()
        self._events = 0  # of those that are closed
        self.requests = 0
        self.errors: Counter[str] = Counter()

    @property
    def events(self) -> int:
        return sum(stream.events for stream in self._open) + self._events

    async def run(self) -> None:
        ramp = min(RAMP_S, self._lasting_s / 4)
        await asyncio.gather(*(self._client(n, ramp * n / self._streams) for n in range(self._streams)))

    async def _client(self, number: int, begin_s: float) -> None:
        await asyncio.sleep(begin_s)
        lengths = random.Random(number)
        shortest, longest = (max(LEAST, round(min(each, self._lasting_s * each / 180))) for each in SHORT)
        stream = await self._connect()
        while (left := round(self._ends_at - time.monotonic())) >= LEAST:
            tokens = left if number % 2 else min(left, lengths.randint(shortest, longest))
            messages = [{"role": "user", "content": f"Conversation {number}: what does a forebay hold? " * 8}]
            body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": True}
            self.requests += 1
            try:
                await stream.exchange(request("/v1/chat/completions", body, key=self._door.key))
            except Bad as error:
                self.errors[str(error)] += 1
                self._close(stream)
                stream = await self._connect()
        self._close(stream)

    async def _connect(self) -> Stream:
        stream = await Stream.connect(self._door.port)
        self._open.add(stream)
        return stream

    def _close(self, stream: Stream) -> None:
        self._open.discard(stream)
        self._events += stream.events
        stream.close()


class Watch:
    """Samples of the front door's processes, one a second, until left."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def _all(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]

    def look(self) -> Sample:
        some = self._all()
        rss = sum(one.memory_info().rss for one in some) / 2**20
        sample = Sample(time.monotonic() - self._began, rss, sum(one.num_fds() for one in some))
        self.samples.append(sample)
        return sample

    def cpu_s(self) -> float:
        return sum(times.user + times.system for times in (one.cpu_times() for one in self._all()))

    async def run(self, said: "Soak") -> None:
        while True:
            sample = self.look()
            if len(self.samples) % 10 == 0:
                print(
                    f"{sample.at_s:6.0f} s  {sample.rss_mb:7.1f} MB  {sample.files:6} files  {said.requests:7} requests"
                    f"  {said.events:9} events  {said.errors.total()} errors",
                    flush=True,
                )
            await asyncio.sleep(1.0)


async def soak(streams: int, seconds: float, *, workers: int, doubles: int) -> Result:
    async with _subjects(streams, workers, doubles) as (door, engines, database):
        watch = Watch(door.pid)
        begin = watch.look()
        some = Soak(door, streams, seconds)
        watching = asyncio.create_task(watch.run(some))
        cpu = watch.cpu_s()
        try:
            async with asyncio.timeout(seconds + SLACK_S):
                await some.run()
        finally:
            watching.cancel()
        cpu = watch.cpu_s() - cpu
        for reason, count in some.errors.most_common(10):
            print(f"    {count} times {reason}", flush=True)
        left = await _left(door.url, engines)
        recorded = await _recorded(database, some.requests)
        end = watch.look()
        warm = [one for one in watch.samples if min(WARM_S, seconds / 2) <= one.at_s <= seconds]
        return Result(
            streams=streams,
            seconds=seconds,
            errors=some.errors.total(),
            requests=some.requests,
            unrecorded=some.requests - recorded,
            events=some.events,
            rss_mb_start=round(begin.rss_mb, 1),
            rss_mb_after_minute=round(_first(warm), 1),
            rss_mb_end=round(end.rss_mb, 1),
            rss_mb_max=round(max(one.rss_mb for one in watch.samples), 1),
            growth_mb=round(_last(warm) - _first(warm), 1),
            slope_mb_per_min=round(_slope(warm), 3),
            slope_later_mb_per_min=round(_slope([one for one in warm if one.at_s > seconds / 2]), 3),
            files_max=max(one.files for one in watch.samples),
            files_end=end.files,
            leases_left=left,
            cpu=round(cpu / seconds, 3),
        )


def _first(samples: Sequence[Sample]) -> float:
    return statistics.median([one.rss_mb for one in samples[:30]] or [0.0])


def _last(samples: Sequence[Sample]) -> float:
    return statistics.median([one.rss_mb for one in samples[-30:]] or [0.0])


def _slope(samples: Sequence[Sample]) -> float:
    """Megabytes a minute, by least squares."""
    if len(samples) < 2:
        return 0.0
    return statistics.linear_regression([one.at_s / 60 for one in samples], [one.rss_mb for one in samples]).slope


async def _left(url: str, engines: Sequence[str]) -> int:
    """What is still held, once that does not change any more."""
    deadline = time.monotonic() + SLACK_S
    while True:
        held = exposed(await get(url, "/metrics"))
        left = sum(
            total(held, name)
            for name in (
                "forebay_requests_in_flight", "forebay_endpoint_in_flight", "forebay_requests_waiting",
                "forebay_spool_open_attempts", "forebay_endpoint_booked_output_tokens",
            )
        )  # fmt: skip
        for engine in engines:
            running = exposed(await get(engine, "/metrics"))
            left += total(running, "vllm:num_requests_running") + total(running, "vllm:num_requests_waiting")
        if not left or time.monotonic() > deadline:
            return round(left)
        await asyncio.sleep(0.5)


async def _recorded(database: str, wanted: int) -> int:
    """Completed records in the ledger, which follow within a second or so."""
    engine = create_engine(database)
    deadline = time.monotonic() + SLACK_S
    try:
        while True:
            async with engine.connect() as db:
                found = await db.scalar(text("SELECT count(*) FROM usage_records WHERE status = 'completed'"))
            if found == wanted or time.monotonic() > deadline:
                return int(found or 0)
            await asyncio.sleep(0.5)
    finally:
        await engine.dispose()


@asynccontextmanager
async def _subjects(streams: int, workers: int, doubles: int) -> AsyncIterator[tuple[Door, list[str], str]]:
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        state = Path(directory)
        state.chmod(0o711)
        ports = [any_port() for _ in range(doubles)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        with embedded.start_postgres(state) as postgres, embedded.start_valkey(state) as valkey:
            async with AsyncExitStack() as stack:
                for port in ports:
                    await stack.enter_async_context(python_process(*_double(port, streams), ready="engine double"))
                bounds: dict[str, Any] = {"maxInFlight": 2 * streams, "maxInFlightPerProject": 2 * streams}
                door = await stack.enter_async_context(
                    front_door(
                        state, urls, model=MODEL, postgres=postgres.url, valkey=valkey.url,
                        server={**bounds, "workers": workers},
                    )
                )  # fmt: skip
                yield door, urls, postgres.url


def _double(port: int, streams: int) -> list[str]:
    return [
        "tests.doubles.engine", "--port", str(port), "--model", MODEL, "--token-seconds", "1", "--tick-seconds", "0.01",
        "--answer-tokens", "none", "--no-tokenize", "--max-running", str(streams), "--cache-blocks", str(64 * streams),
        "--request-log", "1",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=1, help="of the front door")
    parser.add_argument("--doubles", type=int, default=2, help="engine doubles")
    options = parser.parse_args()
    raise_file_limit()
    result = uvloop.run(soak(options.streams, options.seconds, workers=options.workers, doubles=options.doubles))
    print(json.dumps({name: getattr(result, name) for name in result.__struct_fields__}))
    sys.exit(not result.well)


if __name__ == "__main__":
    main()
