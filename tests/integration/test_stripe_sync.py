"""What the ledger has is what Stripe counts: each token once, whatever happens between the two."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from forebay.metering.stripe import MappingError, State
from tests.integration.told import HOUR, START, Told, serving, stocked, telling


@pytest.fixture
async def told(database: str) -> AsyncIterator[Told]:
    with serving(stocked()) as double:
        async with telling(database, double) as it:
            yield it


async def test_an_hour_is_told_once_it_is_over(told: Told) -> None:
    await told.map()
    await told.use(START, input_uncached=10, cache_read=20, output=7)
    await told.use(START, "ten_b", output=9)
    told.to(START + HOUR)
    assert (await told.sync()).accepted == 0  # its last records may come yet
    told.to(START + HOUR + timedelta(minutes=6))
    assert (await told.sync()).accepted == 4
    assert [told.counted(name) for name in ("input", "cached", "output")] == [10, 20, 7]
    assert told.counted("output", "cus_2") == 9
    assert {one.timestamp for one in told.double.metering.events} == {START.timestamp()}
    assert (await told.sync()).accepted == 0
    assert (await told.reconciled()).equal


async def test_more_than_fits_a_request_within_the_rate(told: Told) -> None:
    await told.map()
    for n in range(24):
        await told.use(START + n * HOUR, input_uncached=1, cache_read=1, output=1)
        await told.use(START + n * HOUR, "ten_b", input_uncached=1, cache_read=1, output=1)
    told.to(START + 24 * HOUR + timedelta(minutes=6))
    done = await told.sync()
    assert done.accepted == 6 * 24
    sent = [one for one in told.double.requests if one.endswith("meter_event_stream")]
    assert len(sent) == 2
    assert told.double.limited == 0
    assert told.counted("cached", "cus_2") == 24


async def test_a_tenant_without_a_customer_is_held_until_it_has_one(told: Told) -> None:
    await told.map()
    await told.use(START, "ten_c", output=5)
    told.to(START + 2 * HOUR)
    (held,) = (await told.sync()).unmapped
    assert (held.missing, held.tenant_id, held.token_class, held.tokens) == ("customer", "ten_c", "output", 5)
    told.double._create_customer({"name": "C"})
    await told.mappings.map_customer("ten_c", "cus_3", told.now)
    done = await told.sync()
    assert (done.accepted, done.unmapped) == (1, [])
    assert told.counted("output", "cus_3") == 5


async def test_a_model_without_a_meter_is_shown_until_it_has_one(told: Told) -> None:
    await told.map()
    await told.use(START, model="big", output=5)
    await told.use(START, cache_write=3)
    told.to(START + 2 * HOUR)
    shown = (await told.sync()).unmapped
    found = [(one.missing, one.model, one.token_class, one.tokens) for one in shown]
    assert found == [("meter", "big", "output", 5), ("meter", "smol", "cache_write", 3)]
    await told.mappings.map_meter("big", "output", "output", told.now)
    await told.mappings.map_meter("smol", "cache_write", "", told.now)  # not billed through Stripe
    done = await told.sync()
    assert (done.accepted, done.unmapped) == (1, [])
    assert told.counted() == 5


async def test_a_tier_has_a_meter_of_its_own(told: Told) -> None:
    await told.map()
    await told.mappings.map_meter("smol", "output", "cached", told.now, tier="batch")
    await told.use(START, output=5)
    await told.use(START, tier="batch", output=8)
    told.to(START + 2 * HOUR)
    await told.sync()
    assert (told.counted("output"), told.counted("cached")) == (5, 8)


async def test_a_change_of_a_mapping_leaves_what_was_told(told: Told) -> None:
    await told.map()
    await told.use(START, output=5)
    told.to(START + 2 * HOUR)
    await told.sync()
    told.double._create_customer({"name": "new"})
    with pytest.raises(MappingError, match="told to Stripe"):
        await told.mappings.map_customer("ten_a", "cus_3", told.now, START)
    changed = await told.mappings.map_customer("ten_a", "cus_3", told.now)
    assert changed.effective_from == START + 2 * HOUR
    await told.use(START + HOUR, output=1)
    await told.use(START + 2 * HOUR, output=2)
    told.to(START + 4 * HOUR)
    await told.sync()
    assert (told.counted("output", "cus_1"), told.counted("output", "cus_3")) == (6, 2)


async def test_late_records_are_told_as_the_difference(told: Told) -> None:
    await told.map()
    await told.use(START, output=5)
    told.to(START + 2 * HOUR)
    await told.sync()
    await told.use(START, output=3)
    told.to(START + 50 * HOUR)
    await told.sync()
    assert told.values() == [5, 3]
    assert (await told.reconciled()).equal


async def test_a_correction_within_a_day_cancels_and_replaces(told: Told) -> None:
    await told.map()
    await told.use(START, output=50)
    told.to(START + 2 * HOUR)
    await told.sync()
    await told.use(START, output=-20)
    done = await told.sync()
    assert (done.cancelled, done.accepted) == (1, 1)
    assert told.values() == [30]
    assert (await told.reconciled()).equal


async def test_a_correction_after_a_day_is_counted_against(told: Told) -> None:
    await told.map()
    await told.use(START, output=50)
    told.to(START + 2 * HOUR)
    await told.sync()
    told.to(START + 30 * HOUR)
    await told.use(START, output=-20)
    assert (await told.sync()).accepted == 1
    assert told.values() == [50, -20]
    assert (await told.reconciled()).equal


async def test_after_the_invoice_is_final_less_is_credited_and_more_is_billed_now(told: Told) -> None:
    await told.map()
    november, december = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    await told.use(START, output=50_000)
    await told.use(START + HOUR, output=10)
    told.to(START + 3 * HOUR)
    await told.sync()
    told.to(december + 3 * HOUR)
    await told.use(START, output=-20_000)
    done = await told.sync()
    assert (done.credited, done.accepted) == (0, 0)  # there is no invoice yet
    for customer in ("cus_1", "cus_2"):
        told.double.invoicing.bill(customer, int(november.timestamp()), int(december.timestamp()), status="paid")
    assert (await told.sync()).credited == 1
    (note,) = told.double.invoicing.credit_notes.values()
    assert (note["total"], note["credit_amount"]) == (200, 200)  # cents: 20,000 tokens at a hundredth of one
    assert (await told.sync()).credited == 0
    await told.use(START, output=5)
    await told.sync()
    late = told.double.metering.events[-1]
    assert (int(late.value), late.timestamp) == (5, (december + 2 * HOUR).timestamp())
    found = await told.reconciled()
    assert found.equal
    assert (found.ledger, found.told, found.counted, found.credited) == (30_015, 30_015, 50_015, 20_000)


async def test_credits_below_a_cent_wait_for_more(told: Told) -> None:
    await told.map()
    november, december = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    for n in range(5):
        await told.use(START + n * HOUR, output=50)
    told.to(START + 6 * HOUR)
    await told.sync()
    told.to(december + 2 * HOUR)
    told.double.invoicing.bill("cus_1", int(november.timestamp()), int(december.timestamp()))
    await told.use(START, output=-20)
    assert (await told.sync()).credited == 0
    for n in range(1, 5):
        await told.use(START + n * HOUR, output=-20)
    assert (await told.sync()).credited == 5
    (note,) = told.double.invoicing.credit_notes.values()
    assert note["total"] == 1


async def test_a_credit_that_waits_follows_its_hour(told: Told) -> None:
    """It is not worth a cent; what comes then of the same hour is."""
    await told.map()
    november, december = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    await told.use(START, output=5_000)
    told.to(START + 6 * HOUR)
    await told.sync()
    told.to(december + 2 * HOUR)
    told.double.invoicing.bill("cus_1", int(november.timestamp()), int(december.timestamp()))
    await told.use(START, output=-20)
    assert (await told.sync()).credited == 0
    await told.use(START, output=-400)
    assert (await told.sync()).credited == 1
    assert told.double.invoicing.credited("il_1_2") == 420
    await told.use(START, output=-10)
    assert (await told.sync()).credited == 0
    await told.use(START, output=13)
    assert (await told.sync()).accepted == 1
    assert int(told.double.metering.events[-1].value) == 3
    assert await told.journal.unsettled() == []
    assert (await told.reconciled()).equal


@pytest.mark.parametrize("duplicates", ["refused", "others taken", "ignored"])
async def test_an_answer_that_is_lost_counts_nothing_twice(told: Told, duplicates: str) -> None:
    told.double.metering.stream_duplicates = duplicates  # type: ignore[assignment]
    await told.map()
    await told.use(START, input_uncached=1, cache_read=2, output=3)
    told.to(START + 2 * HOUR)
    told.double.fail("/v2/billing/meter_event_stream", "lost")
    told.double.fail("/v2/billing/meter_event_stream", "dropped", 5)
    assert (await told.sync()).error
    assert [told.counted(name) for name in ("input", "cached", "output")] == [1, 2, 3]
    await told.use(START + HOUR, output=4)
    told.to(START + 3 * HOUR)
    done = await told.sync()
    assert not done.error
    assert [told.counted(name) for name in ("input", "cached", "output")] == [1, 2, 7]
    assert (await told.reconciled()).equal


@pytest.mark.parametrize("how", ["lost", "dropped"])
async def test_beyond_the_window_stripes_own_sums_decide(told: Told, how: str) -> None:
    """An outbox that is replayed after a day bills twice: Stripe has forgotten the identifiers."""
    await told.map()
    await told.use(START, output=3)
    told.to(START + 2 * HOUR)
    told.double.fail("/v2/billing/meter_event_stream", how)
    told.double.fail("/v2/billing/meter_event_stream", "dropped", 5)
    assert (await told.sync()).error
    told.to(START + 60 * HOUR)
    done = await told.sync()
    assert (done.reconciled, done.accepted) == ((1, 0) if how == "lost" else (0, 1))
    assert told.counted() == 3


@pytest.mark.parametrize("how", ["lost", "dropped"])
async def test_stripe_is_away_when_a_month_ends(told: Told, how: str) -> None:
    """What comes with a time of a month whose invoice is final is billed to nobody."""
    await told.map()
    december = datetime(2026, 12, 1, tzinfo=UTC)
    await told.use(december - 2 * HOUR, output=3)
    told.to(december - timedelta(minutes=30))
    told.double.fail("/v2/billing/meter_event_stream", how)
    told.double.fail("/v2/billing/meter_event_stream", "dropped", 5)
    assert (await told.sync()).error
    told.to(december + 5 * HOUR)
    await told.sync()
    assert told.counted() == 3
    months = {datetime.fromtimestamp(one.timestamp, UTC).month for one in told.double.metering.events}
    assert months == ({11} if how == "lost" else {12})
    assert (await told.reconciled()).equal


async def test_an_event_that_was_to_be_cancelled_when_the_month_ended_is_credited(told: Told) -> None:
    await told.map()
    november, december = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    await told.use(december - 3 * HOUR, output=900)
    told.to(december - HOUR)
    await told.sync()
    await told.use(december - 3 * HOUR, output=-400)
    told.double.fail("/v1/billing/meter_event_adjustments", "dropped", 6)
    assert (await told.sync()).error
    told.to(december + 2 * HOUR)
    told.double.invoicing.bill("cus_1", int(november.timestamp()), int(december.timestamp()))
    await told.sync()
    assert told.double.invoicing.credited("il_1_2") == 400
    assert told.counted() == 900
    assert (await told.reconciled()).equal


async def test_a_ledger_that_forgot_what_it_told_tells_nothing_blindly(told: Told) -> None:
    """Restored from an older backup."""
    await told.map()
    await told.use(START, output=3)
    told.to(START + 2 * HOUR)
    await told.sync()
    async with told.engine.begin() as connection:
        for table in ("stripe_postings", "stripe_steps"):
            await connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
            await connection.execute(text(f"DELETE FROM {table}"))
            await connection.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))
    assert (await told.sync()).duplicates == 1  # within the window the identifier tells
    async with told.engine.begin() as connection:
        for table in ("stripe_postings", "stripe_steps"):
            await connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
            await connection.execute(text(f"DELETE FROM {table}"))
            await connection.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))
    told.to(START + 60 * HOUR)
    (held,) = (await told.sync()).held
    assert held.hold.reason == "differs"
    assert told.counted() == 3
    (difference,) = (await told.reconciled()).untold
    assert (difference.ledger, difference.told) == (3, 0)


async def test_an_answer_that_is_lost_is_asked_for_again(told: Told) -> None:
    await told.map()
    await told.use(START, output=3)
    told.to(START + 2 * HOUR)
    told.double.fail("/v2/billing/meter_event_stream", "lost")
    assert (await told.sync()).duplicates == 1
    assert told.counted() == 3


async def test_stripe_limits_and_fails_and_gets_everything(told: Told) -> None:
    await told.map()
    await told.use(START, output=3)
    told.to(START + 2 * HOUR)
    told.double.fail("/v1/billing/meters", "429", 2)
    told.double.fail("/v2/billing/meter_event_session", "500", 3)
    told.double.fail("/v2/billing/meter_event_stream", "429", 3)
    done = await told.sync()
    assert (done.accepted, done.error) == (1, "")


async def test_a_session_is_renewed(told: Told) -> None:
    await told.map()
    for n in range(4):
        await told.use(START + n * HOUR, output=1)
        told.to(START + (n + 1) * HOUR + timedelta(minutes=10))
        await told.sync()
    assert told.counted() == 4
    assert len(told.double.metering.sessions) == 4


async def test_reported_errors_park_what_they_name(told: Told) -> None:
    await told.map()
    await told.use(START, output=3)
    await told.use(START, "ten_b", output=4)
    told.double.customers["cus_2"]["deleted"] = True
    told.to(START + 2 * HOUR)
    await told.sync()
    (report,) = told.double.report()
    assert await told.webhook(report)
    assert not await told.webhook(report)
    done = await told.sync()
    assert done.reports == 1
    (held,) = done.held
    assert (held.cell.key.tenant_id, held.hold.reason, held.hold.tokens) == ("ten_b", "rejected", 4)
    assert held.hold.code == "meter_event_customer_not_found"
    await told.use(START, "ten_b", output=1)
    told.to(START + 3 * HOUR)
    assert (await told.sync()).accepted == 0  # parked until somebody decides
    told.double.customers["cus_2"]["deleted"] = False
    (parked,) = await told.journal.rejected()
    await told.journal.step([parked.identifier], State.VOID, told.now, "resolved")
    assert (await told.sync()).accepted == 1
    assert told.counted("output", "cus_2") == 5
    assert (await told.reconciled()).equal


async def test_errors_that_no_report_names_are_found_by_reconciling(told: Told) -> None:
    await told.map()
    told.double.customers["cus_1"]["deleted"] = True
    for n in range(8):
        await told.use(START + n * HOUR, output=3 + n)
    told.to(START + 9 * HOUR)
    await told.sync()
    (report,) = told.double.report()
    await told.webhook(report)
    told.double.customers["cus_1"]["deleted"] = False
    await told.sync()
    (known,) = await told.journal.reports()
    assert (known["errors"], known["named"]) == (8, 5)
    told.to(START + 12 * HOUR)
    differences = (await told.reconciled()).differences
    assert len(differences) == 3
    assert all(len(one.suspects) == 1 and not one.settling for one in differences)
    names = [one.identifier for one in await told.journal.rejected()]
    names += [one.suspects[0] for one in differences]
    await told.journal.step(names, State.VOID, told.now, "resolved")
    await told.sync()
    assert told.counted() == sum(range(3, 11))
    assert (await told.reconciled()).equal


async def test_a_customer_that_stripe_has_lost_keeps_nobody_else_waiting(told: Told) -> None:
    await told.map()
    del told.double.customers["cus_1"]
    for tenant in ("ten_a", "ten_b"):
        await told.use(START, tenant, output=3)
        await told.use(START + 28 * HOUR, tenant, output=4)
    told.to(START + 30 * HOUR)
    done = await told.sync()
    assert told.counted("output", "cus_2") == 7
    assert [(one.cell.customer_id, one.hold.reason) for one in done.held] == [("cus_1", "differs")]
    assert {one.customer_id for one in (await told.reconciled()).differences} == {"cus_1"}


async def test_two_at_a_time_tell_once(told: Told) -> None:
    await told.map()
    await told.use(START, output=3)
    told.to(START + 2 * HOUR)
    async with told.journal.alone() as alone:
        assert alone
        assert (await told.sync()).busy
    assert (await told.sync()).accepted == 1


async def test_a_key_that_stripe_does_not_take(told: Told) -> None:
    await told.map()
    told.api._client._requestor._options.api_key = "sk_test_other"
    assert "401" in (await told.sync()).error


async def test_what_was_told_cannot_be_changed(told: Told) -> None:
    await told.map()
    await told.use(START, output=3)
    told.to(START + 2 * HOUR)
    await told.sync()
    for table in ("stripe_postings", "stripe_steps", "stripe_customers", "stripe_meters"):
        with pytest.raises(DBAPIError, match="append-only"):
            async with told.engine.begin() as connection:
                await connection.execute(text(f"DELETE FROM {table}"))
