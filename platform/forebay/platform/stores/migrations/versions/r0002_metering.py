"""The ledger: usage records and price versions, both append-only."""

from alembic import op

revision = "0002"
down_revision = "0001"

_STATEMENTS = (
    """
    CREATE TABLE usage_records (
        request_id text NOT NULL,
        attempt integer NOT NULL,
        tenant_id text NOT NULL,  -- ids refer to no table: records outlive a deleted tenant
        project_id text NOT NULL,
        key_id text NOT NULL,
        api text NOT NULL,
        model text NOT NULL,
        pool text NOT NULL,
        endpoint text NOT NULL,
        engine text NOT NULL,
        stream boolean NOT NULL,
        tier_requested text NOT NULL,
        tier_used text NOT NULL,
        price_version text NOT NULL,
        started_at timestamptz NOT NULL,
        ended_at timestamptz NOT NULL,
        first_byte_s double precision,
        status text NOT NULL,
        terminated_by text NOT NULL,
        measured boolean NOT NULL,
        finish_reason text,
        error text,
        engine_input_uncached bigint NOT NULL,
        engine_cache_read bigint NOT NULL,
        engine_cache_write bigint NOT NULL,
        engine_output bigint NOT NULL,
        engine_reasoning bigint NOT NULL,
        billable_input_uncached bigint NOT NULL,
        billable_cache_read bigint NOT NULL,
        billable_cache_write bigint NOT NULL,
        billable_output bigint NOT NULL,
        billable_reasoning bigint NOT NULL,
        recorded_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (request_id, attempt)
    )
    """,
    "CREATE INDEX usage_records_tenant ON usage_records (tenant_id, ended_at)",
    "CREATE INDEX usage_records_project ON usage_records (project_id, ended_at)",
    """
    CREATE TABLE price_versions (
        model text NOT NULL,
        version text NOT NULL,
        effective_from timestamptz NOT NULL,
        currency text NOT NULL,
        input numeric NOT NULL,  -- money is per million tokens
        output numeric NOT NULL,
        cache_read numeric NOT NULL,
        cache_write numeric NOT NULL,
        registered_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (model, version)
    )
    """,
    """
    CREATE FUNCTION forebay_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
    END
    $$
    """,
    """
    CREATE TRIGGER usage_records_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_records
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
    """,
    """
    CREATE TRIGGER price_versions_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON price_versions
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
