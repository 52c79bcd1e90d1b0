"""Frozen statements, on the ledger's metadata."""

import sqlalchemy as sa
from sqlalchemy import Column, Numeric, Text

from forebay.metering.tables import metadata

statements = sa.Table(
    "statements",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("period", sa.Date, primary_key=True),
    Column("currency", Text, nullable=False),
    Column("total", Numeric, nullable=False),
    Column("body", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("frozen_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)
