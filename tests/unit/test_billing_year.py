"""A year of random usage, with price changes, overrides, plans, corrections and late records: whatever adds it up comes
to the same, to the last digit. What else is derived from the rows (exports, Stripe) is to be compared in `_check`."""

from collections import defaultdict
from datetime import date
from decimal import Decimal
from random import Random

import pytest

from forebay.metering.prices import cost, rounded, total
from forebay.metering.pricing.amounts import month_of
from forebay.metering.pricing.plans import plan_of
from forebay.metering.statements.build import Statement, build
from forebay.metering.statements.monthly import Amount, Item, Kind, month
from tests.billing import CURRENCY, Versions, months, rows_of, year_of_plans, year_of_prices

YEAR, TENANT = 2026, "ten_a"


@pytest.mark.parametrize("seed", range(12))
def test_a_years_statements_are_what_the_ledger_comes_to(seed: int) -> None:
    random = Random(seed)
    book = year_of_prices(random, YEAR, TENANT)
    prices = {(one.model, one.version): one for one in book}
    plans = year_of_plans(random, YEAR, TENANT)
    rows = list(rows_of(random, YEAR, Versions(book), 400))
    random.shuffle(rows)
    statements = [
        build(TENANT, period, rows, prices=prices, plans=plans, currency=CURRENCY) for period in months(YEAR)
    ]
    lines = [line for statement in statements for line in statement.lines]
    assert any(line.late and line.amount < 0 for line in lines), "no credit in this year: the test tests nothing"
    ledger = total(cost(row.billable, prices[row.model, row.price_version], row.multiplier) for row in rows)
    _check(ledger, statements)
    _check_months(statements, {
        charged: month(
            [row for row in rows if month_of(row.hour) == charged], prices, plan_of(plans, charged), CURRENCY
        )
        for charged in months(YEAR)
    })  # fmt: skip


def _check(ledger: Decimal, statements: list[Statement]) -> None:
    by_kind: defaultdict[Kind, Decimal] = defaultdict(Decimal)
    for statement in statements:
        assert statement.total == total(line.amount for line in statement.lines)
        for line in statement.lines:
            by_kind[line.kind] = total((by_kind[line.kind], line.exact))
    assert by_kind[Kind.USAGE] == ledger
    assert by_kind[Kind.INCLUDED] < 0 < by_kind[Kind.MINIMUM]
    every = total(line.exact for statement in statements for line in statement.lines)
    assert every == total((ledger, by_kind[Kind.MINIMUM], by_kind[Kind.INCLUDED]))


def _check_months(statements: list[Statement], whole: dict[date, dict[Item, Amount]]) -> None:
    """What was ever billed of a month is, rounded and all, what one statement of all its records would have said."""
    billed: defaultdict[date, Decimal] = defaultdict(Decimal)
    for statement in statements:
        for line in statement.lines:
            billed[line.charge_month] = total((billed[line.charge_month], line.amount))
    for charged, items in whole.items():
        assert billed[charged] == total(rounded(amount.exact) for amount in items.values())
