"""What Stripe is told next of one cell. Pure: cells, rules and the time in, decisions out."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from forebay.metering.stripe.records import Cell, Kind, Posting, State, identifier

HOUR = timedelta(hours=1)
# Stripe promises 24 h for both. An hour is left for clocks and for what is under way.
DEDUPE_WINDOW = timedelta(hours=23)
CANCEL_WINDOW = timedelta(hours=23)
# Stripe takes events of the last 35 days.
OLDEST = timedelta(days=35) - HOUR
SETTLES = timedelta(hours=1)  # Stripe adds up with a delay; a sum that differs sooner says nothing
NOT_CANCELLED = "not_cancelled"  # the code of a posting that Stripe would not cancel
# Why a cell is held: Stripe's meter is gone or inactive; Stripe refused it; Stripe's sum is another than ours; older
# than Stripe takes; less than was ever used.
REASONS = ("meter_inactive", "rejected", "differs", "too_old", "below_zero")


class Rules(Struct, frozen=True):
    """`lag`: after the end of an hour, for its last records to arrive. `final_after`: after the end of a month its
    invoice is final at Stripe."""

    lag: timedelta = timedelta(minutes=5)
    final_after: timedelta = HOUR


class Post(Struct, frozen=True):
    """`verify`: Stripe's own sum must say first that nothing is there that we do not know of."""

    posting: Posting
    verify: bool


class Cancel(Struct, frozen=True):
    posting: Posting


class GiveUp(Struct, frozen=True):
    """A credit note that waits, and is of another amount by now; only where it is known not to be made."""

    posting: Posting


class Hold(Struct, frozen=True):
    """Usage that Stripe is not told now. `tokens` is the difference that waits."""

    reason: str
    tokens: int
    code: str = ""


Decision = Post | Cancel | GiveUp | Hold | None


def decide(cell: Cell, now: datetime, rules: Rules) -> Decision:
    """None: Stripe knows all of it, or is about to, or the hour is not over."""
    difference = cell.total - cell.told
    parked = [one for one in cell.postings if one.state is State.REJECTED]
    if parked:
        return Hold("rejected", difference + sum(one.value for one in parked), parked[0].code)
    if difference == 0:
        return None
    if open_ := [one for one in cell.postings if one.state in {State.INTENDED, State.CANCELLING}]:
        return GiveUp(open_[0]) if open_[0].kind is Kind.CREDIT_NOTE else None
    if now < cell.key.hour + HOUR + rules.lag:
        return None
    return _more(cell, difference, now, rules) if difference > 0 else _less(cell, difference, now, rules)


def is_final(at: datetime, now: datetime, rules: Rules) -> bool:
    """Whether the invoice that bills what happened at `at` is final."""
    return now >= next_month(at) + rules.final_after


def hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def month_of(at: datetime) -> datetime:
    at = at.astimezone(UTC)
    return datetime(at.year, at.month, 1, tzinfo=UTC)


def next_month(at: datetime) -> datetime:
    return month_of(month_of(at) + timedelta(days=32))


Place = tuple[str, str, datetime]  # a customer's meter in one of Stripe's hours


def sorted_out(
    postings: Iterable[Posting], now: datetime, rules: Rules
) -> tuple[list[Posting], dict[Place, list[Posting]]]:
    """Of postings that were written down and not heard of: those that can be sent, since by Stripe's promise a repeat
    is harmless, and those of which its sums must be asked. The others wait until the sums can tell."""
    ready: list[Posting] = []
    asked: dict[Place, list[Posting]] = {}
    for one in postings:
        final, age = is_final(one.billed_at, now, rules), now - one.safe_from
        if one.kind is Kind.CREDIT_NOTE or (not final and age < DEDUPE_WINDOW):
            ready.append(one)
        elif not final or age >= SETTLES:
            asked.setdefault((one.customer_id, one.key.event_name, hour_of(one.billed_at)), []).append(one)
    return ready, asked


def _more(cell: Cell, difference: int, now: datetime, rules: Rules) -> Decision:
    """What was used in a month whose invoice is final is billed in the current one."""
    hour = cell.key.hour
    late = is_final(hour, now, rules)
    at = max(month_of(now), hour_of(now) - HOUR) if late else hour
    return _post(cell, Kind.EVENT, difference, at, now)


def _less(cell: Cell, difference: int, now: datetime, rules: Rules) -> Decision:
    """Taken back where it was billed last: cancelled, counted against, or credited on the invoice."""
    live = [one for one in cell.postings if one.state is State.DELIVERED]
    billed: dict[datetime, int] = {}
    for one in live:
        billed[month_of(one.billed_at)] = billed.get(month_of(one.billed_at), 0) + one.value
    month = max((month for month, value in billed.items() if value > 0), default=None)
    if month is None:  # more was taken back than was ever used
        return Hold("below_zero", difference)
    here = [one for one in live if one.kind is Kind.EVENT and one.value > 0 and month_of(one.billed_at) == month]
    newest = max(here, key=lambda one: one.seq)
    if is_final(month, now, rules):
        return _post(cell, Kind.CREDIT_NOTE, max(difference, -billed[month]), newest.billed_at, now)
    if now - newest.safe_from < CANCEL_WINDOW and newest.code != NOT_CANCELLED:
        return Cancel(newest)
    return _post(cell, Kind.EVENT, max(difference, -billed[month]), newest.billed_at, now)


def _post(cell: Cell, kind: Kind, value: int, at: datetime, now: datetime) -> Decision:
    if kind is Kind.EVENT and now - at > OLDEST:
        return Hold("too_old", value)
    seq = 1 + max((one.seq for one in cell.postings), default=0)
    posting = Posting(
        identifier(cell.key, seq), cell.key, cell.customer_id, seq, kind, value, billed_at=at, safe_from=now
    )
    # Nobody can have used the identifier before its hour began, whatever this database remembers.
    return Post(posting, verify=kind is Kind.EVENT and now - cell.key.hour >= DEDUPE_WINDOW)
