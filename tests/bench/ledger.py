"""What metering costs: from the spool to committed rows with an embedded Postgres that waits for its disk, and the CPU
that the spool's append adds to a request.

    .venv/bin/python -m tests.bench.ledger --seconds 20

`records_per_s`: records sustained from spool to ledger, with everything in it (decoding, COPY, indexes, rollup, commit,
removal from the spool). `append_cpu_ms`: CPU of this process for an open and a terminal record, made durable, at
`--clients` requests at a time; less what the loop costs without a spool.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path

from forebay.metering import Ledger, Shipper, Spool
from forebay.platform.stores import embedded
from forebay.platform.stores.database import create_engine
from forebay.platform.stores.schema import migrate
from tests.metered import attempt, record
from tests.stores import state_directory

_LIMIT = 4 << 30


async def _append(directory: Path, requests: int, clients: int) -> float:
    """CPU milliseconds for each request."""
    spool = Spool(directory, _LIMIT)
    await spool.start()

    async def client(number: int, *, metered: bool) -> None:
        for index in range(requests // clients):
            one = attempt(number * 1_000_000 + index, session="ab" * 16)
            done = record(one)
            if metered:
                await spool.open(one)
                await spool.close(done)
            else:
                await asyncio.sleep(0)

    async def cpu(*, metered: bool) -> float:
        before = time.process_time()
        await asyncio.gather(*(client(number, metered=metered) for number in range(clients)))
        return time.process_time() - before

    floor = await cpu(metered=False)
    spent = await cpu(metered=True)
    await spool.stop()
    return (spent - floor) / requests * 1000


async def _ship(directory: Path, url: str, seconds: float) -> tuple[float, int]:
    """Records a second, and how many: the spool is filled before, so that only the way to the ledger is measured."""
    engine = create_engine(url)
    await migrate(engine)
    spool = Spool(directory, _LIMIT)
    await spool.start()
    now = time.time()
    ledger = Ledger(engine)
    shipper = Shipper(spool, ledger)
    shipped = number = 0
    spent = 0.0
    while spent < seconds:
        for _ in range(20_000):
            number += 1
            one = attempt(
                number, started_at=now + number / 1000, session=f"{number % 500:032x}", tenant_id=f"ten_{number % 20}",
                key_id=f"key_{number % 60}", price_version=f"v{number % 2}",
            )  # fmt: skip
            spool.open(one)
            done = spool.close(record(one))
        await done
        began = time.monotonic()
        await shipper.drain(120.0)
        spent += time.monotonic() - began
        shipped += 20_000 - spool.unshipped
    await spool.stop()
    await engine.dispose()
    return shipped / spent, shipped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of shipping (default 20)")
    parser.add_argument("--requests", type=int, default=20_000, help="appended (default 20000)")
    parser.add_argument("--clients", type=int, default=64, help="that append at a time (default 64)")
    args = parser.parse_args()
    with state_directory() as state, embedded.start_postgres(state) as server:
        append = asyncio.run(_append(state / "append" / "a", args.requests, args.clients))
        print(f"append: {append:.3f} ms CPU a request")
        rate, shipped = asyncio.run(_ship(state / "spool" / "a", server.url, args.seconds))
        print(f"shipped {shipped} records, {rate:.0f} a second")
    print(json.dumps({"records_per_s": round(rate), "append_cpu_ms": round(append, 4), "records": shipped}))


if __name__ == "__main__":
    main()
