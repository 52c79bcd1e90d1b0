"""Bounds on requests in flight across workers: what each hears of the others."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from forebay.platform.api.bounds import Gate
from forebay.platform.errors import ApiError
from forebay.platform.workers import shares
from forebay.platform.workers.shares import Shares, follow
from forebay.router.remote import RemoteRouter, RouterServer
from tests.doubles.shared_router import SharedRouter
from tests.eventually import eventually


def refused(gate: Gate, project: str) -> str:
    with pytest.raises(ApiError) as caught:
        gate.enter(project)
    return caught.value.code


def test_a_projects_bound_counts_what_it_has_at_other_workers() -> None:
    gate = Gate(total=10, per_project=3)
    gate.hear({"a": 2, "b": 1})
    gate.enter("a")
    assert refused(gate, "a") == "concurrency_limit_exceeded"
    gate.enter("b")
    gate.hear({})
    gate.enter("a")
    gate.leave("a")
    gate.leave("a")
    gate.leave("b")
    assert gate.by_project == {}


def test_the_bound_in_all_counts_other_workers_too() -> None:
    gate = Gate(total=3, per_project=3)
    gate.hear({"a": 1, "b": 1})
    gate.enter("c")
    assert refused(gate, "d") == "server_overloaded"


async def test_each_worker_hears_the_sum_of_the_others_that_are_there() -> None:
    present = ["0", "1", "2"]
    router = Shares(lambda: present)
    heard = {}
    for _ in range(2):
        for worker, counts in (("0", {"a": 1}), ("1", {"a": 2, "b": 3}), ("2", {"b": 4})):
            heard[worker] = msgspec.msgpack.decode(await router.exchange(worker, msgspec.msgpack.encode(counts)))
    assert heard == {"0": {"a": 2, "b": 7}, "1": {"a": 1, "b": 4}, "2": {"a": 3, "b": 3}}
    present.remove("1")
    assert msgspec.msgpack.decode(await router.exchange("0", msgspec.msgpack.encode({}))) == {"b": 4}


async def test_gates_of_two_workers_hold_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "EVERY_S", 0.01)
    gates = [Gate(10, 2), Gate(10, 2)]
    async with RouterServer(SharedRouter(), ["main"], tmp_path / "router") as server:
        server.handlers["in-flight"] = Shares(lambda: server.workers).exchange
        routers = [RemoteRouter(server.path, str(n)) for n in range(2)]
        tasks = [asyncio.create_task(router.run()) for router in routers]
        await asyncio.gather(*(router.until_connected(5.0) for router in routers))
        tasks += [asyncio.create_task(follow(*pair)) for pair in zip(gates, routers, strict=True)]
        gates[0].enter("a")
        gates[0].enter("a")
        await eventually(lambda: _full(gates[1]))
        gates[0].leave("a")
        await eventually(lambda: not _full(gates[1]))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _full(gate: Gate) -> bool:
    try:
        gate.enter("a")
    except ApiError:
        return True
    gate.leave("a")
    return False
