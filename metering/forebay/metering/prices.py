"""Prices and costs. Decimal throughout, exact until a statement line is rounded, once.

A cost is never stored: it is computed from a usage record (its counts and its multiplier) and the price version that
the record names, so that it can be computed again by anybody.
"""

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation, Overflow

from msgspec import Struct

from forebay.metering.records import Quantities

LINE_PLACES = Decimal("0.000001")

# Wide enough for any token count times any price; should it ever not be, an error is better than a rounded sum.
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation, Overflow])
_ROUNDING = Context(prec=100, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow])


class Price(Struct, frozen=True):
    """One immutable price version of a model. Money is per million tokens; `effective_from` is Unix seconds."""

    model: str
    version: str
    effective_from: float
    currency: str
    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal


def choose(prices: Iterable[Price], at: float) -> Price | None:
    """The newest price that was in effect at `at` (Unix seconds, when the attempt was dispatched).

    Of two with the same date the later in the sequence wins. None: nothing was in effect, and usage costs nothing.
    """
    chosen = None
    for price in prices:
        if price.effective_from <= at and (chosen is None or price.effective_from >= chosen.effective_from):
            chosen = price
    return chosen


def cost(used: Quantities, price: Price, multiplier: Decimal = Decimal(1)) -> Decimal:
    """What `used` costs in a tier of that multiplier, unrounded. Reasoning is a part of the output and is not charged
    again."""
    total = Decimal(0)
    for tokens, per_million in (
        (used.input_uncached, price.input),
        (used.cache_read, price.cache_read),
        (used.cache_write, price.cache_write),
        (used.output, price.output),
    ):
        total = _EXACT.add(total, _EXACT.multiply(Decimal(tokens), per_million))
    return _EXACT.scaleb(_EXACT.multiply(total, multiplier), -6)


def rounded(amount: Decimal) -> Decimal:
    """The amount of a statement line: six places, half up. The only place where money is rounded."""
    return amount.quantize(LINE_PLACES, context=_ROUNDING)


def total(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum of unrounded costs."""
    result = Decimal(0)
    for amount in amounts:
        result = _EXACT.add(result, amount)
    return result
