"""Prices of a tenant's own, which reach every replica the way changes to tenants do, plans, and statements."""

from alembic import op

revision = "0008"
down_revision = "0007"

_STATEMENTS = (
    "ALTER TABLE price_versions ADD COLUMN tenant_id text NOT NULL DEFAULT ''",  # '': everybody
    "CREATE INDEX price_versions_tenant ON price_versions (tenant_id)",
    """
    CREATE FUNCTION forebay_price_added() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        number bigint;
    BEGIN
        PERFORM pg_advisory_xact_lock(7378413942531512066); -- as in forebay_auth_changed
        INSERT INTO auth_changes (kind, id) VALUES ('tenant', NEW.tenant_id) RETURNING seq INTO number;
        PERFORM pg_notify('forebay_auth', number::text);
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER price_added AFTER INSERT ON price_versions
        FOR EACH ROW WHEN (NEW.tenant_id <> '') EXECUTE FUNCTION forebay_price_added()
    """,
    """
    CREATE TABLE plan_versions (
        tenant_id text NOT NULL, -- refers to no table: plans outlive a deleted tenant, as its bills do
        version text NOT NULL,
        effective_from date NOT NULL CHECK (extract(day FROM effective_from) = 1),
        currency text NOT NULL,
        minimum numeric NOT NULL,
        included jsonb NOT NULL, -- of {model, token_class, tokens}
        session_hour numeric, -- null: not charged
        registered_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (tenant_id, version),
        UNIQUE (tenant_id, effective_from)
    )
    """,
    """
    CREATE TRIGGER plan_versions_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON plan_versions
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
    """,
    """
    CREATE TABLE statements (
        tenant_id text NOT NULL,
        period date NOT NULL, -- a closed one
        currency text NOT NULL,
        total numeric NOT NULL,
        body text NOT NULL, -- the statement as JSON
        digest text NOT NULL, -- SHA-256 of the body, in hex
        frozen_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (tenant_id, period)
    )
    """,
    """
    CREATE TRIGGER statements_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON statements
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
