"""What Stripe is told next of one hour: whatever was told before, in the end it knows what the ledger has."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.metering.stripe.plan import CANCEL_WINDOW, Cancel, Hold, Post, Rules, decide, is_final, month_of
from forebay.metering.stripe.records import Cell, Key, Kind, Posting, State, identifier

HOUR = timedelta(hours=1)
AT = datetime(2026, 11, 10, 7, tzinfo=UTC)
KEY = Key("ten_a", "output", AT)
RULES = Rules()
NOW = AT + 2 * HOUR


def cell(total: int, *postings: Posting) -> Cell:
    return Cell(KEY, "cus_1", total, postings)


def posting(value: int, seq: int = 1, state: State = State.DELIVERED, sent: datetime = NOW) -> Posting:
    name = identifier(KEY, seq)
    return Posting(name, KEY, "cus_1", seq, Kind.EVENT, value, billed_at=AT, safe_from=sent, state=state)


def test_an_identifier_is_that_of_its_place() -> None:
    """Stripe knows a repeat by it, whoever sends it."""
    assert identifier(KEY, 1) == identifier(Key("ten_a", "output", AT.astimezone()), 1)
    others = [Key("ten_b", "output", AT), Key("ten_a", "input", AT), Key("ten_a", "output", AT + HOUR)]
    names = {identifier(KEY, 1), identifier(KEY, 2), *(identifier(key, 1) for key in others)}
    assert len(names) == 5
    assert all(len(name) <= 100 for name in names)


def test_an_hour_that_is_not_over_is_not_told() -> None:
    assert decide(cell(5), AT + HOUR + timedelta(minutes=4), RULES) is None
    assert isinstance(decide(cell(5), AT + HOUR + timedelta(minutes=5), RULES), Post)


def test_nothing_is_told_while_something_is_on_its_way() -> None:
    for state in (State.INTENDED, State.CANCELLING):
        assert decide(cell(9, posting(5, state=state)), NOW, RULES) is None


def test_what_was_taken_back_counts_for_nothing() -> None:
    decision = decide(cell(5, posting(5, state=State.VOID)), NOW, RULES)
    assert isinstance(decision, Post)
    assert (decision.posting.value, decision.posting.seq) == (5, 2)


def test_an_old_hour_is_looked_up_first() -> None:
    young, old = decide(cell(5), AT + 22 * HOUR, RULES), decide(cell(5), AT + 24 * HOUR, RULES)
    assert isinstance(young, Post)
    assert isinstance(old, Post)
    assert (young.verify, old.verify) == (False, True)


def test_what_stripe_would_not_cancel_is_counted_against() -> None:
    one = msgspec.structs.replace(posting(5), code="not_cancelled")
    decision = decide(cell(3, one), NOW, RULES)
    assert isinstance(decision, Post)
    assert decision.posting.value == -2


def test_more_taken_back_than_told() -> None:
    assert decide(cell(-3), NOW, RULES) == Hold("below_zero", -3)


def test_events_that_are_too_old_are_held() -> None:
    slow = Rules(final_after=timedelta(days=40))
    assert decide(cell(5), AT + timedelta(days=36), slow) == Hold("too_old", 5)


def test_months_end_in_utc() -> None:
    last = datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert not is_final(last, datetime(2027, 1, 1, 0, 59, tzinfo=UTC), RULES)
    assert is_final(last, datetime(2027, 1, 1, 1, tzinfo=UTC), RULES)
    assert month_of(last) == datetime(2026, 12, 1, tzinfo=UTC)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(-60, 100), st.integers(1, 400), st.booleans()), max_size=12))
def test_in_the_end_stripe_knows_what_the_ledger_has(changes: list[tuple[int, int, bool]]) -> None:
    """Usage of an hour that changes at any time; now and then Stripe cancels no more."""
    total, now, told = 0, AT + HOUR, list[Posting]()
    for change, hours, refuses in changes:
        total, now = max(0, total + change), now + hours * HOUR
        for _ in range(len(told) + 10):
            decision = decide(cell(total, *told), now, RULES)
            if not isinstance(decision, Post | Cancel):
                break
            told = _done(told, decision, now, refuses)
        assert decision is None
        live = [one for one in told if one.state is not State.VOID]
        assert sum(one.value for one in live) == total
        by_month: dict[datetime, int] = {}
        for one in live:
            by_month[month_of(one.billed_at)] = by_month.get(month_of(one.billed_at), 0) + one.value
        assert all(value >= 0 for value in by_month.values())  # Stripe bills nothing below zero


def _done(told: list[Posting], decision: Post | Cancel, now: datetime, refuses: bool) -> list[Posting]:
    one = decision.posting
    if isinstance(decision, Post):
        final = is_final(one.billed_at, now, RULES)
        assert final is (one.kind is Kind.CREDIT_NOTE)
        assert one.identifier not in {other.identifier for other in told}
        return [*told, msgspec.structs.replace(one, state=State.DELIVERED)]
    assert now - one.safe_from < CANCEL_WINDOW
    outcome: dict[str, Any] = {"code": "not_cancelled"} if refuses else {"state": State.VOID}
    changed = msgspec.structs.replace(one, **outcome)
    return [changed if other.identifier == one.identifier else other for other in told]
