"""Whose turn it is: between tiers, tenants and sessions."""

import random

import pytest

from forebay.router.fairness import MOST_COUNTERS, Counters, Shares
from forebay.router.line import Line
from forebay.router.routing import Ask
from forebay.router.tiers import Tier, Tiers
from forebay.router.waiting import Waiting

TIERS = Tiers([Tier("fast", 0), Tier("plain", 1, share=0.2), Tier("batch", 2, share=0.1)], "plain")


def one(
    number: int, tier: str = "plain", tenant: str = "", session: str = "", prefill_s: float = 1.0,
    since: float = 0.0, weight: float = 1.0, cost: float = 100.0, size: int = 0, tiers: Tiers = TIERS,
) -> Waiting:  # fmt: skip
    ask = Ask("main", bytes(size), 100, 10, tier=tier, tenant=tenant, session=session, weight=weight)
    return Waiting(number, 0, ask, since, since + 60, prefill_s=prefill_s, tier=tiers[tier], cost=cost)


def line_of(*waiting: Waiting, counters: Counters | None = None, shares: Shares | None = None) -> Line:
    line = Line(tiers=TIERS, counters=counters, shares=shares)
    assert all(line.add(one) for one in waiting)
    return line


def order(line: Line, now: float = 5.0) -> list[int]:
    return [one.number for one in line.ordered(now)]


def test_a_higher_tier_goes_first_however_long_its_prompts_are() -> None:
    assert order(line_of(one(1, "batch"), one(2, "plain", prefill_s=9), one(3, "fast", prefill_s=50))) == [3, 2, 1]


def test_a_tenant_with_one_request_does_not_stand_behind_another_s_hundred() -> None:
    line = line_of(*(one(n, tenant="heavy", prefill_s=0.1) for n in range(100)), one(100, tenant="light"))
    assert order(line).index(100) <= 1


def test_who_was_served_less_goes_first_and_nobody_saves_up() -> None:
    counters = Counters()
    for _ in range(10):
        counters.placed(TIERS["plain"].rank, "heavy", "", 1_000)
    line = line_of(one(1, tenant="heavy", prefill_s=0.1), one(2, tenant="late"), counters=counters)
    assert order(line) == [2, 1]
    assert counters.served(TIERS["plain"].rank, "late") >= 9_000  # it is lifted to those who are there


def test_tenants_with_work_waiting_get_equal_tokens() -> None:
    counters, served = Counters(), {"heavy": 0.0, "light": 0.0}
    line = line_of(counters=counters)
    numbers = iter(range(10_000))
    for _ in range(600):
        while (there := sum(one.ask.tenant == "heavy" for one in line)) < 100:
            line.add(one(next(numbers), tenant="heavy", prefill_s=0.1))
        assert there <= 100
        while sum(one.ask.tenant == "light" for one in line) < 10:
            line.add(one(next(numbers), tenant="light", prefill_s=3.0))
        first = line.ordered(1.0)[0]
        line.remove(first.number)
        counters.placed(TIERS["plain"].rank, first.ask.tenant, "", first.cost)
        served[first.ask.tenant] += first.cost
    assert abs(served["heavy"] / served["light"] - 1) < 0.02


def test_a_swarm_s_requests_stand_behind_a_session_that_has_one() -> None:
    swarm = [one(n, session="swarm", prefill_s=0.1) for n in range(5)]
    line = line_of(*swarm, one(9, session="quiet", prefill_s=4.0))
    assert order(line) == [0, 9, 1, 2, 3, 4]
    line.counters.placed(TIERS["plain"].rank, "", "swarm", 500)
    for each in swarm:
        line.weighed(each, "", 0.1, 100.0)
    assert order(line) == [9, 0, 1, 2, 3, 4]


def test_a_session_with_work_under_way_stands_behind_an_unending_flow_half_as_long_as_it_may_wait() -> None:
    """A server that begins one a second; each second one comes that names no session."""
    line = line_of()
    for _ in range(20):
        line.counters.placed(TIERS["plain"].rank, "", "swarm", 500)
    line.add(one(0, session="swarm", prefill_s=0.1))
    for now in range(1, 60):
        line.add(one(now, prefill_s=0.1, since=float(now)))
        first = line.ordered(now)[0]
        line.remove(first.number)
        if not first.number:
            break
    assert 10 < now <= 31


def test_a_tenant_of_three_times_the_weight_is_served_three_times_as_much() -> None:
    counters, served = Counters(), {"heavy": 0.0, "light": 0.0}
    line, numbers = line_of(counters=counters), iter(range(10_000))
    for _ in range(400):
        for tenant, weight in (("heavy", 3.0), ("light", 1.0)):
            while sum(one.ask.tenant == tenant for one in line) < 8:
                line.add(one(next(numbers), tenant=tenant, weight=weight))
        assert [each.ask.tenant for each in line.ordered(1.0)[:12]].count("light") in (2, 3, 4)
        first = line.ordered(1.0)[0]
        line.remove(first.number)
        counters.placed(TIERS["plain"].rank, first.ask.tenant, "", first.cost / first.ask.weight)
        served[first.ask.tenant] += first.cost
    assert abs(served["heavy"] / served["light"] - 3) < 0.1


def test_tiers_of_one_rank_are_peers_whose_tenants_are_served_equally() -> None:
    peers = Tiers([Tier("a", 1), Tier("b", 1), Tier("low", 2)])
    line, served = Line(tiers=peers), {"u": 0.0, "v": 0.0, "w": 0.0}
    numbers = iter(range(10_000))
    for _ in range(300):
        for tier, tenant in (("a", "u"), ("b", "u"), ("b", "v"), ("low", "w")):
            while sum((each.ask.tenant, each.tier.name) == (tenant, tier) for each in line) < 5:
                line.add(one(next(numbers), tier, tenant, tiers=peers))
        first = line.ordered(0.5)[0]
        line.remove(first.number)
        line.counters.placed(first.tier.rank, first.ask.tenant, "", first.cost)
        served[first.ask.tenant] += first.cost
    assert served == {"u": 15_000.0, "v": 15_000.0, "w": 0.0}


def test_of_peers_the_one_that_gets_less_than_its_share_goes_first() -> None:
    peers = Tiers([Tier("a", 1), Tier("b", 1, share=0.3)])
    shares = Shares(peers)
    line = Line(tiers=peers, shares=shares)
    line.add(one(1, "a", "u", prefill_s=0.1, tiers=peers))
    line.add(one(2, "b", "v", tiers=peers))
    shares.served("a", 1_000, 0.0)
    assert order(line) == [2, 1]
    shares.served("b", 1_000, 0.0)
    assert order(line) == [1, 2]


def test_sessions_with_one_request_each_are_ordered_as_if_there_were_none() -> None:
    sizes = [3.0, 0.5, 7.0, 0.1, 2.0]
    named = line_of(*(one(n, session=f"s{n}", prefill_s=size) for n, size in enumerate(sizes)))
    unnamed = line_of(*(one(n, prefill_s=size) for n, size in enumerate(sizes)))
    assert order(named) == order(unnamed) == [3, 1, 4, 0, 2]


def test_a_tier_that_gets_less_than_its_share_goes_before_the_one_that_can_give_it() -> None:
    shares = Shares(TIERS)
    shares.served("fast", 600, 0.0)
    shares.served("plain", 400, 0.0)
    waiting = one(1, "batch"), one(2, "plain"), one(3, "fast")
    assert order(line_of(*waiting, shares=shares)) == [3, 1, 2]  # `plain` has more than it must have
    assert order(line_of(*waiting, shares=shares), 0.1) == [3, 2, 1]  # it has only just come
    shares.served("fast", 10_000, 0.0)
    assert order(line_of(*waiting, shares=shares)) == [2, 1, 3]  # nobody else can give it
    shares.served("batch", 5_000, 0.0)
    shares.served("plain", 5_000, 0.0)
    assert order(line_of(*waiting, shares=shares)) == [3, 2, 1]


def test_a_flood_of_one_tier_leaves_room_for_the_others() -> None:
    line = Line(tiers=TIERS, most=30)
    assert sum(line.add(one(n, "batch", f"tenant {n}")) for n in range(100)) == 10
    assert line.add(one(200, "fast"))
    assert line.add(one(201, "plain"))


@pytest.mark.parametrize("size", [0, 3_000])
@pytest.mark.parametrize("floods", [1, 4])
def test_a_flood_of_some_tenants_leaves_room_for_the_others_of_their_tier(floods: int, size: int) -> None:
    line = Line(tiers=TIERS, most=900, most_bytes=900_000)
    for n in range(2_000):
        line.add(one(n, tenant=f"flood {n % floods}", size=size))
    assert all(line.add(one(5_000 + n, tenant=f"other {n}", size=size)) for n in range(3))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_before_a_newcomer_is_what_the_order_says(seed: int) -> None:
    rng = random.Random(seed)
    tiers = Tiers([Tier("fast", 0), Tier("plain", 1, share=0.2), Tier("peer", 1), Tier("batch", 2, share=0.3)])
    line = Line(tiers=tiers)
    line.shares.served("fast", 1_000.0, 0.0)
    for tenant in "uv":
        line.counters.placed(1, tenant, "s", rng.uniform(0, 400))
    for number in range(50):
        line.add(one(
            number, rng.choice(["fast", "plain", "peer", "batch"]), rng.choice("uvw"), rng.choice(["", "s", "t"]),
            rng.uniform(0, 5), rng.uniform(0, 9), rng.choice([1.0, 2.0]), rng.uniform(0, 500), tiers=tiers,
        ))  # fmt: skip
        line.remove(rng.randrange(number + 1) if rng.random() < 0.5 else -1)
    newcomer = one(99, rng.choice([*line.tiers]), rng.choice("uvw"), rng.choice(["", "s"]), 2.0, 9.0, tiers=tiers)
    ahead = line.ahead(newcomer, 10.0)
    assert line.add(newcomer)
    order = line.ordered(10.0)
    before = order[: order.index(newcomer)]
    assert ahead.number + sum(short.number for short in ahead.shorts) == len(before)
    seconds = ahead.higher_s + ahead.own_s + sum(short.seconds for short in ahead.shorts)
    assert seconds == pytest.approx(sum(each.prefill_s for each in before))


def test_counters_are_bounded_and_those_who_wait_keep_theirs() -> None:
    counters = Counters()
    counters.placed(TIERS["plain"].rank, "waits", "", 7.0)
    counters.joined(TIERS["plain"].rank, "waits")
    for number in range(2 * MOST_COUNTERS):
        counters.placed(TIERS["plain"].rank, f"tenant {number}", "", 100.0 * number)
    assert len(counters) <= MOST_COUNTERS
    assert counters.served(TIERS["plain"].rank, "waits") == 7.0


def test_who_comes_anew_is_not_held_to_what_others_were_charged_too_much() -> None:
    counters = Counters()
    counters.joined(0, "busy")
    for _ in range(100):
        counters.placed(0, "busy", "", 65_546.0)  # as expected of 128 answers
    counters.lift(0, counters.served(0, "busy"))
    for _ in range(99):
        counters.ended(0, "busy", "", 300.0 - 65_546.0)
    counters.joined(0, "new")
    assert counters.served(0, "new") == counters.served(0, "busy")


def test_what_is_refunded_of_before_is_no_credit_to_who_was_lifted_since() -> None:
    counters = Counters()
    for _ in range(100):
        counters.placed(0, "idle", "", 5_500)
    counters.joined(0, "busy")
    counters.placed(0, "busy", "", 1_000_000)
    counters.lift(0, counters.served(0, "busy"))
    counters.joined(0, "idle")
    lifted = counters.served(0, "idle")
    for _ in range(100):
        counters.ended(0, "idle", "", -5_000)
    assert counters.served(0, "idle") == lifted
    counters.placed(0, "idle", "", 5_500)
    counters.ended(0, "idle", "", -5_000)
    assert counters.served(0, "idle") == lifted + 500
