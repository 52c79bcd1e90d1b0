"""A process to be killed: it opens, checkpoints and closes attempts, and says on stdout what was acknowledged."""

import asyncio
import os
import sys
from pathlib import Path

from forebay.metering import Checkpoint, Quantities, Spool
from tests.metered import attempt, record


def say(what: str, number: int) -> None:
    os.write(1, f"{what} {number}\n".encode())  # one write, so that a kill never leaves half of an acknowledgement


async def main(directory: Path) -> None:
    spool = Spool(directory, 1 << 30)
    await spool.start()
    numbers = iter(range(1, 1_000_000))

    async def work() -> None:
        for number in numbers:
            opened = attempt(number)
            await spool.open(opened)
            say("open", number)
            if number % 10 == 0:
                spool.checkpoint(Checkpoint(opened.request_id, 1, Quantities(7, 0, 0, number), opened.started_at + 9))
                continue  # left open for ever
            await spool.close(record(opened))
            say("close", number)

    await asyncio.gather(*(work() for _ in range(16)))


asyncio.run(main(Path(sys.argv[1])))
