"""Limits counted in a real Valkey by several processes' worth of limiters."""

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from valkey import Valkey

from forebay.platform.errors import ApiError
from forebay.platform.limits.limiter import Limiter
from forebay.platform.limits.permit import Permit
from forebay.platform.limits.rules import Level
from forebay.platform.limits.window import phase_of, window
from forebay.platform.stores.daemon import StoreError
from tests.eventually import eventually
from tests.integration.limited import admitted, counts, limit, limiters, permit, tenant_with, told, used


async def test_however_many_ask_at_once_no_more_pass_than_may(valkey: str) -> None:
    """litellm#18730, #27736, #40291."""
    tenant = tenant_with(20_000)
    limits = (limit(requests_per_minute=40), limit(Level.TENANT, input_tokens_per_minute=1000))
    async with limiters(valkey, 4) as made:

        async def client(number: int) -> int:
            return sum([await admitted(permit(made[number % 4], tenant, *limits), uncached=10) for _ in range(3)])

        assert sum(await asyncio.gather(*(client(number) for number in range(64)))) == 40
        await told(*made)
        assert await counts(valkey) == {"key_1:r:": 40, "tenant_1:i:": 400}


async def test_slots_are_everybodys(valkey: str) -> None:
    """litellm#16011."""
    limits = limit(Level.PROJECT, concurrent_requests=3)
    async with limiters(valkey, 4) as made:
        tenant = tenant_with(10_000)
        asked = [permit(made[number % 4], tenant, limits) for number in range(64)]
        passed = await asyncio.gather(*map(admitted, asked))
        assert sum(passed) == 3
        for one in asked:
            one.close()
        await told(*made)
        assert await counts(valkey) == {}
        assert await admitted(permit(made[0], tenant, limits))


async def test_all_levels_or_none(valkey: str) -> None:
    """A refusal of one level leaves nothing at another."""
    limits = (
        limit(requests_per_minute=10, concurrent_requests=10),
        limit(Level.PROJECT, model="tiny", requests_per_minute=10, queued_requests=10),
        limit(Level.TENANT, output_tokens_per_minute=100),
    )
    async with limiters(valkey) as (one,):
        tenant = tenant_with(10_000)
        assert await admitted(permit(one, tenant, *limits), output=60)
        second = permit(one, tenant, *limits)
        await second.enter()
        with pytest.raises(ApiError) as refused:
            await second.take("tiny", 1, 60)
        assert refused.value.metadata is not None
        assert refused.value.metadata["level"] == "tenant"
        second.close(refund=True)
        await told(one)
        assert await counts(valkey) == {
            "key_1:r:": 1, "key_1:c:": 1, "project_1:r:tiny": 1, "project_1:q:tiny": 1, "tenant_1:o:": 60,
        }  # fmt: skip


async def test_what_was_reserved_becomes_what_was_used(valkey: str) -> None:
    limits = limit(input_tokens_per_minute=1000, output_tokens_per_minute=1000, queued_requests=9)
    async with limiters(valkey) as (one,):
        tenant = tenant_with(10_000)
        cheap, dear, failed = (permit(one, tenant, limits) for _ in range(3))
        for each in (cheap, dear, failed):
            assert await admitted(each, uncached=100, output=50)
        cheap.placed()
        used(cheap, 10, 5)
        used(dear, 200, 500)
        await told(one)
        assert await counts(valkey) == {"key_1:i:": 300, "key_1:o:": 150, "key_1:q:": 2}
        for each in (cheap, dear, failed):
            each.close()
            each.close()
        await told(one)
        assert await counts(valkey) == {"key_1:i:": 210, "key_1:o:": 505}
        assert dict(cheap.headers())[b"x-ratelimit-remaining-tokens"] == b"990"  # as it saw it, less what it spared


async def test_a_long_answer_is_charged_while_it_goes_on(valkey: str) -> None:
    limits = limit(output_tokens_per_minute=1000)
    async with limiters(valkey, renew_s=0.05) as (one,):
        each = permit(one, tenant_with(10_000), limits)
        assert await admitted(each, output=50)
        used(each, 0, 700)

        async def charged() -> bool:
            return await counts(valkey) == {"key_1:o:": 700}

        await eventually(charged)
        used(each, 0, 650)  # an attempt that failed was billed less
        each.close()
        await told(one)
        assert await counts(valkey) == {"key_1:o:": 650}


async def test_a_new_window_owes_nothing_to_the_last(valkey: str) -> None:
    tenant = tenant_with(700, 1500)
    limits = limit(requests_per_minute=2, output_tokens_per_minute=200)
    async with limiters(valkey, 2) as made:
        asked = [permit(made[number % 2], tenant, limits) for number in range(4)]
        assert [await admitted(each, output=20) for each in asked] == [True, True, False, False]
        left = window(int(time.time() * 1000), phase_of(tenant)).left_ms
        lasts: Any = Valkey.from_url(valkey).pttl(f"limits:{{{tenant}}}:key_1:r:")
        assert left <= lasts + 50  # it goes by itself
        await asyncio.sleep(left / 1000 + 0.05)
        assert await counts(valkey) == {}
        used(asked[0], 0, 5)  # less than reserved, in a window that is over
        used(asked[1], 0, 90)  # more: that is of now
        for each in asked:
            each.close()
        again = [permit(each, tenant, limits) for each in (*made, *made)]
        assert [await admitted(each, output=20) for each in again] == [True, True, False, False]
        await told(*made)
        assert await counts(valkey) == {"key_1:r:": 2, "key_1:o:": 110}


async def test_a_process_that_is_killed_gives_its_slots_back(valkey: str) -> None:
    """litellm#28160, #40846, #27955; routstr-core#682: leases end with who held them, and not before."""
    tenant = tenant_with(15_000)
    limits = limit(concurrent_requests=2)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).parent / "limits_victim.py"), valkey, tenant, stdout=asyncio.subprocess.PIPE
    )
    assert victim.stdout is not None
    assert await victim.stdout.readline() == b"holding\n"
    async with limiters(valkey, lease_s=1.0, renew_s=0.2) as (one,):
        await asyncio.sleep(1.5)  # longer than a lease: they are renewed
        assert not await admitted(permit(one, tenant, limits))
        assert one.processes == 2
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
        assert await eventually(lambda: admitted(permit(one, tenant, limits)), every=0.1)
        assert await eventually(lambda: one.processes == 1, every=0.1)


async def test_a_process_that_ends_in_order_leaves_nothing_behind(valkey: str) -> None:
    limits = limit(concurrent_requests=2)
    async with limiters(valkey, 2, renew_s=0.2) as (one, other):
        tenant = tenant_with(10_000)
        held = permit(one, tenant, limits)
        assert await admitted(held)
        held.close()
        await one.close()
        assert await counts(valkey) == {}
        assert await admitted(permit(other, tenant, limits))


async def test_a_request_cancelled_while_it_asks_leaves_nothing(valkey: str) -> None:
    limits = limit(requests_per_minute=5, concurrent_requests=5)
    async with limiters(valkey) as (one,):
        tenant = tenant_with(10_000)
        for _ in range(20):
            each = permit(one, tenant, limits)
            asking = asyncio.create_task(each.enter())
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            each.close(refund=True)
        await eventually(lambda: not one.link._asking)
        await told(one)
        assert await counts(valkey) == {}
        assert (one.mirror.leases, one.mirror.of(b"x", 0)) == (0, 0)


async def test_a_valkey_that_runs_no_scripts_ends_the_start(valkey_server: str) -> None:
    """litellm#32232."""
    client = Valkey.from_url(valkey_server)
    client.acl_setuser("plain", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
                       categories=["+@all", "-@scripting"])  # fmt: skip
    path = valkey_server.removeprefix("unix://").partition("?")[0]
    limiter = Limiter(f"unix://plain:secret@{path}?db=0", "limits")
    with pytest.raises(StoreError, match="does not run scripts"):
        await limiter.start()
    client.acl_deluser("plain")


_OPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "settle", "refund", "place", "expire"]),
        st.integers(0, 2),
        st.integers(1, 30),
        st.integers(0, 40),
    ),
    max_size=40,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_OPS)
async def test_whatever_comes_no_limit_is_exceeded_and_all_is_given_back(
    valkey_server: str, ops: list[tuple[str, int, int, int]]
) -> None:
    """Against a model of one counter and one set for each limit."""
    Valkey.from_url(valkey_server).flushall()
    tenant = tenant_with(15_000)
    limits = (
        limit(requests_per_minute=12, concurrent_requests=4),
        limit(Level.PROJECT, model="tiny", queued_requests=3),
        limit(Level.TENANT, input_tokens_per_minute=120),
    )
    live: list[tuple[Permit, int]] = []
    requests = tokens = 0
    waiting: set[bytes] = set()
    lapsed: set[bytes] = set()
    async with limiters(valkey_server, 3, lease_s=60.0, renew_s=60.0) as made:
        for what, number, cost, spent in ops:
            holding = [each for each, _ in live if each._request not in lapsed]
            if what == "ask":
                each = permit(made[number], tenant, *limits)
                fits = requests < 12 and len(holding) < 4 and len(waiting) < 3 and tokens + cost <= 120
                assert await admitted(each, uncached=cost) == fits
                if fits:
                    live.append((each, cost))
                    requests, tokens = requests + 1, tokens + cost
                    waiting.add(each._request)
            elif live:
                each, reserved = live[number % len(live)]
                if what == "expire":  # its process is gone, as far as Valkey can see
                    _expire(valkey_server, each)
                    lapsed.add(each._request)
                    waiting.discard(each._request)
                    continue
                waiting.discard(each._request)
                if what == "place":
                    each.placed()
                else:
                    live.remove((each, reserved))
                    if what == "settle":
                        used(each, spent)
                        tokens += spent - reserved
                    else:
                        requests, tokens = requests - 1, tokens - reserved
                    each.close(refund=what == "refund")
            await told(*made)
            expected = {
                "key_1:r:": requests,
                "key_1:c:": len([1 for each, _ in live if each._request not in lapsed]),
                "project_1:q:tiny": len(waiting),
                "tenant_1:i:": tokens,
            }
            assert await counts(valkey_server) == {name: count for name, count in expected.items() if count}
        for each, cost in live:
            each.close(refund=True)
            requests, tokens = requests - 1, tokens - cost
        await told(*made)
        left = await counts(valkey_server)
        assert left == {name: count for name, count in (("key_1:r:", requests), ("tenant_1:i:", tokens)) if count}
        assert not any(one.mirror.leases for one in made)


def _expire(url: str, each: Permit) -> None:
    client = Valkey.from_url(url)
    for key in client.scan_iter("limits:{*"):
        if client.type(key) == b"zset":
            client.zadd(key, {each._request: 1}, xx=True)
