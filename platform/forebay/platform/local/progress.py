"""Lines that say what is being done, for whom, and since when, so that nobody waits a minute in silence."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import TextIO

EVERY = 5.0  # seconds between two lines of a step that goes on
WIDTH = 100  # columns kept of a detail


class Step:
    """One thing under way. Whoever does it sets `detail`; the reader sees it within `EVERY` seconds."""

    def __init__(self, name: str, doing: str) -> None:
        self.name = name
        self.doing = doing
        self.detail = ""
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def line(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.name:<10} {self.doing}{detail}"[:WIDTH] + f"  ({self.seconds:.0f} s)"


class Progress:
    """Plain lines on a stream, the same on a terminal and in a log of CI."""

    def __init__(self, out: TextIO | None = None, every: float = EVERY) -> None:
        self._out = out if out is not None else sys.stdout
        self._every = every

    def say(self, text: str) -> None:
        """A reader who has gone (a closed pipe) must not stop what is being done."""
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self._out, flush=True)

    @contextlib.asynccontextmanager
    async def step(self, name: str, doing: str) -> AsyncIterator[Step]:
        """Announces the step, reports on it while it lasts, and says how long it took if it succeeds."""
        step = Step(name, doing)
        self.say(f"==> {name:<10} {doing}")
        ticker = asyncio.create_task(self._tick(step))
        try:
            yield step
        finally:
            ticker.cancel()
        self.say(f"    {step.name:<10} done: {step.doing} ({step.seconds:.0f} s)")

    async def _tick(self, step: Step) -> None:
        while True:
            await asyncio.sleep(self._every)
            self.say(f"    {step.line()}")
