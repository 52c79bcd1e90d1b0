"""A statement's lines, whatever was used, in whatever order it came and however often it was corrected."""

from datetime import date
from decimal import Decimal
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.metering import Quantities
from forebay.metering.prices import charge, cost, rounded, total, unit_price
from forebay.metering.pricing.plans import Included, Plan
from forebay.metering.statements.build import Statement, build, digest
from forebay.metering.statements.monthly import Kind, StatementError, Used
from tests.billing import CURRENCY, MULTIPLIERS, months, negated, price, seconds

MARCH, APRIL = date(2026, 3, 1), date(2026, 4, 1)
SMOL = price("smol", "v1", 0, "0.4")
PRICES = {("smol", "v1"): SMOL, ("smol", "v2"): price("smol", "v2", 0, "0.0000037")}

_tokens = st.integers(0, 10**9)
_rows = st.lists(
    st.builds(
        Used,
        st.just(MARCH),
        st.integers(0, 31 * 24 - 1).map(lambda hour: seconds(MARCH) + hour * 3600),
        st.just("smol"),
        st.sampled_from(["v1", "v2"]),
        st.sampled_from(MULTIPLIERS),
        st.builds(Quantities, _tokens, _tokens, _tokens, _tokens),
    ),
    max_size=12,
)
_included = st.lists(st.integers(1, 10**10), min_size=2, max_size=2).map(
    lambda counts: (Included("smol", "output", counts[0]), Included("smol", "cache_read", counts[1]))
)
_plans = st.none() | st.builds(
    Plan, st.just("ten_a"), st.just("p"), st.just(MARCH), st.just(CURRENCY), st.decimals(0, 2000, places=6), _included
)


def used(tokens: int, *, period: date = MARCH, charged: date = MARCH, version: str = "v1", hour: int = 0) -> Used:
    when = seconds(charged) + hour * 3600
    return Used(period, when, "smol", version, Decimal(1), Quantities(output=tokens), 1)


def statement(rows: list[Used], plan: Plan | None = None, period: date = MARCH) -> Statement:
    return build("ten_a", period, rows, prices=PRICES, plans=[plan] if plan else [], currency=CURRENCY)


def plan(minimum: str = "0", included: int = 0) -> Plan:
    given_ = (Included("smol", "output", included),) if included else ()
    return Plan("ten_a", "p", MARCH, CURRENCY, Decimal(minimum), given_)


@given(_rows, _plans)
def test_lines_sum_to_the_total_and_each_is_its_tokens_at_its_price(rows: list[Used], terms: Plan | None) -> None:
    found = statement(rows, terms)
    assert found.total == total(line.amount for line in found.lines)
    assert [line.number for line in found.lines] == list(range(1, len(found.lines) + 1))
    for line in found.lines:
        assert line.amount == rounded(line.exact)
        if line.kind is not Kind.MINIMUM:
            assert line.exact == charge(line.tokens, line.unit_price)
            version = PRICES["smol", line.price_version]
            assert line.unit_price == unit_price(version, line.token_class, line.multiplier)


@given(_rows)
def test_without_a_plan_the_exact_sum_is_what_the_rows_cost(rows: list[Used]) -> None:
    exact = total(cost(row.billable, PRICES["smol", row.price_version], row.multiplier) for row in rows)
    assert total(line.exact for line in statement(rows).lines) == exact


@given(_rows, _plans)
def test_included_tokens_are_what_was_used_or_what_is_given_whichever_is_less(
    rows: list[Used], terms: Plan | None
) -> None:
    found = statement(rows, terms)
    given_ = {one.token_class: one.tokens for one in terms.included} if terms else {}
    for name in ("output", "cache_read", "input_uncached"):
        free = -sum(line.tokens for line in found.lines if line.kind is Kind.INCLUDED and line.token_class == name)
        assert free == min(sum(getattr(row.billable, name) for row in rows), given_.get(name, 0))


@given(_rows, _plans, st.randoms(use_true_random=False))
def test_the_order_of_rows_and_how_they_are_split_changes_nothing(
    rows: list[Used], terms: Plan | None, random: Random
) -> None:
    halves = [half for row in rows for half in (_part(row, 1), _part(row, 0))]
    random.shuffle(halves)
    assert digest(statement(halves, terms)) == digest(statement(rows, terms))


@given(_rows, _plans)
def test_a_month_whose_records_are_all_reversed_comes_to_its_minimum_to_the_digit(
    rows: list[Used], terms: Plan | None
) -> None:
    reversals = [Used(APRIL, r.hour, r.model, r.price_version, r.multiplier, negated(r.billable)) for r in rows]
    march, april = statement(rows, terms), statement([*rows, *reversals], terms, APRIL)
    least = terms.minimum if terms else Decimal(0)
    assert march.total + april.total == least * 2  # april's own minimum as well


def test_the_earliest_tokens_are_the_included_ones() -> None:
    found = statement([used(70, hour=5, version="v2"), used(50, hour=1)], plan(included=60))
    free = {line.price_version: line.tokens for line in found.lines if line.kind is Kind.INCLUDED}
    assert free == {"v1": -50, "v2": -10}


def test_a_minimum_makes_up_the_difference_to_the_last_digit_and_is_no_line_when_reached() -> None:
    short = statement([used(1)], plan("2.5"))
    assert short.total == Decimal("2.5")
    assert [line.kind for line in short.lines] == [Kind.MINIMUM, Kind.USAGE]
    assert [line.kind for line in statement([used(2_000_000)], plan("2.5")).lines] == [Kind.USAGE]


def test_a_month_without_usage_costs_the_minimum() -> None:
    assert statement([], plan("9")).total == Decimal(9)
    assert statement([]).lines == ()


def test_a_late_record_is_a_line_of_its_month_and_the_period_it_came_in_bills_it() -> None:
    rows = [used(1_000_000), used(500_000, period=APRIL)]
    assert statement(rows).total == Decimal("1.6")  # not yet known in March
    (line,) = statement(rows, period=APRIL).lines
    assert (line.charge_month, line.late, line.amount) == (MARCH, True, Decimal("0.8"))


def test_a_correction_gives_back_no_more_than_was_paid() -> None:
    """What was included was not paid; a late record that the minimum covers costs nothing."""
    back = [used(100_000), used(-100_000, period=APRIL)]
    assert statement(back, plan(included=100_000), APRIL).total == 0
    under = [used(1_000_000), used(500_000, period=APRIL)]
    april = statement(under, plan("5"), APRIL)
    assert sum(line.amount for line in april.lines if line.late) == 0
    assert april.total == Decimal(5)  # april's own minimum


def test_a_credit_is_a_negative_late_line() -> None:
    rows = [used(1_000_000), used(-1_000_000, period=APRIL), used(250_000, period=APRIL)]
    (line,) = statement(rows, period=APRIL).lines
    assert (line.tokens, line.amount) == (-750_000, Decimal("-1.2"))


def test_usage_without_a_price_is_shown_and_costs_nothing() -> None:
    (line,) = statement([used(7, version="")]).lines
    assert (line.tokens, line.price_version, line.amount) == (7, "", Decimal(0))


def test_a_version_that_nobody_knows_or_of_another_currency_is_no_bill() -> None:
    with pytest.raises(StatementError, match="price version 'v9' of model 'smol' is used, and is not registered"):
        statement([used(1, version="v9")])
    euros = {("smol", "v1"): msgspec.structs.replace(SMOL, currency="EUR")}
    with pytest.raises(StatementError, match="in EUR, and the statement in USD"):
        build("ten_a", MARCH, [used(1)], prices=euros, plans=[], currency=CURRENCY)


def test_months_follow_each_other() -> None:
    assert months(2026, 14)[-1] == date(2027, 2, 1)


def _part(row: Used, rest: int) -> Used:
    """One half of a row; the odd token is in the half with `rest`."""
    counts = [(getattr(row.billable, name) + rest) // 2 for name in row.billable.__struct_fields__]
    return Used(row.period, row.hour, row.model, row.price_version, row.multiplier, Quantities(*counts))
