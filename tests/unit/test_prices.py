from decimal import Decimal, getcontext, localcontext
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from forebay.metering import Price, Quantities, choose
from forebay.metering.prices import cost, rounded, total


def price(version: str = "v1", at: float = 0.0, rate: str = "0.15") -> Price:
    return Price("smol", version, at, "USD", Decimal(rate), Decimal("0.60"), Decimal("0.015"), Decimal("0.19"))


def test_each_class_is_charged_once_at_its_own_price_and_reasoning_is_output() -> None:
    used = Quantities(1_000_000, 2_000_000, 3_000_000, 4_000_000, 4_000_000)
    assert cost(used, price()) == Decimal("0.15") + 2 * Decimal("0.015") + 3 * Decimal("0.19") + 4 * Decimal("0.60")


def test_a_tiny_request_costs_something_and_rounds_only_on_the_line() -> None:
    one = cost(Quantities(1), price())
    assert one == Decimal("0.00000015")
    assert rounded(one) == Decimal("0.000000")
    assert rounded(total([one] * 10)) == Decimal("0.000002")  # 0.0000015, half up


@given(st.integers(0, 10**12), st.decimals(0, 1000, places=10), st.integers(1, 28))
def test_costs_are_exact_whatever_precision_the_program_runs_with(tokens: int, rate: Decimal, precision: int) -> None:
    with localcontext(getcontext()) as context:
        context.prec = precision
        found = cost(Quantities(output=tokens), Price("m", "v", 0.0, "USD", rate, rate, rate, rate))
    _, digits, exponent = rate.as_tuple()
    units = int("".join(map(str, digits)))
    assert isinstance(exponent, int)
    assert int(found.scaleb(16, None)) == units * tokens * 10 ** (10 + exponent)


@given(
    st.integers(0, 10**12), st.decimals(0, 10**9, places=12), st.decimals(0, 9999, places=12), st.integers(1, 28)
)
def test_a_tiers_multiplier_is_exact_on_every_class(
    tokens: int, rate: Decimal, multiplier: Decimal, precision: int
) -> None:
    every = Price("m", "v", 0.0, "USD", rate, rate, rate, rate)
    with localcontext(getcontext()) as context:
        context.prec = precision
        for used in (Quantities(tokens), Quantities(0, tokens), Quantities(0, 0, tokens), Quantities(output=tokens)):
            found = cost(used, every, multiplier)
            assert Fraction(found) == tokens * Fraction(rate) * Fraction(multiplier) / 10**6
            assert cost(used, every) == cost(used, every, Decimal(1))


@given(st.lists(st.decimals(-1000, 1000, places=16), max_size=50))
def test_a_sum_does_not_depend_on_its_order(amounts: list[Decimal]) -> None:
    assert total(amounts) == total(reversed(amounts))


def test_the_price_is_the_newest_that_was_in_effect_at_dispatch() -> None:
    old, new = price("v1", 100.0), price("v2", 200.0)
    assert choose([new, old], 99.9) is None
    assert choose([new, old], 100.0) is old
    assert choose([new, old], 199.9) is old
    assert choose([new, old], 200.0) is new
    assert choose([], 200.0) is None
