"""Who is let in, who waits for an endpoint to come, and who is stopped for a higher tier."""

from math import inf

import msgspec
import pytest

from forebay.router.admission import Ahead, Gate
from forebay.router.core import Core
from forebay.router.dispatch import Dispatch
from forebay.router.routing import Ask, Outcome, Placed, Refused, Result, Why
from forebay.router.tiers import Shed, Tier, Tiers
from tests.virtual import POOL, WEIGHTS, Table

FAST = Tier("fast", 0, ttft_s=2.0, tpot_s=0.05, queue_s=10.0)
PLAIN = Tier("plain", 1, ttft_s=5.0, queue_s=20.0, shed=Shed.DOWNGRADE)
SLOW = Tier("slow", 2, queue_s=600.0)
BATCH = Tier("batch", 3, ttft_s=30.0, queue_s=60.0, shed=Shed.SHED, share=0.1, cold_s=30.0)
TIERS = Tiers([FAST, PLAIN, SLOW, BATCH], "plain")
LONG = 20_000  # tokens: 10 s of prefill


def table(*endpoints: str, learnt: bool = True) -> Table:
    made = Table(*endpoints, tiers=TIERS)
    if learnt:
        made.pool.rates.prefills = 20
    return made


def request(table: Table, tier: str, tokens: int, **more: object) -> int:
    return table.core.request(ask(table, tier, tokens, **more), table.now)


def ask(table: Table, tier: str, tokens: int, **more: object) -> Ask:
    asked = table.ask((f"{tier} {tokens} {more}", tokens))
    return msgspec.structs.replace(asked, tier=tier, patience_s=TIERS[tier].queue_s, **more)


def refused(result: Result) -> Refused:
    assert isinstance(result, Refused)
    return result


def test_who_would_wait_longer_than_it_may_hears_so_at_once_and_when_to_come_back() -> None:
    there = table("a")
    there.place(("running", 100))
    there.place(("long", LONG))
    for _ in range(5):
        request(there, "fast", LONG // 5)  # 2 s each
    told = there.settled()
    number = request(there, "fast", LONG)
    result = refused(there.settled()[number])
    assert told == {}
    assert (result.why, result.tier) == (Why.DEADLINE, "fast")
    assert 0 < result.retry_s < 60


def test_nobody_is_refused_for_a_prediction_before_anything_is_learnt() -> None:
    there = table("a", learnt=False)
    there.place(("long", LONG))
    for _ in range(20):
        request(there, "fast", LONG)
    assert there.settled() == {}


def test_one_that_was_let_in_once_is_not_refused_when_it_goes_on_elsewhere() -> None:
    there = table("a")
    there.place(("long", LONG))
    for _ in range(8):
        request(there, "fast", LONG // 5)
    there.settled()
    request(there, "fast", LONG, promised=True)
    assert there.settled() == {}
    kept = request(there, "fast", LONG, exclude=("b",))  # from a suspect, at its first attempt
    assert isinstance(there.settled()[kept], Refused)


def test_one_whose_objective_would_be_missed_is_served_in_a_lower_tier_and_told_so() -> None:
    there = table("a")
    there.place(("long", LONG))
    for tenant in ("a", "b"):
        request(there, "plain", LONG // 6, tenant=tenant)  # 1.7 s
    number = request(there, "plain", 1_000)
    assert there.settled() == {}
    for placed in list(there.core._bookings.values()):
        there.core.ended(placed.id, Outcome(), there.now)
    placed_as = {}
    for _ in range(8):
        there.now += 0.1
        there.pump()
        for settled, result in there.settled().items():
            assert isinstance(result, Placed)
            placed_as[settled] = result.tier
            there.core.ended(result.booking, Outcome(), there.now)
    assert placed_as[number] == "slow"


def test_higher_tiers_that_take_what_there_is_are_why_a_lower_one_is_refused() -> None:
    there = table("a")
    there.place(("long", LONG))
    for number in range(6):
        request(there, "slow", LONG // 2, tenant=f"{number}")
    there.settled()
    number = request(there, "batch", 500)
    result = refused(there.settled()[number])
    assert result.why is Why.CAPACITY
    assert result.tier == "batch"


def test_a_lower_tier_finds_less_room_while_a_higher_one_misses_its_objective() -> None:
    gate = Gate(TIERS)
    assert gate.opens(BATCH, 0.0, 100, short=False)
    for _ in range(40):
        gate.saw(FAST, 3.0, FAST.ttft_s)
        gate.breathe([20])
    assert not gate.opens(BATCH, 0.0, 20, short=False)
    assert not gate.opens(PLAIN, 0.0, 20, short=False)
    assert gate.opens(BATCH, 0.0, 20, short=True)  # what it is to get at least, it gets
    assert gate.opens(FAST, 0.0, 1_000, short=False)
    for _ in range(1_000):
        gate.saw(FAST, 0.5, FAST.ttft_s)
        gate.breathe([20])
    assert gate.opens(BATCH, 0.0, 20, short=False)


def test_who_misses_its_own_objective_has_nobody_above_it_take_less() -> None:
    gate = Gate(TIERS)
    for _ in range(40):
        gate.saw(PLAIN, 30.0, PLAIN.ttft_s)
        gate.breathe([20])
    assert gate.opens(PLAIN, 0.0, 20, short=False)
    assert not gate.opens(SLOW, 0.0, 20, short=False)


def test_peers_neither_take_less_for_each_other_nor_wait_for_what_comes_of_each_other() -> None:
    one, other, low = Tier("one", 1, ttft_s=2.0), Tier("other", 1, ttft_s=9.0), Tier("low", 2)
    gate = Gate(Tiers([one, other, low]))
    for tenth in range(400):
        gate.came(one, 0.09, tenth / 10)
        gate.saw(one, 30.0, one.ttft_s)
        gate.breathe([20])
    ahead = Ahead(0.0, 1.0)
    assert gate.wait_s(other, ahead, 1, 40.0) == gate.wait_s(one, ahead, 1, 40.0) < gate.wait_s(low, ahead, 1, 40.0)
    assert gate.opens(other, 0.0, 1_000, short=False)
    assert not gate.opens(low, 0.0, 20, short=False)


def test_what_comes_of_higher_tiers_lengthens_a_wait_but_for_a_tier_s_share() -> None:
    gate = Gate(TIERS)
    for tenth in range(400):
        gate.pace.passed(tenth / 10, waits=True)
        gate.pace.worked += 0.1  # one second of prefill a second
        gate.came(FAST, 0.09, tenth / 10)
    ahead = Ahead(0.0, 1.0)
    assert gate.wait_s(FAST, ahead, 1, 40.0) < 1.2
    assert gate.wait_s(SLOW, ahead, 1, 40.0) > 5
    assert gate.wait_s(BATCH, ahead, 1, 40.0) < 12  # a tenth is its


def test_a_cold_pool_is_waited_for_as_long_as_the_tier_may() -> None:
    there = table()
    plain, batch = request(there, "plain", 500), request(there, "batch", 500)
    assert there.settled() == {plain: None}
    there.now += 29
    there.pump()
    assert there.settled() == {}
    there.core.add(POOL, "a")
    there.pump()
    assert isinstance(there.settled()[batch], Placed)
    there.core.remove(POOL, "a")
    late = request(there, "batch", 500)
    there.now += 30.1
    there.pump()
    assert there.settled() == {late: None}


def test_a_running_batch_request_is_stopped_for_an_interactive_one_that_would_be_late() -> None:
    there = table("a")
    held = there.core.place(ask(there, "slow", 100), there.now)
    old, new = (there.core.place(ask(there, "batch", LONG + n), there.now, owner=7) for n in range(2))
    assert held is not None
    assert old is not None
    assert new is not None
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
        assert there.core.place(ask(there, tier, LONG), there.now) is not None
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


def test_one_late_request_presses_lower_tiers_for_a_moment_only() -> None:
    gate = Gate(Tiers([Tier("fast", 0, ttft_s=1.0), Tier("batch", 1)]))
    gate.saw(gate.tiers[0], 5.0, 1.0)
    gate.breathe([10])
    assert gate.rooms["batch"] < inf
    for _ in range(1_000):
        gate.breathe([10])
    assert gate.rooms["batch"] == inf


def test_what_was_withdrawn_at_once_is_not_waited_for() -> None:
    tiers = Tiers([Tier("fast", 0), Tier("batch", 1)])
    gate, (fast, batch) = Gate(tiers), tuple(tiers)
    before = gate.wait_s(batch, Ahead(0.0, 10.0), 4, 0.0)
    gate.came(fast, 30.0, 0.0)
    assert gate.wait_s(batch, Ahead(0.0, 10.0), 4, 0.1) > 2 * before
    gate.uncame(fast, 30.0, 0.0, 0.1)
    assert gate.wait_s(batch, Ahead(0.0, 10.0), 4, 0.1) == pytest.approx(before)
