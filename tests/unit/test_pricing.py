"""Which prices and plans a tenant may be given, and what a draft would change."""

from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from forebay.metering import Included, Plan, Price, Quantities, RefusedError, in_force, rerated
from forebay.metering.pricing.book import check_override
from forebay.metering.pricing.plans import check_plan, plan_of
from forebay.metering.pricing.preview import Past
from tests.billing import price, seconds

NOW = float(seconds(date(2026, 12, 1)))
DAY = 86400.0
LIST = price("smol", "list", 0.0, "0.4")
OWN = price("smol", "own", NOW - DAY, "0.3", "ten_a")
NEW = price("smol", "new", NOW + DAY, "0.2", "ten_a")
PLAN = Plan("ten_a", "one", date(2026, 11, 1), "USD", Decimal("2.5"), (Included("smol", "output", 5),))
NEXT = msgspec.structs.replace(PLAN, version="two", effective_from=date(2026, 12, 1))


def test_an_override_is_in_force_from_its_day_on_for_its_model() -> None:
    catalogue = [LIST]
    found = [in_force([OWN, NEW], catalogue, "smol", at) for at in (NOW - 2 * DAY, NOW, NOW + DAY)]
    assert [one.version for one in found if one] == ["list", "own", "new"]
    other = price("grande", "list", 0.0, "4")
    assert in_force([OWN], [other], "grande", NOW) == other
    assert in_force([], [], "smol", NOW) is None


def test_what_may_be_added_is_and_once() -> None:
    assert check_override(NEW, [LIST, OWN], currency="USD", now=NOW)
    assert not check_override(NEW, [LIST, OWN, NEW], currency="USD", now=NOW + 30 * DAY)
    assert check_override(msgspec.structs.replace(NEW, effective_from=NOW), [LIST, OWN], currency="USD", now=NOW)


@pytest.mark.parametrize(("changes", "param", "says"), [
    ({"currency": "EUR"}, "currency", "currency is EUR: everything here is priced in USD"),
    ({"output": Decimal(-1)}, "output", "output is -1: an amount is between 0 and 1000000000"),
    ({"output": Decimal("NaN")}, "output", "output is NaN"),
    ({"input": Decimal("1e10")}, "input", "between 0 and 1000000000"),
    ({"input": Decimal("1e-13")}, "input", "at most 12 decimal places"),
    ({"version": "list"}, "version", "has a version 'list' already, of the catalogue, with other contents"),
    ({"version": "own"}, "version", "has a version 'own' already, of tenant ten_a"),
    ({"effective_from": NOW - 3600}, "effective_from", "2026-11-30T23:00:00+00:00, which has passed"),
    ({"effective_from": NOW - 1}, "effective_from", "2026-11 is closed; begin in an open month"),
    ({"effective_from": NOW + 2 * DAY}, "effective_from", "version 'later' begins then"),
    ({"effective_from": 1e300}, "effective_from", "before the year 10000"),
])  # fmt: skip
def test_a_price_that_may_not_be_is_refused_by_name(changes: dict[str, Any], param: str, says: str) -> None:
    closed = [date(2026, 11, 1)] if changes.get("effective_from") == NOW - 1 else []
    book = [LIST, OWN, price("smol", "later", NOW + 2 * DAY, "1", "ten_a")]
    with pytest.raises(RefusedError) as refusal:
        check_override(msgspec.structs.replace(NEW, **changes), book, currency="USD", now=NOW, closed=closed)
    assert refusal.value.param == param
    assert says in str(refusal.value)


def test_a_price_never_goes_back_behind_one_in_force() -> None:
    """Within what clocks may differ by, where the past is not refused."""
    book = [msgspec.structs.replace(OWN, effective_from=NOW - 5)]
    with pytest.raises(RefusedError, match="version 'own', in force since 2026-11-30T23:59:55"):
        check_override(msgspec.structs.replace(NEW, effective_from=NOW - 10), book, currency="USD", now=NOW)


def test_another_tenants_dates_are_no_matter() -> None:
    other = msgspec.structs.replace(NEW, version="theirs", tenant_id="ten_b")
    assert check_override(NEW, [LIST, other], currency="USD", now=NOW)


def test_a_plan_is_in_force_from_its_month_until_the_next() -> None:
    found = [plan_of([NEXT, PLAN], date(2026, month, 1)) for month in (10, 11, 12)]
    assert found == [None, PLAN, NEXT]


def test_plans_are_added_once_and_forwards() -> None:
    assert check_plan(NEXT, [PLAN], currency="USD", closed=[date(2026, 11, 1)])
    assert not check_plan(PLAN, [PLAN, NEXT], currency="USD", closed=[date(2026, 11, 1)])


@pytest.mark.parametrize(("changes", "param", "says"), [
    ({"currency": "EUR"}, "currency", "priced in USD"),
    ({"effective_from": date(2026, 12, 2)}, "effective_from", "begins on the first of a month"),
    ({"effective_from": date(2026, 10, 1)}, "effective_from", "2026-10 is closed; begin after it"),
    ({"effective_from": date(2026, 11, 1)}, "effective_from", "plan 'one' begins on 2026-11-01; begin after it"),
    ({"version": "one"}, "version", "has a plan 'one' with other contents"),
    ({"minimum": Decimal(-1)}, "minimum", "minimum is -1"),
    ({"minimum": Decimal("0.0000001")}, "minimum", "at most six decimal places"),
    ({"session_hour": Decimal("Infinity")}, "session_hour", "session_hour is Infinity"),
    ({"included": (Included("smol", "tokens", 1),)}, "included", "class 'tokens': the classes are input_uncached"),
    ({"included": (Included("smol", "output", 0),)}, "included", "0 tokens"),
    ({"included": (Included("smol", "output", 1),) * 2}, "included", "output of 'smol' twice"),
])  # fmt: skip
def test_a_plan_that_may_not_be_is_refused_by_name(changes: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        check_plan(msgspec.structs.replace(NEXT, **changes), [PLAN], currency="USD", closed=[date(2026, 10, 1)])
    assert refusal.value.param == param
    assert says in str(refusal.value)


def test_a_draft_is_compared_with_what_was_charged_by_tenant_and_class() -> None:
    past = [
        Past("ten_a", "smol", "own", Decimal("1.5"), Quantities(output=1_000_000)),
        Past("ten_a", "smol", "", Decimal(1), Quantities(output=1_000_000)),
        Past("ten_b", "smol", "list", Decimal(1), Quantities(input_uncached=500_000)),
        Past("ten_b", "grande", "list", Decimal(1), Quantities(output=7)),
    ]
    prices = {(one.model, one.version): one for one in (LIST, OWN)}
    draft = Price("smol", "draft", 0.0, "USD", Decimal("0.2"), Decimal(1), Decimal(0), Decimal(0))
    shown = [
        (one.tenant_id, one.token_class, one.tokens, str(one.charged), str(one.draft), str(one.change))
        for one in rerated(past, prices, draft)
    ]
    assert shown == [
        ("ten_a", "output", 2_000_000, "1.800000", "2.500000", "0.700000"),
        ("ten_b", "input_uncached", 500_000, "0.200000", "0.100000", "-0.100000"),
    ]
