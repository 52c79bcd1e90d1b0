"""The ledger's tables. The schema itself is in migrations of the platform's stores (0002, 0003, 0006, 0007); a test
keeps the two alike.

Rows hold ids, counts and names of the catalogue, never text of a tenant, and refer to no other table: they outlive a
deleted tenant. Both tables refuse UPDATE, DELETE and TRUNCATE by triggers that the migration creates.
"""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Double, Integer, Numeric, Text

metadata = sa.MetaData()

_TIME = sa.DateTime(timezone=True)
CLASSES = ("input_uncached", "cache_read", "cache_write", "output", "reasoning")


def _counts(prefix: str) -> list[Column[int]]:
    return [Column(f"{prefix}_{name}", BigInteger, nullable=False) for name in CLASSES]


usage_records = sa.Table(
    "usage_records",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("project_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("api", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("stream", sa.Boolean, nullable=False),
    Column("tier_requested", Text, nullable=False),
    Column("tier_used", Text, nullable=False),
    Column("price_version", Text, nullable=False),
    Column("started_at", _TIME, nullable=False),
    Column("ended_at", _TIME, nullable=False),
    Column("first_byte_s", Double),
    Column("status", Text, nullable=False),
    Column("terminated_by", Text, nullable=False),
    Column("measured", sa.Boolean, nullable=False),
    Column("finish_reason", Text),
    Column("error", Text),
    *_counts("engine"),
    *_counts("billable"),
    Column("recorded_at", _TIME, nullable=False, server_default=sa.func.now()),
    Column("price_multiplier", Numeric, nullable=False, server_default="1"),
    Column("estimated", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("usage_records_tenant", "tenant_id", "ended_at"),
    sa.Index("usage_records_project", "project_id", "ended_at"),
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
    Column("tenant_id", Text, nullable=False, server_default=""),
    sa.Index("price_versions_tenant", "tenant_id"),
)
