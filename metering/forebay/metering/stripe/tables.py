"""What Stripe was told, and how tenants and models are mapped. The schema itself is in migration 0009.

All but `stripe_open` are append-only. A mapping holds from `effective_from` until the next of the same; an empty one
says that this is not billed through Stripe.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, Text
from sqlalchemy.dialects.postgresql import JSONB

from forebay.metering.tables import metadata

_TIME = sa.DateTime(timezone=True)


def _when(name: str) -> Column[datetime]:
    return Column(name, _TIME, nullable=False, server_default=sa.func.now())


stripe_customers = sa.Table(
    "stripe_customers",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("effective_from", _TIME, primary_key=True),
    Column("customer_id", Text, nullable=False),
    _when("created_at"),
)

stripe_meters = sa.Table(
    "stripe_meters",
    metadata,
    Column("model", Text, primary_key=True),
    Column("tier", Text, primary_key=True),  # '': of any that has no meter of its own
    Column("token_class", Text, primary_key=True),
    Column("effective_from", _TIME, primary_key=True),
    Column("event_name", Text, nullable=False),
    _when("created_at"),
)

stripe_postings = sa.Table(
    "stripe_postings",
    metadata,
    Column("identifier", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("event_name", Text, nullable=False),
    Column("hour", _TIME, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("customer_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("value", BigInteger, nullable=False),
    Column("billed_at", _TIME, nullable=False),
    Column("created_at", _TIME, nullable=False),
    sa.Index("stripe_postings_cell", "tenant_id", "event_name", "hour", "seq", unique=True),
    sa.Index("stripe_postings_billed", "customer_id", "event_name", "billed_at"),
    sa.Index("stripe_postings_hour", "hour"),
)

stripe_steps = sa.Table(
    "stripe_steps",
    metadata,
    Column("id", BigInteger, sa.Identity(always=True), primary_key=True),
    Column("identifier", Text, nullable=False),
    Column("step", Text, nullable=False),
    Column("at", _TIME, nullable=False),
    Column("code", Text, nullable=False, server_default=""),
    Column("reference", Text, nullable=False, server_default=""),
    sa.Index("stripe_steps_identifier", "identifier", "id"),
    sa.Index("stripe_steps_void", "identifier", postgresql_where=sa.text("step = 'void'")),
)

# Those that are not settled: intended, cancelling or rejected. It follows from the others, which need not be read from
# their beginning then.
stripe_open = sa.Table("stripe_open", metadata, Column("identifier", Text, primary_key=True))

stripe_notices = sa.Table(
    "stripe_notices",
    metadata,
    Column("event_id", Text, primary_key=True),
    Column("type", Text, nullable=False),
    _when("received_at"),
)

stripe_reports = sa.Table(
    "stripe_reports",
    metadata,
    Column("event_id", Text, primary_key=True),
    Column("type", Text, nullable=False),
    Column("errors", Integer, nullable=False),
    Column("named", Integer, nullable=False),  # of them, those whose posting is known
    Column("details", JSONB, nullable=False),
    _when("read_at"),
)
