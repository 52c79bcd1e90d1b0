"""What a month's usage comes to, exactly (pure).

A month is worked out from all of its usage that is known: which tokens are included, and whether the minimum is
reached, can change with a late record. What a period bills of an earlier month is therefore what it comes to now less
what it came to before (`build.py`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from enum import StrEnum

from msgspec import Struct

from forebay.metering.prices import PRICED, Price, charge, rounded, total, unit_price
from forebay.metering.pricing.plans import Plan
from forebay.metering.records import Quantities

Prices = Mapping[tuple[str, str], Price]  # by (model, version)


class StatementError(ValueError):
    """Usage that cannot be put on a statement as it is."""


class Used(Struct, frozen=True):
    """A row of the hourly rollup, of one tenant: signed sums. `hour` is the charge hour, Unix seconds."""

    period: date
    hour: int
    model: str
    price_version: str
    multiplier: Decimal
    billable: Quantities
    requests: int = 0


class Kind(StrEnum):
    USAGE = "usage"
    INCLUDED = "included"  # what the plan gives of it: negative
    MINIMUM = "minimum"  # what is missing to the plan's minimum


class Item(Struct, frozen=True, order=True):
    """What a line is of. Empty names and a multiplier of 1 in a minimum. A version "" is usage without a price."""

    kind: Kind
    model: str = ""
    price_version: str = ""
    multiplier: Decimal = Decimal(1)
    token_class: str = ""


class Amount(Struct, frozen=True):
    tokens: int
    unit_price: Decimal  # per million tokens
    exact: Decimal


Slot = tuple[int, str, Decimal]  # hour, price version, multiplier: the order in which included tokens are taken


def month(rows: Iterable[Used], prices: Prices, plan: Plan | None, currency: str) -> dict[Item, Amount]:
    """Of rows of one charge month. Raises `StatementError`."""
    slots: defaultdict[tuple[str, str], defaultdict[Slot, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for name in PRICED:
            if tokens := getattr(row.billable, name):
                slots[row.model, name][row.hour, row.price_version, row.multiplier] += tokens
    included = {(one.model, one.token_class): one.tokens for one in plan.included} if plan else {}
    found: dict[Item, Amount] = {}
    for (model, name), by_slot in slots.items():
        free = _taken(by_slot, included.get((model, name), 0))
        for kind, counts in ((Kind.USAGE, by_slot), (Kind.INCLUDED, free)):
            for (version, multiplier), tokens in _by_price(counts).items():
                item = Item(kind, model, version, multiplier, name)
                unit = _unit(prices, item, currency)
                signed = -tokens if kind is Kind.INCLUDED else tokens
                if signed:
                    found[item] = Amount(signed, unit, charge(signed, unit))
    if plan is not None:
        so_far = total(rounded(amount.exact) for amount in found.values())
        missing = total((plan.minimum, so_far.copy_negate()))
        if missing > 0:
            found[Item(Kind.MINIMUM)] = Amount(0, Decimal(0), missing)
    return found


def _taken(by_slot: Mapping[Slot, int], included: int) -> dict[Slot, int]:
    """Included tokens, from the earliest on; never more than were used in all."""
    left = min(included, max(0, sum(by_slot.values())))
    taken = {}
    for slot in sorted(by_slot):
        if (tokens := min(left, max(0, by_slot[slot]))) > 0:
            taken[slot] = tokens
            left -= tokens
    return taken


def _by_price(counts: Mapping[Slot, int]) -> dict[tuple[str, Decimal], int]:
    found: defaultdict[tuple[str, Decimal], int] = defaultdict(int)
    for (_, version, multiplier), tokens in counts.items():
        found[version, multiplier] += tokens
    return found


def _unit(prices: Prices, item: Item, currency: str) -> Decimal:
    model, version = item.model, item.price_version
    if not version:
        return Decimal(0)  # dispatched while the model had no price
    price = prices.get((model, version))
    if price is None:
        raise StatementError(f"price version {version!r} of model {model!r} is used, and is not registered")
    if price.currency != currency:
        raise StatementError(
            f"price version {version!r} of model {model!r} is in {price.currency}, and the statement in {currency}"
        )
    return unit_price(price, item.token_class, item.multiplier)
