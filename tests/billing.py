"""Random usage of one tenant over months, as the hourly rollup holds it, for tests of whatever adds it up."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random

import msgspec

from forebay.metering import Price, Quantities
from forebay.metering.prices import in_force
from forebay.metering.pricing.plans import Included, Plan
from forebay.metering.statements.monthly import Used

CURRENCY = "USD"
MODELS = ("smol", "grande")
MULTIPLIERS = (Decimal(1), Decimal("1.5"), Decimal("0.50"))


def months(year: int, count: int = 12) -> list[date]:
    return [date(year + number // 12, number % 12 + 1, 1) for number in range(count)]


def seconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def price(model: str, version: str, begins: float, rate: str, tenant: str = "") -> Price:
    amount = Decimal(rate)
    return Price(model, version, begins, CURRENCY, amount, amount * 4, amount / 8, amount * 2, tenant)


def year_of_prices(random: Random, year: int, tenant: str) -> list[Price]:
    """A new catalogue price each quarter, and overrides for one model in the middle of two months."""
    found = []
    for month in months(year)[::3]:
        for model in MODELS:
            rate = f"{random.randint(1, 9999)}e-4"
            found.append(price(model, f"{month:%Y-%m}", seconds(month), rate))
    for number, month in enumerate(random.sample(months(year), 2)):
        begins = seconds(month) + random.randint(0, 27 * 86400)
        found.append(price(MODELS[0], f"own-{number}", begins, f"{random.randint(1, 999)}e-5", tenant))
    return found


def year_of_plans(random: Random, year: int, tenant: str) -> list[Plan]:
    """None for the first months, then two, one after the other."""
    first, second = sorted(random.sample(months(year)[1:], 2))
    given = (Included(MODELS[0], "output", random.randint(1, 50_000)), Included(MODELS[1], "cache_read", 10**9))
    return [
        Plan(tenant, "start", first, CURRENCY, Decimal("0.05"), given),
        Plan(tenant, "more", second, CURRENCY, Decimal(random.randint(1, 3)), given[:1]),
    ]


def rows_of(random: Random, year: int, version_at: "Versions", count: int) -> Iterator[Used]:
    """Originals, some of them late by months, and for some a reversal and a replacement in a later period."""
    all_months = months(year)
    for _ in range(count):
        hour = seconds(all_months[0]) + random.randint(0, 365 * 24 - 1) * 3600
        charged = datetime.fromtimestamp(hour, UTC).month - 1
        period = all_months[min(11, charged + random.choice((0, 0, 0, 0, 1, 3)))]
        model = random.choice(MODELS)
        version = version_at(model, hour)
        used = Used(period, hour, model, version, random.choice(MULTIPLIERS), _quantities(random), 1)
        yield used
        if random.random() < 0.2:
            later = all_months[min(11, all_months.index(period) + random.choice((0, 1, 2)))]
            yield msgspec.structs.replace(used, period=later, billable=negated(used.billable), requests=-1)
            if random.random() < 0.7:
                fewer = Quantities(output=random.randint(0, used.billable.output))
                yield msgspec.structs.replace(used, period=later, billable=fewer)


class Versions:
    """The version that usage is dispatched at, as the front door chooses it."""

    def __init__(self, prices: list[Price]) -> None:
        self._own = [one for one in prices if one.tenant_id]
        self._catalogue = [one for one in prices if not one.tenant_id]

    def __call__(self, model: str, at: float) -> str:
        found = in_force(self._own, [one for one in self._catalogue if one.model == model], model, at)
        return found.version if found else ""


def negated(used: Quantities) -> Quantities:
    return Quantities(*(-getattr(used, name) for name in used.__struct_fields__))


def _quantities(random: Random) -> Quantities:
    output = random.randint(0, 3000)
    return Quantities(random.randint(0, 9000), random.randint(0, 90_000), random.randint(0, 300), output, output // 3)
