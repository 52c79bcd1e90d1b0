"""Valkey stops, hangs, loses everything and returns, in the middle of what limits ask of it."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from valkey import Valkey

from forebay.platform.limits.limiter import Limiter
from forebay.platform.limits.permit import Permit
from forebay.platform.limits.rules import Limit
from forebay.platform.stores import embedded
from forebay.platform.stores.daemon import Daemon
from tests.eventually import eventually
from tests.integration.limited import admitted, counts, limit, limiters, permit, tenant_with, told, used
from tests.stores import state_directory

NOWHERE = "valkey://127.0.0.1:1/0"
LIMITS = (limit(requests_per_minute=40, concurrent_requests=20),)


@pytest.fixture
def state() -> Iterator[Path]:
    with state_directory() as path:
        yield path


@pytest.fixture
def server(state: Path) -> Iterator[Daemon]:
    """A Valkey of the test's own."""
    with embedded.start_valkey(state) as server:
        yield server


async def admit(some: list[Limiter], tenant: str, count: int, *limits: Limit) -> list[Permit]:
    """Those that are let through of `count` that ask at once."""
    asked = [permit(some[number % len(some)], tenant, *limits) for number in range(count)]
    passed = await asyncio.gather(*(admitted(one) for one in asked))
    return [one for one, yes in zip(asked, passed, strict=True) if yes]


async def until_shared(some: list[Limiter]) -> None:
    await eventually(lambda: all(one.link.shared for one in some), timeout=10.0)


async def test_without_valkey_each_process_lets_its_share_through() -> None:
    async with limiters(NOWHERE) as (one,):
        passed = await admit([one], tenant_with(10_000), 60, *LIMITS)
        assert len(passed) == 20  # of one process, which is the only one it knows of
        assert one.report()["status"] == "local share"
        for each in passed:
            each.close()
        assert one.mirror.leases == 0


async def test_a_valkey_that_hangs_holds_nobody_up_and_what_passed_meanwhile_is_counted_once(server: Daemon) -> None:
    """litellm#35273."""
    limits = (limit(requests_per_minute=40),)
    async with limiters(server.url, 4, renew_s=0.1) as made:
        tenant = tenant_with(20_000)
        assert len(await admit(made, tenant, 8, *limits)) == 8
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        passed = await admit(made, tenant, 64, *limits)
        assert time.monotonic() - began < 1.0  # each waited for the deadline at most, and all at once
        assert len(passed) == 32  # a share is 10, and each had let 2 through before
        assert not await admit(made, tenant, 8, *limits)
        os.kill(server.pid, signal.SIGCONT)
        await until_shared(made)
        assert not await admit(made, tenant, 8, *limits)
        await told(*made)
        assert (await counts(server.url)) == {"key_1:r:": 40}  # although it did what it had been asked when it stopped


async def test_a_valkey_that_comes_back_empty_knows_the_window_and_the_slots(state: Path) -> None:
    first = await asyncio.to_thread(embedded.start_valkey, state)
    async with limiters(first.url, 2, renew_s=0.1) as made:
        tenant = tenant_with(20_000)
        passed = await admit(made, tenant, 10, *LIMITS)
        assert first.process is not None
        first.process.kill()
        await asyncio.to_thread(first.process.wait)
        await eventually(lambda: not any(one.link.shared for one in made))
        passed += await admit(made, tenant, 4, *LIMITS)
        passed.pop().close(refund=True)
        again = await asyncio.to_thread(embedded.start_valkey, state)
        await until_shared(made)
        assert await counts(again.url) == {"key_1:r:": 13, "key_1:c:": 13}
        assert len(await admit(made, tenant, 30, *LIMITS)) == 7  # of 20 slots
        for each in passed:
            each.close()
        await told(*made)
        assert await counts(again.url) == {"key_1:r:": 20, "key_1:c:": 7}
    await asyncio.to_thread(first.release)
    await asyncio.to_thread(again.release)


@pytest.mark.parametrize("step", ["enter", "take", "placed", "close"])
async def test_it_may_be_away_at_any_step(server: Daemon, step: str) -> None:
    """Killed connections stand for all ways of being away; the request goes its way, and leaves nothing behind."""
    limits = (
        limit(requests_per_minute=9, concurrent_requests=9, input_tokens_per_minute=900, queued_requests=9),
    )
    async with limiters(server.url, renew_s=0.1) as (one,):
        tenant = tenant_with(20_000)
        each = permit(one, tenant, *limits)
        operator: Any = Valkey.from_url(server.url)

        async def away(now: str) -> None:
            if now == step:
                os.kill(server.pid, signal.SIGSTOP)

        await away("enter")
        await each.enter()
        await away("take")
        await each.take("tiny", 100, 0)
        await away("placed")
        each.placed()
        used(each, 60)
        await away("close")
        each.close()
        if step in ("placed", "close"):  # nobody waits for these; the next one to ask finds out
            assert await admitted(permit(one, tenant_with(20_000), *limits))
        assert not one.link.shared
        os.kill(server.pid, signal.SIGCONT)
        await until_shared([one])
        root = f"limits:{{{tenant}}}:key_1"
        assert (operator.zcard(f"{root}:q:"), operator.zcard(f"{root}:c:")) == (0, 0)
        assert (operator.hget(f"{root}:r:", "n"), operator.hget(f"{root}:i:", "n")) == (b"1", b"60")


async def test_what_valkey_loses_while_it_answers_is_told_again(server: Daemon) -> None:
    limits = (limit(requests_per_minute=4),)
    async with limiters(server.url) as (one,):
        tenant = tenant_with(20_000)
        assert len(await admit([one], tenant, 3, *limits)) == 3
        Valkey.from_url(server.url).flushdb()
        assert sum([await admitted(permit(one, tenant, *limits)) for _ in range(5)]) == 1


async def test_scripts_that_somebody_flushes_are_loaded_again(server: Daemon) -> None:
    limits = (limit(requests_per_minute=9),)
    async with limiters(server.url, renew_s=0.1) as (one,):
        tenant = tenant_with(20_000)
        Valkey.from_url(server.url).script_flush()
        assert len(await admit([one], tenant, 20, *limits)) == 9
        await until_shared([one])
        assert not await admit([one], tenant, 2, *limits)


async def test_a_share_is_of_the_processes_last_heard_of(server: Daemon) -> None:
    async with limiters(server.url, 3, renew_s=0.1) as made:
        os.kill(server.pid, signal.SIGSTOP)
        passed = await admit(made, tenant_with(20_000), 60, limit(requests_per_minute=10))
        assert len(passed) == 9
        assert made[0].report()["processes"] == 3
        os.kill(server.pid, signal.SIGCONT)
