"""Waiting for what will be true soon, instead of sleeping for as long as it might take."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(predicate: Callable[[], T | Awaitable[T]], timeout: float = 5.0, every: float = 0.01) -> T:
    """Poll `predicate` (plain or async) until it is truthy and return that; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        value: T = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout} s, last: {value!r}")
        await asyncio.sleep(every)
