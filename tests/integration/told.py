"""A ledger's usage and a double of Stripe, on virtual time, and what is told between them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering.stripe import Api, Caller, Journal, Mappings, Pass, Reconciliation, Rules, Syncer, reconcile
from forebay.platform.stores.database import create_engine
from tests.doubles.stripe.server import KEY, StripeDouble, serving

START = datetime(2026, 11, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
_CLASSES = ("input_uncached", "cache_read", "cache_write", "output", "reasoning")


class Told:
    """`double` has a meter for each of a model's classes but cache writes, and a customer for each of two tenants."""

    def __init__(self, database: str, engine: AsyncEngine, double: StripeDouble) -> None:
        self.database = database
        self.engine = engine
        self.double = double
        self.api = Api(KEY, api_base=double.url, meter_events_base=double.url)
        self.journal = Journal(engine)
        self.mappings = Mappings(engine)
        self.caller = Caller(self.api, 20, double.moment, double.sleep)
        self.syncer = self.new_syncer()

    def new_syncer(self, journal: Journal | None = None) -> Syncer:
        """As a process that starts has it."""
        return Syncer(journal or self.journal, self.caller, Rules(), START)

    @property
    def now(self) -> datetime:
        return self.double.moment()

    def to(self, moment: datetime) -> None:
        self.double.advance((moment - self.now).total_seconds())

    async def map(self) -> None:
        for tenant, customer in (("ten_a", "cus_1"), ("ten_b", "cus_2")):
            await self.mappings.map_customer(tenant, customer, self.now)
        for token_class, event in (("input_uncached", "input"), ("cache_read", "cached"), ("output", "output")):
            await self.mappings.map_meter("smol", token_class, event, self.now)

    async def use(
        self, hour: datetime, tenant: str = "ten_a", model: str = "smol", tier: str = "default", **tokens: int
    ) -> None:
        """The ledger's rollup of an hour gets more, or less."""
        counts = {f"billable_{name}": tokens.get(name, 0) for name in _CLASSES}
        row: dict[str, Any] = {
            "period": hour.date().replace(day=1), "charge_hour": hour, "tenant_id": tenant, "project_id": "proj_a",
            "key_id": "key_a", "model": model, "api": "chat.completions", "tier_used": tier, "pool": "main",
            "price_version": "v1", "price_multiplier": 1, "requests": 1, "attempts": 1, "unmeasured": 0, "estimated": 0,
            **counts, **{f"engine_{name}": 0 for name in _CLASSES},
        }  # fmt: skip
        added = ", ".join(f"{name} = usage_hourly.{name} + excluded.{name}" for name in counts)
        async with self.engine.begin() as connection:
            await connection.execute(
                text(
                    f"INSERT INTO usage_hourly ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)}) "
                    "ON CONFLICT (period, charge_hour, tenant_id, project_id, key_id, model, api, tier_used, pool, "
                    f"price_version, price_multiplier) DO UPDATE SET {added}"
                ),
                row,
            )

    async def sync(self) -> Pass:
        done = await self.syncer.run()
        self.double.metering.process()
        return done

    def counted(self, event: str = "output", customer: str = "cus_1") -> int:
        """By Stripe, ever."""
        meter = next(one["id"] for one in self.double.metering.meters.values() if one["event_name"] == event)
        return int(self.double.metering.total(meter, customer, 0, 1e11))

    def values(self, event: str = "output") -> list[int]:
        """Of the events that Stripe was sent, cancelled ones left out, in order."""
        return [
            int(one.value) for one in self.double.metering.events if one.event_name == event and not one.cancelled
        ]

    async def reconciled(self, since: datetime = START) -> Reconciliation:
        return await reconcile(self.journal, self.caller, since, self.now)

    async def webhook(self, event_id: str) -> bool:
        kind = self.double.notices[event_id]["type"]
        return await self.journal.notice(event_id, kind)


@asynccontextmanager
async def telling(database: str, double: StripeDouble) -> AsyncIterator[Told]:
    engine = create_engine(database)
    told = Told(database, engine, double)
    try:
        yield told
    finally:
        told.api.close()
        await engine.dispose()
        await asyncio.sleep(0)


def stocked() -> StripeDouble:
    double = StripeDouble(START.timestamp())
    for name in ("A", "B"):
        double._create_customer({"name": name})
    for event in ("input", "cached", "output"):
        given = {"display_name": event, "event_name": event, "default_aggregation": {"formula": "sum"}}
        meter = double.metering.create_meter(given)["id"]
        recurring = {"interval": "month", "usage_type": "metered", "meter": meter}
        price = {"currency": "usd", "unit_amount_decimal": "0.01", "recurring": recurring}
        number = double._create_price(price)["id"]
        for customer in double.customers:
            double._subscribe({"customer": customer, "items": [{"price": number}]})
    return double


__all__ = ["HOUR", "START", "Told", "serving", "stocked", "telling"]
