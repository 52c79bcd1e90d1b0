"""A tenant's statement of a period, from rows of the rollup (pure).

Of the period's own month it bills what that comes to. Of each earlier month of which late or corrected records came, it
bills what that comes to now less what it came to before, each rounded: so all that is ever billed of a month is to the
last digit what the month comes to.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal

import msgspec
from msgspec import Struct

from forebay.metering.prices import plain, rounded, total
from forebay.metering.pricing.amounts import month_of
from forebay.metering.pricing.plans import Plan, plan_of
from forebay.metering.statements.monthly import Amount, Item, Kind, Prices, Used, month

_encode = msgspec.json.Encoder(order="deterministic").encode


class Line(Struct, frozen=True):
    """`number` counts from 1 in a statement. `late`: of an earlier month than the period's; a credit where negative.

    `exact` is tokens times unit price, unrounded (of a minimum: what was missing). `amount` is `exact` rounded; in a
    late line what its month comes to, rounded, less what it came to before.
    """

    number: int
    kind: Kind
    charge_month: date
    late: bool
    model: str
    price_version: str
    multiplier: Decimal
    token_class: str
    tokens: int
    unit_price: Decimal
    exact: Decimal
    amount: Decimal


class Statement(Struct, frozen=True):
    """`total` is the sum of the lines' amounts. `plans` name the version in force in each month that has lines."""

    tenant_id: str
    period: date
    currency: str
    plans: dict[str, str]
    lines: tuple[Line, ...]
    total: Decimal


def build(
    tenant_id: str, period: date, rows: Iterable[Used], *, prices: Prices, plans: Sequence[Plan], currency: str
) -> Statement:
    """From all of the tenant's rows of the period, and those of earlier periods whose charge month is one of theirs.

    Rows of later periods are passed over. Raises `StatementError`.
    """
    before: defaultdict[date, list[Used]] = defaultdict(list)
    new: defaultdict[date, list[Used]] = defaultdict(list)
    for row in rows:
        if row.period <= period:
            (new if row.period == period else before)[month_of(row.hour)].append(row)
    lines: list[Line] = []
    terms: dict[str, str] = {}
    for charged in sorted({period, *new}):
        plan = plan_of(plans, charged)
        if plan is not None:
            terms[charged.isoformat()] = plan.version
        billed = month(before[charged], prices, plan, currency) if charged < period else {}
        now = month([*before[charged], *new[charged]], prices, plan, currency)
        lines += _lines(billed, now, charged, late=charged < period, first=len(lines) + 1)
    return Statement(tenant_id, period, currency, terms, tuple(lines), total(line.amount for line in lines))


def digest(statement: Statement) -> str:
    """SHA-256 of its canonical JSON, in hex: the same lines have the same one everywhere."""
    return hashlib.sha256(encoded(statement)).hexdigest()


def encoded(statement: Statement) -> bytes:
    return _encode(statement)


_NOTHING = Amount(0, Decimal(0), Decimal(0))


def _lines(
    billed: dict[Item, Amount], now: dict[Item, Amount], charged: date, *, late: bool, first: int
) -> list[Line]:
    lines: list[Line] = []
    for item in sorted({*billed, *now}):
        before, after = billed.get(item, _NOTHING), now.get(item, _NOTHING)
        tokens = after.tokens - before.tokens
        exact = total((after.exact, before.exact.copy_negate()))
        amount = total((rounded(after.exact), rounded(before.exact).copy_negate()))
        if not (tokens or exact or amount):
            continue
        unit = after.unit_price or before.unit_price
        # A price or tier multiplier may be written 1.5 or 1.50: one line's figures are written in one way.
        lines.append(
            Line(first + len(lines), item.kind, charged, late, item.model, item.price_version,
                 plain(item.multiplier), item.token_class, tokens, plain(unit), plain(exact), amount)
        )  # fmt: skip
    return lines
