"""Whose turn it is: between tiers, tenants and sessions."""

from forebay.router.fairness import MOST_COUNTERS, Counters, Shares
from forebay.router.routing import Ask
from forebay.router.tiers import Tier, Tiers
from forebay.router.waiting import Line, Waiting

TIERS = Tiers([Tier("fast", 0), Tier("plain", 1, share=0.2), Tier("batch", 2, share=0.1)], "plain")


def one(number: int, tier: str = "plain", tenant: str = "", session: str = "", prefill_s: float = 1.0) -> Waiting:
    ask = Ask("main", b"", 100, 10, tier=tier, tenant=tenant, session=session)
    return Waiting(number, 0, ask, 0.0, 60.0, prefill_s=prefill_s, tier=TIERS[tier], cost=100.0)


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
        counters.placed("plain", "heavy", "", 1_000)
    line = line_of(one(1, tenant="heavy", prefill_s=0.1), one(2, tenant="late"), counters=counters)
    assert order(line) == [2, 1]
    assert counters.served("plain", "late") >= 9_000  # it is lifted to those who are there


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
        counters.placed("plain", first.ask.tenant, "", first.cost)
        served[first.ask.tenant] += first.cost
    assert abs(served["heavy"] / served["light"] - 1) < 0.02


def test_a_swarm_s_requests_stand_behind_a_session_that_has_one() -> None:
    swarm = [one(n, session="swarm", prefill_s=0.1) for n in range(5)]
    line = line_of(*swarm, one(9, session="quiet", prefill_s=4.0))
    assert order(line) == [0, 9, 1, 2, 3, 4]
    line.counters.placed("plain", "", "swarm", 500)
    assert order(line)[0] == 9


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
    assert sum(line.add(one(n, "batch")) for n in range(100)) == 10
    assert line.add(one(200, "fast"))
    assert line.add(one(201, "plain"))


def test_counters_are_bounded_and_those_who_wait_keep_theirs() -> None:
    counters = Counters()
    counters.placed("plain", "waits", "", 7.0)
    counters.joined("plain", "waits")
    for number in range(2 * MOST_COUNTERS):
        counters.placed("plain", f"tenant {number}", "", 100.0 * number)
    assert len(counters) <= MOST_COUNTERS
    assert counters.served("plain", "waits") == 7.0


def test_who_comes_anew_is_not_held_to_what_others_were_charged_too_much() -> None:
    counters = Counters()
    counters.joined("default", "busy")
    for _ in range(100):
        counters.placed("default", "busy", "", 65_546.0)  # as expected of 128 answers
    counters.lift("default", counters.served("default", "busy"))
    for _ in range(99):
        counters.ended("default", "busy", "", 65_546.0, 300.0)
    counters.joined("default", "new")
    assert counters.served("default", "new") == counters.served("default", "busy")
