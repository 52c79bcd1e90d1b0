"""What Stripe was told, and how tenants and models are mapped to its customers and meters."""

from alembic import op

revision = "0009"
down_revision = "0008"

_STATEMENTS = (
    """
    CREATE TABLE stripe_customers (
        tenant_id text NOT NULL,  -- refers to no table: outlives a deleted tenant
        effective_from timestamptz NOT NULL,
        customer_id text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (tenant_id, effective_from)
    )
    """,
    """
    CREATE TABLE stripe_meters (
        model text NOT NULL,
        tier text NOT NULL,
        token_class text NOT NULL,
        effective_from timestamptz NOT NULL,
        event_name text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (model, tier, token_class, effective_from)
    )
    """,
    """
    CREATE TABLE stripe_postings (
        identifier text PRIMARY KEY,
        tenant_id text NOT NULL,
        event_name text NOT NULL,
        hour timestamptz NOT NULL,
        seq integer NOT NULL,
        customer_id text NOT NULL,
        kind text NOT NULL,
        value bigint NOT NULL,
        billed_at timestamptz NOT NULL,
        created_at timestamptz NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX stripe_postings_cell ON stripe_postings (tenant_id, event_name, hour, seq)",
    "CREATE INDEX stripe_postings_billed ON stripe_postings (customer_id, event_name, billed_at)",
    "CREATE INDEX stripe_postings_hour ON stripe_postings (hour)",
    """
    CREATE TABLE stripe_steps (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        identifier text NOT NULL,
        step text NOT NULL,
        at timestamptz NOT NULL,
        code text NOT NULL DEFAULT '',
        reference text NOT NULL DEFAULT ''
    )
    """,
    "CREATE INDEX stripe_steps_identifier ON stripe_steps (identifier, id)",
    "CREATE INDEX stripe_steps_void ON stripe_steps (identifier) WHERE step = 'void'",
    "CREATE TABLE stripe_open (identifier text PRIMARY KEY)",  # what is not settled; follows from the others
    """
    CREATE TABLE stripe_notices (
        event_id text PRIMARY KEY,
        type text NOT NULL,
        received_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE stripe_reports (
        event_id text PRIMARY KEY,
        type text NOT NULL,
        errors integer NOT NULL,
        named integer NOT NULL,
        details jsonb NOT NULL,
        read_at timestamptz NOT NULL DEFAULT now()
    )
    """,
)
_TABLES = (
    "stripe_customers", "stripe_meters", "stripe_postings", "stripe_steps", "stripe_notices", "stripe_reports"
)  # fmt: skip


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
    for table in _TABLES:
        op.execute(f"""
            CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
                FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
        """)
