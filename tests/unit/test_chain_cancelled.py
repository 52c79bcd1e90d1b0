"""Whoever is cancelled while an answer's records are written leaves none of them open."""

import asyncio
from typing import Any

import pytest

from forebay.metering import Quantities, Status, TerminatedBy
from forebay.platform.relay.accounting import Counted
from forebay.platform.relay.chain import Chain

NONE = Counted(Quantities(), Quantities(), measured=True)


class Books:
    """In place of an `Account`: `closed` as whose record it was written."""

    def __init__(self, disk: "asyncio.Future[None]") -> None:
        self.closed = False
        self.written: list[Status] = []
        self._disk = disk

    def checkpoint(self, _: Counted) -> None:
        pass

    async def close(self, status: Status, *_: Any, **__: Any) -> None:
        self.written.append(status)
        await asyncio.shield(self._disk)


@pytest.mark.parametrize("steps", range(5))
async def test_each_attempt_that_was_cut_has_one_record_whenever_its_request_is_cancelled(steps: int) -> None:
    disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    attempts, chain = [Books(disk) for _ in range(2)], Chain(None)
    for one in attempts:
        chain.hold(one, NONE, None, {}, by=TerminatedBy.ENGINE, error="engine_lost")  # type: ignore[arg-type]

    async def ends() -> None:
        try:
            await asyncio.gather(asyncio.sleep(0), chain.settle(None))  # as `Ending` does
        finally:
            if chain.cut_short:
                await asyncio.shield(chain.fail())

    task = asyncio.create_task(ends())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    if steps:
        await asyncio.sleep(0.01)
        assert [len(one.written) for one in attempts] == [1, 1]
    disk.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await task
