"""Who is stopped for a request of a higher tier, and who is not."""

import msgspec

from forebay.router.core import Core
from forebay.router.dispatch import Dispatch
from forebay.router.eviction import ENDING_S
from forebay.router.routing import Ask, Placed
from forebay.router.tiers import Shed, Tier, Tiers
from tests.virtual import POOL, WEIGHTS, Table

FAST = Tier("fast", 0, ttft_s=2.0, queue_s=10.0)
PLAIN = Tier("plain", 1, ttft_s=5.0, queue_s=20.0, shed=Shed.DOWNGRADE)
SLOW = Tier("slow", 2, queue_s=600.0)
BATCH = Tier("batch", 3, queue_s=60.0, shed=Shed.SHED, share=0.1)
TIERS = Tiers([FAST, PLAIN, SLOW, BATCH], "plain")
LONG = 20_000  # tokens: 10 s of prefill


def table(*endpoints: str) -> Table:
    made = Table(*endpoints, tiers=TIERS)
    made.pool.rates.prefills = 20
    return made


def ask(table: Table, tier: str, tokens: int, **more: object) -> Ask:
    asked = table.ask((f"{tier} {tokens} {more}", tokens))
    return msgspec.structs.replace(asked, tier=tier, patience_s=TIERS[tier].queue_s, **more)


def place(table: Table, tier: str, tokens: int, *, owner: int = 0, **more: object) -> Placed:
    placed = table.core.place(ask(table, tier, tokens, **more), table.now, owner)
    assert placed is not None
    return placed


def request(table: Table, tier: str, tokens: int) -> int:
    return table.core.request(ask(table, tier, tokens), table.now)


def test_a_running_batch_request_is_stopped_for_an_interactive_one_that_would_be_late() -> None:
    there = table("a")
    place(there, "slow", 100)
    old, new = (place(there, "batch", LONG + n, owner=7) for n in range(2))
    there.begin(old)
    request(there, "fast", 500)
    there.core.tick(there.now + 0.1)
    assert there.core.evictions() == []
    there.core.tick(there.now + 1.1)
    assert there.core.evictions() == [(7, new.booking), (7, old.booking)]  # the one without a first token first
    there.core.tick(there.now + 2.0)
    assert there.core.evictions() == []  # each is told once
    assert there.core.bookings == 3
    there.end(new, old)
    there.pump()
    assert any(isinstance(one, Placed) for one in there.settled().values())


def test_nothing_is_stopped_of_tiers_that_are_held_or_as_high() -> None:
    there = table("a")
    for tier in ("fast", "plain", "slow"):
        place(there, tier, LONG)
    request(there, "fast", 500)
    there.core.tick(there.now + 5)
    assert there.core.evictions() == []


async def test_whoever_booked_what_is_to_stop_hears_of_it() -> None:
    core, told = Core({POOL: ["a"]}, WEIGHTS, tiers=TIERS), list[int]()
    now = [1000.0]
    dispatch = Dispatch(core, lambda: now[0])
    dispatch.listen_evictions(told.append, 3)
    running = dispatch.request(Ask(POOL, b"", LONG, 64, tier="batch"), 3)
    assert isinstance(running, Placed)
    assert isinstance(dispatch.request(Ask(POOL, b"", 500, 64, tier="fast")), int)
    core.tick(now[0] + 1.2)
    dispatch.pump()
    assert told == [running.booking]


def test_nobody_is_stopped_for_one_that_is_predicted_to_begin_in_time() -> None:
    there = table("a")
    batch = place(there, "batch", LONG)
    there.begin(batch)
    there.now += 20
    first = place(there, "fast", 3_000)  # 1.5 s
    there.core.tick(there.now + 1.2)
    assert there.core.evictions() == []
    there.core.tick(there.now + 1.7)  # it should have begun
    assert there.core.evictions() == [(0, batch.booking)]
    there.begin(first)


def test_one_that_has_run_for_minutes_can_be_stopped() -> None:
    """What it is served counts while it is served."""
    there = table("a")
    batch = place(there, "batch", 500, output=100_000)
    there.begin(batch)
    for tick in range(600):
        there.now += 0.5
        there.core.tick(there.now)
        if not tick % 20:
            there.end(place(there, "slow", 20), output=1)
    place(there, "fast", LONG // 4)
    request(there, "fast", 500)
    there.core.tick(there.now + 1.5)
    assert there.core.evictions() == [(0, batch.booking)]


def test_one_that_cannot_be_reached_is_in_nobody_s_way_for_long() -> None:
    there = table("a")
    batch = [place(there, "batch", LONG + n) for n in range(4)]
    request(there, "fast", 500)
    there.core.tick(there.now + 1.1)
    assert there.core.evictions() == [(0, batch[3].booking), (0, batch[2].booking)]
    there.now += ENDING_S
    request(there, "fast", 501)
    there.core.tick(there.now + 1.2)
    assert there.core.evictions() == [(0, batch[1].booking), (0, batch[0].booking)]


def test_what_was_asked_for_in_a_tier_that_is_not_shed_is_not_stopped_where_it_is_served_in_one() -> None:
    there = table("a")
    for number in range(2):  # the second as one that goes on where another attempt ended
        downgraded = ask(there, "batch", LONG + number, asked="plain", promised=bool(number))
        assert there.core.place(downgraded, there.now) is not None
    request(there, "fast", 500)
    there.core.tick(there.now + 1.2)
    assert there.core.evictions() == []
