"""What is learnt of how long endpoints take, from few and odd observations."""

import random

import pytest

from forebay.router.rates import BOUND, COLD_PREFILL_S, POOLED, Rates, begin_like, blended
from tests.virtual import Table


def test_the_fixed_part_and_the_rate_are_told_apart() -> None:
    rates, rng = Rates(), random.Random(1)
    for _ in range(600):
        tokens = rng.choice([4, 50, 3_000, 20_000])
        rates.learn_prefill(tokens, (0.03 + tokens / 10_000) * rng.uniform(0.8, 1.2))
    assert rates.prefill_s == pytest.approx(1 / 10_000, rel=0.15)
    assert rates.fixed_s == pytest.approx(0.03, rel=0.25)


def test_warm_contexts_do_not_spoil_the_rate() -> None:
    """An agent's turns: next to nothing to compute, and a time to first token that says nothing of the rate."""
    rates = Rates()
    for _ in range(100):
        rates.learn_prefill(8_000, 0.03 + 0.8)
    learnt = rates.prefill_s
    for _ in range(300):
        rates.learn_prefill(5, 0.03)
    assert rates.prefill_s == pytest.approx(learnt, rel=0.05)
    assert rates.first_token_s(5) == pytest.approx(0.03, rel=0.1)


def test_an_outlier_moves_little_and_nonsense_nothing() -> None:
    rates = Rates()
    for _ in range(100):
        rates.learn_prefill(1_000, 0.1)
        rates.learn_decode(10, 1.0)
    prefill, decode = rates.first_token_s(1_000), rates.decode_s
    rates.learn_prefill(1_000, 1e6)
    rates.learn_decode(10, 1e6)
    assert rates.first_token_s(1_000) < prefill * BOUND**0.06
    assert rates.decode_s < decode * BOUND**0.06
    seen = rates.prefills, rates.decodes
    for tokens, seconds in ((0, 1.0), (-5, 1.0), (5, 0.0), (5, -1.0)):
        rates.learn_prefill(tokens, seconds)
        rates.learn_decode(tokens, seconds)
    assert (rates.prefills, rates.decodes) == seen


def test_the_first_observations_count_more() -> None:
    rates = Rates()
    for _ in range(30):
        rates.learn_prefill(10_000, 0.5)
    assert rates.prefill_s == pytest.approx(0.5 / 10_000, rel=0.2)


def test_an_endpoint_is_like_its_pool_until_it_has_shown_otherwise() -> None:
    pool, own = Rates(prefill_s=0.001, prefills=500), Rates()
    begin_like(own, pool)
    assert own.prefill_s == 0.001
    own.learn_prefill(1_000, 0.5)
    few = blended(own, pool).prefill_s
    for _ in range(200):
        own.learn_prefill(1_000, 0.5)
    many = blended(own, pool).prefill_s
    assert 0.95 * pool.prefill_s < few < pool.prefill_s
    assert many == pytest.approx(0.0005, rel=0.15)
    assert blended(Rates(), pool).prefill_s == pool.prefill_s
    assert blended(Rates(prefill_s=0.002, prefills=POOLED), pool).prefill_s == pytest.approx(0.0015)


def test_only_who_was_alone_is_learnt_from() -> None:
    table = Table("a")
    first = table.place(("one", 2_000))
    second = table.place(("two", 2_000))
    table.begin(first, second)
    table.end(first, second, prompt_tokens=2_000, cached=0, output=50, first_token_s=9.0, decode_s=9.0)
    assert table.pool.rates.prefills == table.pool.rates.decodes == 0
    alone = table.place(("three", 2_000))
    assert alone.alone
    table.begin(alone)
    beside = table.place(("four", 2_000))
    table.end(alone, prompt_tokens=2_000, cached=0, output=50, first_token_s=0.1, decode_s=9.0)
    assert (table.pool.rates.prefills, table.pool.rates.decodes) == (1, 0)  # its decoding was not alone any more
    assert table.pool.members["a"].rates.prefill_s < COLD_PREFILL_S
    table.end(beside)


def test_a_pool_learns_for_an_endpoint_that_has_seen_nothing() -> None:
    table = Table("a", "b")
    for _ in range(40):
        placed = table.place(("x", 20), without=("b",))
        table.begin(placed)
        table.end(placed, prompt_tokens=4_000, cached=0, output=1, first_token_s=4.0)
    assert table.explain(("long", 4_000))["b"].prefill_s == pytest.approx(4.0, rel=0.25)


def test_tokens_that_the_engine_had_cached_were_not_computed() -> None:
    table = Table("a")
    for _ in range(60):
        placed = table.place(("x", 4_000))
        table.begin(placed)
        table.end(placed, prompt_tokens=4_000, cached=2_000, output=1, first_token_s=1.0)
        table.core.clear("main", "a")
    assert table.pool.rates.prefill_s == pytest.approx(1 / 2_000, rel=0.1)
