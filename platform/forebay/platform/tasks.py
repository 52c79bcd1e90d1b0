"""Background tasks that go on until they are told to end, and then end.

A driver can swallow a cancellation while it closes a connection, and a loop that dies of a fault would be missed only
when what it watches over goes wrong.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import Counter

log = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
_RESTARTS = Counter("forebay_background_restarts_total", "Background loops that failed and began again", ["loop"])


def background(name: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
    """Run `work`, and run it again whenever it fails, until the task is ended."""
    return asyncio.create_task(_forever(name, work), name=name)


async def _forever(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Each run is a task of its own: a task group that fails leaves its task as if that had been told to end (Python
    before 3.13 does not take its cancellation back), and none of this one."""

    async def run() -> None:
        await work()

    while not ending():
        try:
            await asyncio.create_task(run(), name=name)
            return
        except Exception:
            log.exception("%s failed and is started again", name)
            _RESTARTS.labels(loop=name).inc()
            await asyncio.sleep(RESTART_AFTER_S)


async def end(task: "asyncio.Task[None]") -> None:
    """Cancel it until it is done."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=1.0)


def ending() -> bool:
    """Whether the current task was told to end: what a loop asks after each call of a driver."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
