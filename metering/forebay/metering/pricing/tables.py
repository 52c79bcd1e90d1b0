"""Plans, on the ledger's metadata. Prices are in `forebay.metering.tables`."""

import sqlalchemy as sa
from sqlalchemy import Column, Numeric, Text
from sqlalchemy.dialects.postgresql import JSONB

from forebay.metering.tables import metadata

plan_versions = sa.Table(
    "plan_versions",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("effective_from", sa.Date, nullable=False),
    Column("currency", Text, nullable=False),
    Column("minimum", Numeric, nullable=False),
    Column("included", JSONB, nullable=False),
    Column("session_hour", Numeric),
    Column("registered_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.UniqueConstraint("tenant_id", "effective_from"),
)
