"""The least seconds win, near ties are broken fairly, and a queue is worked off but never forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.loads import LEAST_SHARE, Booking, Load
from forebay.router.placement import FULL_BATCH, SLOW_SHARE, TIE_S, TIE_SHARE, Option, choose, weigh
from forebay.router.prefix.index import Match
from forebay.router.rates import COLD_DECODE_S, COLD_FIXED_S, COLD_PREFILL_S, Rates
from forebay.router.routing import Ask

RATE = COLD_PREFILL_S


def option(
    name: str, seconds: float, *, in_flight: int = 0, output: int = 0, cached: int = 0, turn: int = 0
) -> Option:
    return Option(name, cached, 0, 32, seconds, 0.0, 0.0, in_flight, output, turn, seconds)


def booking(prefill: int, *, tells: bool = True, output: int = 0) -> Booking:
    return Booking(1, 0, "main", "a", prefill, output, tells, prefill, 0)


def test_the_least_seconds_win_whatever_else_is_there() -> None:
    assert choose([option("a", 1.2), option("b", 1.0, in_flight=90, output=9_000, turn=9)]).name == "b"


@pytest.mark.parametrize(("a", "b"), [
    ({"in_flight": 2}, {"in_flight": 1, "output": 500, "turn": 7}),
    ({"in_flight": 1, "output": 9}, {"in_flight": 1, "output": 8, "turn": 7}),
    ({"in_flight": 1, "output": 9}, {"in_flight": 1, "output": 9, "cached": 64, "turn": 7}),
    ({"in_flight": 1, "output": 9, "turn": 7}, {"in_flight": 1, "output": 9, "turn": 6}),
], ids=["requests", "tokens to generate", "context", "turn"])  # fmt: skip
@pytest.mark.parametrize(("least", "other"), [(0.0, 0.9 * TIE_S), (10.0, 10.0 * (1 + 0.9 * TIE_SHARE))])
def test_near_ties(a: dict[str, int], b: dict[str, int], least: float, other: float) -> None:
    assert choose([option("a", least, **a), option("b", other, **b)]).name == "b"
    assert choose([option("b", other, **b), option("a", least, **a)]).name == "b"


def test_what_a_request_costs() -> None:
    load = Load("a")
    load.book(booking(2_000, output=10), 5.0, RATE)
    load.turn = 3
    one = weigh(Ask("p", b"", 1_001, 100), load, Rates(), Match(512, 512), 5.0)
    assert (one.cached, one.slow, one.prefill) == (512, 0, 489)
    assert one.queued_s == pytest.approx(2_000 * COLD_PREFILL_S)
    assert one.prefill_s == pytest.approx(COLD_FIXED_S + 489 * COLD_PREFILL_S)
    assert one.interference_s == pytest.approx(100 * COLD_DECODE_S / FULL_BATCH)
    assert (one.in_flight, one.output, one.turn) == (1, 10, 3)


def test_tokens_in_a_slower_tier_cost_a_share_of_computing_them() -> None:
    ask = Ask("p", b"", 10_000, 0)
    fast, slow, cold = (
        weigh(ask, Load("a"), Rates(), Match(found, fast), 0.0)
        for found, fast in ((9_600, 9_600), (9_600, 0), (0, 0))
    )
    assert (slow.cached, slow.slow) == (9_600, 9_600)
    assert slow.prefill == 400 + SLOW_SHARE * 9_600
    assert fast.seconds < slow.seconds < cold.seconds


@pytest.mark.parametrize(("tokens", "found", "cached"), [(64, 64, 32), (65, 64, 64), (32, 32, 0), (1, 0, 0)])
def test_the_last_token_is_always_computed(tokens: int, found: int, cached: int) -> None:
    one = weigh(Ask("p", b"", tokens, 0), Load("a"), Rates(), Match(found, found), 0.0)
    assert (one.cached, one.prefill) == (cached, tokens - cached)


def test_a_queue_is_worked_off_at_the_rate_and_keeps_a_share() -> None:
    load = Load("a")
    first, second = booking(1_000), booking(3_000)
    load.book(first, 0.0, RATE)
    load.book(second, 0.1, RATE)
    assert load.queued(0.1, RATE) == pytest.approx(4_000 - 0.1 / RATE)
    load.begin(first)
    assert load.queued(0.1, RATE) == 3_000
    assert load.queued(1e9, RATE) == LEAST_SHARE * 3_000
    load.end(second)
    load.end(first)
    assert load.queued(0.1, RATE) == 0.0


@given(st.lists(st.tuples(st.integers(0, 5_000), st.booleans(), st.integers(0, 9)), max_size=20), st.randoms())
def test_what_is_booked_is_given_back_in_any_order(sizes: list[tuple[int, bool, int]], rng) -> None:  # type: ignore[no-untyped-def]
    load, now = Load("a"), 0.0
    held = [booking(prefill, tells=tells, output=output) for prefill, tells, output in sizes]
    for one in held:
        load.book(one, now, RATE)
        now += rng.random()
    rng.shuffle(held)
    for one in held:
        if rng.random() < 0.5:
            load.begin(one)
        before = load.queued(now, RATE)
        load.end(one)
        assert 0 <= load.queued(now, RATE) <= before
    assert (load.in_flight, load.waiting, load.prefill, load.silent, load.output) == (0, 0, 0, 0, 0)
    assert load.queued(now, RATE) == 0.0
