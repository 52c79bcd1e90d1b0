"""Waiting for what will be true soon, instead of sleeping for as long as it might take."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], timeout: float = ..., every: float = ...) -> T: ...
@overload
async def eventually(predicate: Callable[[], T], timeout: float = ..., every: float = ...) -> T: ...
async def eventually(predicate: Callable[[], Any], timeout: float = 5.0, every: float = 0.01) -> Any:
    """Poll `predicate` (plain or async) until it is truthy and return that; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        value = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout} s, last: {value!r}")
        await asyncio.sleep(every)
