"""Periods, corrections and the rollup, over a real ledger."""

import asyncio
from datetime import UTC, date, datetime
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.metering import BookError, Books, Ledger, Quantities, UsageQuery
from tests.metered import attempt, record

OCTOBER, NOVEMBER = date(2026, 10, 1), date(2026, 11, 1)


def at(year: int, month: int, day: int = 2) -> float:
    return datetime(year, month, day, 10, tzinfo=UTC).timestamp()


async def rows(engine: AsyncEngine, sql: str) -> list[tuple[Any, ...]]:
    async with engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(sql))]


async def test_records_lie_by_month_and_those_of_a_mad_clock_are_not_lost(engine: AsyncEngine) -> None:
    ledger = Ledger(engine)
    mine = [record(attempt(n, started_at=when)) for n, when in enumerate(
        (at(2026, 9), at(2026, 10, 31), at(1971, 1), at(9999, 12), -5.0, 1e18, at(2026, 12)), 1)]  # fmt: skip
    assert await ledger.insert(mine) == 7
    assert await ledger.insert([*mine, *mine]) == 0
    assert await Ledger(engine).insert(mine) == 0
    found = dict(await rows(engine, "SELECT tableoid::regclass::text, count(*) FROM usage_records GROUP BY 1"))
    assert found["usage_records_other"] == 4
    assert found["usage_records_2026_09"] == found["usage_records_2026_10"] == 1
    assert (await Books(engine).verify()).rows == 0


async def test_a_month_that_began_among_the_others_stays_there(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE usage_records_2026_12"))
    async with engine.begin() as connection:  # as a program that makes no partitions
        await connection.execute(text(OLD), {"records": OLD_RECORD})
    ledger = Ledger(engine)
    await ledger.insert([record(attempt(2, started_at=at(2026, 12)))])
    assert await rows(engine, "SELECT DISTINCT tableoid::regclass::text FROM usage_records") == [
        ("usage_records_other",)
    ]


@pytest.mark.parametrize("statement", [
    "DELETE FROM usage_records_2026_12",
    "TRUNCATE usage_records_2026_12",
    "UPDATE usage_records_other SET attempt = 2",
    "DELETE FROM billing_periods",
    "UPDATE usage_corrections SET reason = ''",
])  # fmt: skip
async def test_partitions_and_books_are_append_only(engine: AsyncEngine, statement: str) -> None:
    with pytest.raises(DBAPIError, match="append-only"):
        async with engine.begin() as connection:
            await connection.execute(text(statement))


async def test_a_closed_period_stays_closed_and_what_is_late_is_billed_in_the_next(engine: AsyncEngine) -> None:
    ledger, books = Ledger(engine), Books(engine)
    await ledger.insert([record(attempt(1, started_at=at(2026, 10))), record(attempt(2, started_at=at(2026, 11)))])
    with pytest.raises(BookError, match="2026-10 has usage and is open"):
        await books.close(NOVEMBER, "ann")
    closed = await books.close(OCTOBER, "ann")
    assert (closed.requests, closed.attempts, len(closed.digest or "")) == (1, 1, 64)
    with pytest.raises(BookError, match="2026-10 is closed"):
        await books.close(OCTOBER, "ann")
    with pytest.raises(BookError, match="is not over"):
        await books.close(date(2400, 1, 1), "ann")
    await ledger.insert([record(attempt(3, started_at=at(2026, 10))), record(attempt(4, started_at=at(1975, 1)))])
    assert await rows(engine, "SELECT period, count(*) FROM usage_records GROUP BY 1 ORDER BY 1") == [
        (OCTOBER, 1), (NOVEMBER, 3)
    ]  # fmt: skip
    assert [(one.period, one.requests, one.closed_by) for one in await books.periods()] == [
        (OCTOBER, 1, "ann"), (NOVEMBER, 3, None)
    ]  # fmt: skip


async def test_a_period_does_not_close_over_a_difference(engine: AsyncEngine) -> None:
    ledger, books = Ledger(engine), Books(engine)
    await ledger.insert([record(attempt(1, started_at=at(2026, 10)))])
    before = await rows(engine, "SELECT * FROM usage_hourly")
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE usage_hourly SET billable_output = 4"))
    assert (await books.verify()).rows == 2
    assert (await books.verify(NOVEMBER)).rows == 0
    with pytest.raises(BookError, match="2 rows of its rollup and its records differ"):
        await books.close(OCTOBER, "ann")
    assert await books.rebuild() == 1
    assert await rows(engine, "SELECT * FROM usage_hourly") == before
    await books.close(OCTOBER, "ann")


async def test_who_inserts_while_a_period_closes_waits_and_is_billed_in_the_next(engine: AsyncEngine) -> None:
    held = asyncio.Event()

    class Slow:
        async def close(self, connection: AsyncConnection, period: date) -> None:
            held.set()
            await asyncio.sleep(0.2)

    ledger = Ledger(engine)
    await ledger.insert([record(attempt(1, started_at=at(2026, 10)))])
    closing = asyncio.create_task(Books(engine, closings=[Slow()]).close(OCTOBER, "ann"))
    await held.wait()
    await ledger.insert([record(attempt(2, started_at=at(2026, 10)))])
    assert closing.done() or (await closing).attempts == 1
    assert await rows(engine, "SELECT period FROM usage_records WHERE request_id LIKE '%2'") == [(NOVEMBER,)]


async def test_a_correction_takes_back_and_replaces_and_can_be_corrected(engine: AsyncEngine) -> None:
    ledger, books = Ledger(engine), Books(engine)
    await ledger.insert([record(attempt(1, started_at=at(2026, 10)), Quantities(20, 10, 0, 5, 1))])
    await books.close(OCTOBER, "ann")
    request = f"req_{1:032x}"
    first = await books.correct(request, 1, {"output": 3}, by="ann", reason="counted twice")
    assert (first.entry, first.period, first.after) == (2, NOVEMBER, Quantities(20, 10, 0, 3, 1))
    second = await books.correct(request, 1, {"output": 0, "reasoning": 0}, by="bob", reason="no answer at all")
    assert (second.entry, second.before.output) == (4, 3)
    sums = "SELECT sum(billable_output)::int, sum(engine_output)::int, count(*) FROM usage_records"
    assert await rows(engine, sums) == [(0, 5, 5)]
    hourly = "SELECT period, requests, attempts, billable_output, engine_output FROM usage_hourly ORDER BY 1"
    assert await rows(engine, hourly) == [(OCTOBER, 1, 1, 5, 5), (NOVEMBER, 0, 0, -5, 0)]
    assert await rows(engine, "SELECT entry, corrected_by FROM usage_corrections ORDER BY 1") == [
        (1, "ann"), (3, "bob")
    ]  # fmt: skip
    assert (await books.verify()).rows == 0
    (line,) = await ledger.usage(UsageQuery(start=at(2026, 10) - 10, end=at(2026, 10) + 7200))
    assert (line.requests, line.attempts, line.used) == (1, 1, Quantities(20, 10, 0, 0, 0))


@pytest.mark.parametrize(("request_id", "changes", "says"), [
    ("req_none", {"output": 1}, "has no attempt 1 of request 'req_none'"),
    (f"req_{1:032x}", {"output": -1}, "must be from 0"),
    (f"req_{1:032x}", {"output": 10**13}, "must be from 0"),
    (f"req_{1:032x}", {"outputs": 1}, "is no class of tokens"),
    (f"req_{1:032x}", {"output": 5}, "nothing to correct"),
    (f"req_{1:032x}", {"reasoning": 6}, "is a part of output"),
])  # fmt: skip
async def test_nonsense_is_no_correction(
    engine: AsyncEngine, request_id: str, changes: dict[str, int], says: str
) -> None:
    await Ledger(engine).insert([record(1)])
    with pytest.raises(BookError, match=says):
        await Books(engine).correct(request_id, 1, changes, by="ann", reason="why not")
    assert await rows(engine, "SELECT count(*) FROM usage_records") == [(1,)]


async def test_many_who_bring_the_same_records_in_any_order_book_each_once(engine: AsyncEngine) -> None:
    mine = [record(attempt(n, tenant_id=f"ten_{n % 7}", started_at=at(2026, 10 + n % 3))) for n in range(1, 301)]
    added = await asyncio.gather(*(
        Ledger(engine).insert(batch) for batch in (mine, mine[::-1], mine[150:] + mine[:150], mine[::3] + mine)
    ))  # fmt: skip
    assert sum(added) == 300
    assert (await Books(engine).verify()).rows == 0
    assert await rows(engine, "SELECT sum(requests)::int FROM usage_hourly") == [(300,)]


async def test_reports_say_the_same_from_the_rollup_and_from_records(engine: AsyncEngine) -> None:
    ledger = Ledger(engine)
    when = [at(2026, 11) + 400 * n for n in range(40)]
    await ledger.insert([
        record(attempt(n, started_at=start, session="ab" * 16, tenant_id=f"ten_{n % 3}"), Quantities(n, 1, 2, n, 0))
        for n, start in enumerate(when, 1)
    ])  # fmt: skip
    for start, end in ((when[0] - 5, when[-1] + 60), (when[3] + 100, when[30] + 2), (when[3], when[3] + 500)):
        rolled = await ledger.usage(UsageQuery(start=start, end=end, bucket=3600, group_by=("tenant",)))
        plain = await ledger.usage(UsageQuery(start=start, end=end, bucket=3600, group_by=("tenant", "session")))
        assert [(one.start, one.requests, one.attempts, one.used) for one in rolled] == [
            (one.start, one.requests, one.attempts, one.used) for one in plain
        ]
    assert {one.group["session"] for one in plain} == {"ab" * 16}


async def test_the_version_before_writes_into_the_new_schema(engine: AsyncEngine) -> None:
    for _ in range(2):
        async with engine.begin() as connection:
            await connection.execute(text(OLD), {"records": OLD_RECORD})
    assert await rows(engine, "SELECT period, entry, session FROM usage_records") == [(date(2026, 12, 1), 0, "")]
    assert await rows(engine, "SELECT requests, billable_output FROM usage_hourly") == [(1, 5)]


async def test_a_record_that_both_versions_bring_is_one(engine: AsyncEngine) -> None:
    """Python and Postgres round fractions of microseconds in their own ways, and the time is a part of the key."""
    times = [at(2026, 11) + n * 2**-22 for n in range(0, 40_000, 13)]
    async with engine.connect() as connection:
        sql = text("SELECT extract(epoch FROM to_timestamp(t))::text FROM unnest(CAST(:t AS float8[])) WITH ORDINALITY AS u(t, n) ORDER BY n")  # noqa: E501
        theirs = (await connection.execute(sql, {"t": times})).scalars().all()
    from forebay.metering.rows import moment  # noqa: PLC0415

    ours = [moment(one) for one in times]
    assert [f"{int(one.replace(microsecond=0).timestamp())}.{one.microsecond:06}" for one in ours] == theirs


OLD_RECORD = """[{"attempt": {"request_id": "req_old", "attempt": 1, "tenant_id": "ten_a", "project_id": "p",
 "key_id": "k", "api": "completions", "model": "smol", "pool": "smol", "endpoint": "e", "engine": "vllm",
 "stream": false, "tier_requested": "auto", "tier_used": "default", "price_version": "v1", "started_at": 1796119200.25},
 "engine": {"output": 5}, "billable": {"output": 5}, "status": "completed", "terminated_by": "engine", "measured": true,
 "ended_at": 1796119201.5}]"""
OLD = """
INSERT INTO usage_records (
    request_id, attempt, tenant_id, project_id, key_id, api, model, pool, endpoint, engine, stream,
    tier_requested, tier_used, price_version, started_at, ended_at, first_byte_s,
    status, terminated_by, measured, finish_reason, error,
    engine_input_uncached, engine_cache_read, engine_cache_write, engine_output, engine_reasoning,
    billable_input_uncached, billable_cache_read, billable_cache_write, billable_output, billable_reasoning
)
SELECT
    a.request_id, a.attempt, a.tenant_id, a.project_id, a.key_id, a.api, a.model, a.pool, a.endpoint, a.engine,
    a.stream, a.tier_requested, a.tier_used, a.price_version, to_timestamp(a.started_at), to_timestamp(r.ended_at),
    NULL, r.status, r.terminated_by, r.measured, NULL, NULL,
    0, 0, 0, coalesce(e.output, 0), 0, 0, 0, 0, coalesce(b.output, 0), 0
FROM
    json_to_recordset(CAST(:records AS json)) AS r (
        attempt json, engine json, billable json, status text, terminated_by text, measured boolean,
        ended_at double precision
    ),
    json_to_record(r.attempt) AS a (
        request_id text, attempt integer, tenant_id text, project_id text, key_id text, api text, model text, pool text,
        endpoint text, engine text, stream boolean, tier_requested text, tier_used text, price_version text,
        started_at double precision
    ),
    json_to_record(r.engine) AS e (output bigint),
    json_to_record(r.billable) AS b (output bigint)
ON CONFLICT DO NOTHING
"""
