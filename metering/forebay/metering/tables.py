"""The ledger's tables. The schema itself is in migrations of the platform's stores (0002, 0007); a test keeps the two
alike.

Rows hold ids, counts and names of the catalogue, never text of a tenant, and refer to no other table: they outlive a
deleted tenant. Records, corrections, closed periods and prices refuse UPDATE, DELETE and TRUNCATE by triggers that the
migrations create; a record's `period` and the rollup are kept by triggers as well.
"""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Date, Double, Integer, Numeric, Text

metadata = sa.MetaData()

_TIME = sa.DateTime(timezone=True)
CLASSES = ("input_uncached", "cache_read", "cache_write", "output", "reasoning")


def _counts(prefix: str) -> list[Column[int]]:
    return [Column(f"{prefix}_{name}", BigInteger, nullable=False) for name in CLASSES]


usage_records = sa.Table(  # partitioned by month of `started_at`
    "usage_records",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("entry", Integer, primary_key=True, server_default="0"),
    Column("tenant_id", Text, nullable=False),
    Column("project_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("session", Text, nullable=False, server_default=""),
    Column("api", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("stream", sa.Boolean, nullable=False),
    Column("tier_requested", Text, nullable=False),
    Column("tier_used", Text, nullable=False),
    Column("price_version", Text, nullable=False),
    Column("price_multiplier", Numeric, nullable=False, server_default="1"),
    Column("started_at", _TIME, primary_key=True),
    Column("ended_at", _TIME, nullable=False),
    Column("charge_hour", _TIME, sa.Computed("date_bin('1 hour', ended_at, '1970-01-01 00:00:00+00')"), nullable=False),
    Column("period", Date, nullable=False),
    Column("first_byte_s", Double),
    Column("status", Text, nullable=False),
    Column("terminated_by", Text, nullable=False),
    Column("measured", sa.Boolean, nullable=False),
    Column("estimated", sa.Boolean, nullable=False, server_default=sa.false()),
    Column("finish_reason", Text),
    Column("error", Text),
    *_counts("engine"),
    *_counts("billable"),
    Column("recorded_at", _TIME, nullable=False, server_default=sa.func.now()),
    sa.Index("usage_records_tenant", "tenant_id", "ended_at"),
    sa.Index("usage_records_project", "project_id", "ended_at"),
    sa.Index("usage_records_time", "ended_at", "charge_hour", "period", postgresql_using="brin"),
)

usage_hourly = sa.Table(
    "usage_hourly",
    metadata,
    Column("period", Date, primary_key=True),
    Column("charge_hour", _TIME, primary_key=True),
    Column("tenant_id", Text, primary_key=True),
    Column("project_id", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("api", Text, primary_key=True),
    Column("tier_used", Text, primary_key=True),
    Column("pool", Text, primary_key=True),
    Column("price_version", Text, primary_key=True),
    Column("price_multiplier", Numeric, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in ("requests", "attempts", "unmeasured", "estimated")),
    *_counts("billable"),
    *_counts("engine"),
    sa.Index("usage_hourly_tenant", "tenant_id", "charge_hour"),
    sa.Index("usage_hourly_hour", "charge_hour"),
)

billing_periods = sa.Table(  # those that are closed
    "billing_periods",
    metadata,
    Column("period", Date, primary_key=True),
    Column("closed_at", _TIME, nullable=False, server_default=sa.func.now()),
    Column("closed_by", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
)

usage_corrections = sa.Table(
    "usage_corrections",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("entry", Integer, primary_key=True),
    Column("started_at", _TIME, primary_key=True),
    Column("corrected_at", _TIME, nullable=False, server_default=sa.func.now()),
    Column("corrected_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
)

price_versions = sa.Table(
    "price_versions",
    metadata,
    Column("model", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("effective_from", _TIME, nullable=False),
    Column("currency", Text, nullable=False),
    Column("input", Numeric, nullable=False),
    Column("output", Numeric, nullable=False),
    Column("cache_read", Numeric, nullable=False),
    Column("cache_write", Numeric, nullable=False),
    Column("registered_at", _TIME, nullable=False, server_default=sa.func.now()),
)
