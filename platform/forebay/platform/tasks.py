"""Background tasks that end when they are told to: a driver can swallow a cancellation while it closes a connection."""

import asyncio


async def end(task: "asyncio.Task[None]") -> None:
    """Cancel it until it is done."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=1.0)


def ending() -> bool:
    """Whether the current task was told to end: what a loop asks after each call of a driver."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
