"""Failovers are bounded by what there is to do, and there are always some."""

from forebay.platform.relay.budget import SHARE, SOME, WINDOW_S, Budget


def test_a_budget_is_some_and_a_share_of_the_requests() -> None:
    budget = Budget()
    for number in range(100):
        budget.request(number / 100)
    made = sum(budget.failover(1.0) for _ in range(1000))
    assert made == SOME + SHARE * 100


def test_what_lies_behind_the_window_counts_no_more() -> None:
    budget = Budget()
    assert all(budget.failover(0.0) for _ in range(SOME))
    assert not budget.failover(WINDOW_S - 1)
    assert budget.failover(WINDOW_S + 2)


def test_the_refused_do_not_count() -> None:
    budget = Budget()
    for number in range(10_000):
        budget.failover(number / 1000)
    assert budget.failover(WINDOW_S + 11)


def test_one_tenant_leaves_failovers_to_others() -> None:
    budget = Budget()
    for _ in range(45):  # requests that each engine fails at
        budget.request(0.0)
        budget.failover(0.0, "poisonous")
        budget.failover(0.0, "poisonous")
    budget.request(1.0)
    assert budget.failover(1.0, "innocent")
