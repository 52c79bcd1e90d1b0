"""What past usage would have cost at other prices (pure)."""

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from msgspec import Struct

from forebay.metering.prices import PRICED, Price, charge, rounded, total, unit_price
from forebay.metering.records import Quantities
from forebay.metering.statements.monthly import Prices


class Past(Struct, frozen=True):
    """Sums of a tenant's billable usage at one price."""

    tenant_id: str
    model: str
    price_version: str
    multiplier: Decimal
    billable: Quantities


class Rerated(Struct, frozen=True):
    """Amounts of one tenant, model and class, each rounded; `change` is between the exact ones, then rounded."""

    tenant_id: str
    model: str
    token_class: str
    tokens: int
    charged: Decimal
    draft: Decimal
    change: Decimal


def rerated(past: Iterable[Past], prices: Prices, draft: Price) -> list[Rerated]:
    """Usage of the draft's model, at its price and the tiers' multipliers. Usage without a price was free."""
    tokens: defaultdict[tuple[str, str], int] = defaultdict(int)
    before: defaultdict[tuple[str, str], list[Decimal]] = defaultdict(list)
    after: defaultdict[tuple[str, str], list[Decimal]] = defaultdict(list)
    for row in past:
        if row.model != draft.model:
            continue
        price = prices.get((row.model, row.price_version))
        for name in PRICED:
            count, key = getattr(row.billable, name), (row.tenant_id, name)
            tokens[key] += count
            if price is not None:
                before[key].append(charge(count, unit_price(price, name, row.multiplier)))
            after[key].append(charge(count, unit_price(draft, name, row.multiplier)))
    found = []
    for (tenant, name), count in sorted(tokens.items()):
        old, new = total(before[tenant, name]), total(after[tenant, name])
        if count or old or new:
            change = rounded(total((new, old.copy_negate())))
            found.append(Rerated(tenant, draft.model, name, count, rounded(old), rounded(new), change))
    return found
