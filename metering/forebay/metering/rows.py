"""Usage records as rows of the ledger's table (pure)."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from forebay.metering.records import Quantities, UsageRecord
from forebay.metering.tables import CLASSES, usage_records

# What a record says; the rest of a row is the database's.
COLUMNS = tuple(
    column.name for column in usage_records.c if column.name not in {"entry", "charge_hour", "period", "recorded_at"}
)
_EPOCH_S = 946_684_800.0
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799.0  # the year 9999


def moment(seconds: float) -> datetime:
    """Unix seconds as Postgres's own `to_timestamp` makes them, to the last microsecond: `started_at` is a part of a
    record's identity, and programs before this one let Postgres convert it. What no date can be is the nearest one."""
    return _EPOCH + timedelta(microseconds=round((min(max(seconds, 0.0), _LATEST) - _EPOCH_S) * 1e6))


def month(at: datetime) -> date:
    return date(at.year, at.month, 1)


def row(record: UsageRecord) -> tuple[Any, ...]:
    """In the order of `COLUMNS`."""
    a = record.attempt
    return (
        a.request_id, a.attempt, a.tenant_id, a.project_id, a.key_id, a.session, a.api, a.model, a.pool, a.endpoint,
        a.engine, a.stream, a.tier_requested, a.tier_used, a.price_version, a.price_multiplier, moment(a.started_at),
        moment(record.ended_at), record.first_byte_s, record.status, record.terminated_by, record.measured,
        record.estimated, record.finish_reason, record.error, *_counts(record.engine), *_counts(record.billable),
    )  # fmt: skip


def _counts(used: Quantities) -> tuple[int, int, int, int, int]:
    return used.input_uncached, used.cache_read, used.cache_write, used.output, used.reasoning


assert COLUMNS[-10:-5] == tuple(f"engine_{name}" for name in CLASSES)
