"""Prices and costs. Decimal throughout, exact until a statement line is rounded, once.

A cost is never stored: it is computed from a usage record (its counts and its multiplier) and the price version that
the record names, so that it can be computed again by anybody.
"""

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation, Overflow

from msgspec import Struct

from forebay.metering.records import Quantities

LINE_PLACES = Decimal("0.000001")
# The classes that are charged, and what a price calls each.
PRICED = {"input_uncached": "input", "cache_read": "cache_read", "cache_write": "cache_write", "output": "output"}

# Wide enough for any token count times any price; should it ever not be, an error is better than a rounded sum.
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation, Overflow])
_ROUNDING = Context(prec=100, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow])


class Price(Struct, frozen=True):
    """One immutable price version of a model. Money is per million tokens; `effective_from` is Unix seconds.

    `tenant_id` is set in a tenant's override, which is a version like others: its name is unique in the model.
    """

    model: str
    version: str
    effective_from: float
    currency: str
    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal
    tenant_id: str = ""


def choose(prices: Iterable[Price], at: float) -> Price | None:
    """The newest price that was in effect at `at` (Unix seconds, when the attempt was dispatched).

    Of two with the same date the later in the sequence wins. None: nothing was in effect, and usage costs nothing.
    """
    chosen = None
    for price in prices:
        if price.effective_from <= at and (chosen is None or price.effective_from >= chosen.effective_from):
            chosen = price
    return chosen


def in_force(own: Iterable[Price], catalogue: Iterable[Price], model: str, at: float) -> Price | None:
    """What a tenant with overrides `own` is charged for `model`: its newest in effect, else the model's."""
    return choose((price for price in own if price.model == model), at) or choose(catalogue, at)


def unit_price(price: Price, token_class: str, multiplier: Decimal = Decimal(1)) -> Decimal:
    """Exact, per million tokens of a class of `PRICED`, in a tier of that multiplier."""
    return _EXACT.multiply(getattr(price, PRICED[token_class]), multiplier)


def charge(tokens: int, per_million: Decimal) -> Decimal:
    """Exact. Negative tokens are a correction's."""
    return _EXACT.scaleb(_EXACT.multiply(Decimal(tokens), per_million), -6)


def cost(used: Quantities, price: Price, multiplier: Decimal = Decimal(1)) -> Decimal:
    """What `used` costs in a tier of that multiplier, unrounded. Reasoning is a part of the output and is not charged
    again."""
    return total(charge(getattr(used, name), unit_price(price, name, multiplier)) for name in PRICED)


def rounded(amount: Decimal) -> Decimal:
    """The amount of a statement line: six places, half up. The only place where money is rounded."""
    return amount.quantize(LINE_PLACES, context=_ROUNDING)


def total(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum of unrounded costs."""
    result = Decimal(0)
    for amount in amounts:
        result = _EXACT.add(result, amount)
    return result


def plain(value: Decimal) -> Decimal:
    """The same value without trailing zeros and without an exponent, so that equal figures look alike."""
    return Decimal(format(value.normalize(_EXACT), "f")) if value else Decimal(0)
