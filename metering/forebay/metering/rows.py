"""Usage records as rows of the ledger's table (pure)."""

from datetime import UTC, date, datetime, timedelta
from math import isfinite
from typing import Any

from forebay.metering.records import Quantities, UsageRecord
from forebay.metering.tables import CLASSES, usage_records
from forebay.metering.usage import MAX_TOKENS

# What a record says; the rest of a row is the database's.
COLUMNS = tuple(
    column.name for column in usage_records.c if column.name not in {"entry", "charge_hour", "period", "recorded_at"}
)
_MOST_ATTEMPTS = 2**31 - 1
_EPOCH_S = 946_684_800.0
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799.0  # the year 9999


class UnfitError(ValueError):
    """A record that can never be in the ledger, and what of it cannot."""


def moment(seconds: float) -> datetime:
    """Unix seconds as Postgres's own `to_timestamp` makes them, to the last microsecond: `started_at` is a part of a
    record's identity, and programs before this one let Postgres convert it. What no date can be is the nearest one."""
    return _EPOCH + timedelta(microseconds=round((min(max(seconds, 0.0), _LATEST) - _EPOCH_S) * 1e6))


def month(at: datetime) -> date:
    return date(at.year, at.month, 1)


def row(record: UsageRecord) -> tuple[Any, ...]:
    """In the order of `COLUMNS`. Raises `UnfitError`."""
    a = record.attempt
    _check(record)
    return (
        a.request_id, a.attempt, a.tenant_id, a.project_id, a.key_id, a.session, a.api, a.model, a.pool, a.endpoint,
        a.engine, a.stream, a.tier_requested, a.tier_used, a.price_version, a.price_multiplier, moment(a.started_at),
        moment(record.ended_at), record.first_byte_s, record.status, record.terminated_by, record.measured,
        record.estimated, record.finish_reason, record.error, *_counts(record.engine), *_counts(record.billable),
    )  # fmt: skip


def _check(record: UsageRecord) -> None:
    """What the database would not refuse, or the driver in words of its own, and what would make every sum nonsense."""
    a = record.attempt
    counts = (*_counts(record.engine), *_counts(record.billable))
    if not (min(counts) >= 0 and max(counts) <= MAX_TOKENS):
        raise UnfitError(f"counts of tokens must be from 0 to {MAX_TOKENS}")
    if not 0 <= a.attempt <= _MOST_ATTEMPTS:
        raise UnfitError("the number of the attempt is out of range")
    if not (a.price_multiplier.is_finite() and a.price_multiplier >= 0):
        raise UnfitError("the price multiplier is no number")
    if not all(map(isfinite, (a.started_at, record.ended_at, record.first_byte_s or 0.0))):
        raise UnfitError("a time is no number")


def _counts(used: Quantities) -> tuple[int, int, int, int, int]:
    return used.input_uncached, used.cache_read, used.cache_write, used.output, used.reasoning


assert COLUMNS[-10:-5] == tuple(f"engine_{name}" for name in CLASSES)
