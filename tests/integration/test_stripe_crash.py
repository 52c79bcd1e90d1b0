"""A process that tells Stripe dies at any point: nothing is lost, and nothing counts twice."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from forebay.metering.stripe import Caller, Journal, Rules, Syncer
from forebay.metering.stripe.plan import hour_of
from tests.integration.told import HOUR, START, Told, serving, stocked, telling

MINUTES, DAYS = timedelta(minutes=10), timedelta(hours=60)
CHANGES = {"intend", "delivered", "step", "checked", "read", "open_session", "send", "cancel", "credit"}
NOVEMBER, DECEMBER = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


class DiedError(Exception):
    pass


class Life:
    """Ends after the `left`-th thing that it changes, here or at Stripe."""

    def __init__(self, left: int, changes: set[str] = CHANGES) -> None:
        self._left = left
        self.changes = changes
        self.over = False

    def step(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.over = True
            raise DiedError

    def calls(self, target: Any) -> Any:
        return _Mortal(target, self)


class _Mortal:
    def __init__(self, target: Any, life: Life) -> None:
        self._target, self._life = target, life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in self._life.changes:
            return found
        if isinstance(self._target, Journal):
            return self._waiting(found)

        def called(*given: Any) -> Any:
            answer = found(*given)
            self._life.step()
            return answer

        return called

    def _waiting(self, found: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*given: Any, **named: Any) -> Any:
            answer = await found(*given, **named)
            self._life.step()
            return answer

        return called


def mortal(told: Told, life: Life) -> Syncer:
    caller = Caller(life.calls(told.api), 20, told.double.moment, told.double.sleep)
    return Syncer(life.calls(told.journal), caller, Rules(), START)


async def corrected(told: Told, tenant: str) -> int:
    """Events to be sent, cancelled and counted against, and one of an old hour that Stripe's sums are asked for."""
    await told.use(START, tenant, output=100)
    told.to(START + 2 * HOUR)
    await told.sync()
    await told.use(START + 40 * HOUR, tenant, output=50)
    told.to(START + 42 * HOUR)
    await told.sync()
    await told.use(START, tenant, output=-30)
    await told.use(START + 40 * HOUR, tenant, output=-5)
    await told.use(START + 41 * HOUR, tenant, output=7)
    await told.use(START + 1 * HOUR, tenant, output=9)
    return 100 - 30 + 50 - 5 + 7 + 9


async def credited(told: Told, tenant: str) -> int:
    """Less of a month whose invoice is final."""
    await told.use(START, tenant, output=50_000)
    told.to(START + 2 * HOUR)
    await told.sync()
    told.to(DECEMBER + 3 * HOUR)
    (customer,) = (name for name in told.double.customers if name.startswith("cus_n"))
    price = next(iter(told.double.invoicing.subscriptions.values()))["items"][0]["price"]
    for one in told.double.invoicing.prices.values():
        price = one["id"] if one["recurring"]["meter"] == "mtr_3" else price
    told.double.invoicing.subscribe({"customer": customer, "items": [{"price": price}]})
    told.double.invoicing.bill(customer, int(NOVEMBER.timestamp()), int(DECEMBER.timestamp()))
    await told.use(START, tenant, output=-20_000)
    await told.use(START + HOUR, tenant, output=11)
    return 50_000 - 20_000 + 11


@pytest.mark.parametrize("work", [corrected, credited])
@pytest.mark.parametrize("later", [MINUTES, DAYS], ids=["minutes later", "days later"])
async def test_whenever_it_dies(database: str, work: Callable[[Told, str], Any], later: timedelta) -> None:
    for steps in count():
        with serving(stocked()) as double:
            double.rate = 1000
            tenant, customer = f"ten_{steps}", f"cus_n{steps}"
            double.customers[customer] = {"id": customer, "object": "customer"}
            async with telling(database, double) as told:
                if steps == 0:
                    await told.mappings.map_meter("smol", "output", "output", told.now)
                await told.mappings.map_customer(tenant, customer, told.now)
                expected = await work(told, tenant)
                life = Life(steps)
                with suppress(DiedError):
                    await mortal(told, life).run()
                double.advance(later.total_seconds())
                done = await told.sync()
                notes = double.invoicing.credit_notes.values()
                less = sum(line["quantity"] for note in notes for line in note["lines_"])
                assert (done.error, [one.hold.reason for one in done.held]) == ("", []), steps
                assert told.counted("output", customer) - less == expected, steps
                assert len(notes) == (work is credited), steps
                if not life.over:
                    break
    assert steps > 5


async def test_a_report_that_comes_before_the_outcome_is_known(database: str) -> None:
    """It died after the request, and Stripe has said meanwhile that it could not count."""
    with serving(stocked()) as double:
        async with telling(database, double) as told:
            await told.map()
            double.customers["cus_1"]["deleted"] = True
            await told.use(START, output=5)
            told.to(START + 2 * HOUR)
            with suppress(DiedError):
                await mortal(told, Life(0, {"send"})).run()
            assert len(double.metering.events) == 1
            (report,) = double.report()
            assert await told.webhook(report)
            double.customers["cus_1"]["deleted"] = False
            done = await told.sync()
            assert [one.hold.reason for one in done.held] == ["rejected"]
            assert len(double.metering.events) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_weeks_of_usage_with_faults_of_every_kind(database: str, seed: int) -> None:
    """Usage, late records and corrections at random, and a Stripe that limits, fails and loses answers."""
    chance = random.Random(seed)
    with serving(stocked()) as double:
        double.rate = 1000
        double.metering.stream_duplicates = chance.choice(["refused", "others taken", "ignored"])
        async with telling(database, double) as told:
            await told.map()
            used: dict[tuple[str, datetime], int] = {}
            paths = ("/v2/billing/meter_event_stream", "/v1/billing/meter_event_adjustments", "/v1/billing/meters")
            for _ in range(40):
                for _ in range(chance.randrange(6)):
                    tenant = chance.choice(["ten_a", "ten_b"])
                    hour = hour_of(told.now) - chance.randrange(60) * HOUR
                    value = chance.randrange(-40, 100)
                    value = max(value, -used.get((tenant, hour), 0))
                    if hour >= START:
                        used[tenant, hour] = used.get((tenant, hour), 0) + value
                        await told.use(hour, tenant, output=value)
                if chance.random() < 0.5:
                    double.fail(chance.choice(paths), chance.choice(["429", "500", "lost", "dropped"]),
                                chance.choice([1, 3, 6, 12]))  # fmt: skip
                if chance.random() < 0.5:
                    await mortal_run(told, chance.randrange(60))
                else:
                    await told.sync()
                double.advance(chance.choice([300, 3600, 4 * 3600, 30 * 3600 if chance.random() < 0.2 else 600]))
            double._faults.clear()
            double.advance(3 * 3600)
            for _ in range(3):
                done = await told.sync()
                double.advance(3 * 3600)
            assert done.held == []
            for tenant, customer in (("ten_a", "cus_1"), ("ten_b", "cus_2")):
                expected = sum(value for (whose, _), value in used.items() if whose == tenant)
                assert told.counted("output", customer) == expected
            assert (await told.reconciled()).equal


class Careless(Journal):
    """Of a process whose connection with the lock has gone, and that has not noticed."""

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        yield True


async def test_two_that_both_think_they_are_alone(database: str) -> None:
    chance = random.Random(5)
    with serving(stocked()) as double:
        double.rate = 1000
        async with telling(database, double) as told:
            await told.map()
            both = [told.new_syncer(Careless(told.engine)) for _ in range(2)]
            used: dict[datetime, int] = {}
            for n in range(12):
                for hour in (START + n * 4 * HOUR, START + chance.randrange(n + 1) * 4 * HOUR):
                    value = max(chance.randrange(-60, 100), -used.get(hour, 0))
                    used[hour] = used.get(hour, 0) + value
                    await told.use(hour, output=value)
                told.to(START + (n * 4 + 2) * HOUR)
                done = await asyncio.gather(*(one.run() for one in both))
                assert [one.error for one in done] == ["", ""]
            await told.sync()
            assert told.counted() == sum(used.values())
            assert (await told.reconciled()).equal


async def mortal_run(told: Told, steps: int) -> None:
    with suppress(DiedError):
        await mortal(told, Life(steps)).run()
