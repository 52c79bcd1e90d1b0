"""Followers of one process leave its event loop to others between any two slices of their work."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest

from forebay.router.prefix import follower as module
from forebay.router.prefix.follower import Follower
from forebay.router.routing import Following
from tests.doubles.engine import EngineDouble
from tests.eventually import eventually
from tests.followed import SMALL, Held, Traffic, follower, running, settled


async def test_however_many_have_work_one_does_some_before_others_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    slice_ = Follower._slice

    def counted(self: Follower, *of: Any) -> bool:
        seen.append("slice")
        return slice_(self, *of)

    async def others() -> None:
        while True:
            seen.append("others")
            await asyncio.sleep(0)

    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(EngineDouble(**SMALL)) for _ in range(4)]
        held, turns = [Held() for _ in engines], asyncio.Lock()
        followers = [follower(engine, sink, turns=turns) for engine, sink in zip(engines, held, strict=True)]
        await stack.enter_async_context(running(*followers))
        await eventually(lambda: all(each.state is Following.FOLLOWING for each in followers))
        monkeypatch.setattr(module, "SLICE_S", 0.0)  # one piece of work in each slice
        monkeypatch.setattr(Follower, "_slice", counted)
        beside = asyncio.create_task(others())
        for engine in engines:
            Traffic().steps(engine, 20)
        for engine, sink in zip(engines, held, strict=True):
            await settled(sink, engine)
        beside.cancel()
    assert seen.count("slice") >= 80
    assert ("slice", "slice") not in pairwise(seen)
