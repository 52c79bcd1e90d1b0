"""A year of invoices: what Stripe billed, less what it credited, is what the ledger has, to the last token."""

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from forebay.metering.stripe.plan import hour_of
from tests.integration.told import HOUR, START, Told, serving, stocked, telling

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def told(database: str) -> AsyncIterator[Told]:
    with serving(stocked()) as double:
        double.rate = 1000
        async with telling(database, double) as it:
            yield it


async def test_a_year_of_usage_late_records_and_corrections(told: Told) -> None:
    chance = random.Random(3)
    await told.map()
    used: dict[datetime, int] = {}

    async def use(hour: datetime, value: int) -> None:
        value = max(value, -used.get(hour, 0))
        if hour < START:  # none of Stripe's business
            return
        used[hour] = used.get(hour, 0) + value
        await told.use(hour, output=value)

    month = datetime(2026, 11, 1, tzinfo=UTC)
    while month.year < 2028:
        after = (month + timedelta(days=32)).replace(day=1)
        for _ in range(4):
            now = hour_of(told.now)
            await use(now - chance.randrange(5) * HOUR, chance.randrange(100, 9000))
            if known := [hour for hour in used if hour > now - timedelta(days=90)]:
                await use(chance.choice(known), chance.randrange(-6000, 3000))
            told.to(min(told.now + chance.randrange(3, 180) * HOUR, after - 3 * HOUR))
            assert not (await told.sync()).error
        told.to(after + 10 * MINUTE)
        await told.sync()
        told.to(after + HOUR)
        told.double.invoicing.bill(
            "cus_1", int(month.timestamp()), int(after.timestamp()), status=chance.choice(["open", "paid"])
        )
        told.to(after + 2 * HOUR)
        await told.sync()
        month = after
    await told.sync()
    lines = [line for invoice in told.double.invoicing.invoices.values() for line in invoice["lines_"]]
    billed = sum(line["quantity"] for line in lines)
    credited = sum(told.double.invoicing.credited(line["id"]) for line in lines)
    running = [one for one in told.double.metering.events if one.timestamp >= month.timestamp() and not one.cancelled]
    assert billed - credited + sum(int(one.value) for one in running) == sum(used.values())
    assert len(told.double.invoicing.credit_notes) > 3
    assert await told.journal.unsettled() == []
    found = await told.reconciled()
    assert found.equal
    assert (found.ledger, found.credited) == (sum(used.values()), credited)
