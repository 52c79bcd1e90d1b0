"""Limits of keys, projects and tenants, which reach every replica the way changes to keys do."""

from alembic import op

revision = "0004"
down_revision = "0003"

_STATEMENTS = (
    """
    CREATE TABLE limits (
        owner text NOT NULL, -- the id of a key, project or tenant
        level text NOT NULL CHECK (level IN ('key', 'project', 'tenant')),
        model text NOT NULL, -- empty: all models together
        requests_per_minute bigint, -- null: unlimited, as with all that follow
        input_tokens_per_minute bigint,
        output_tokens_per_minute bigint,
        concurrent_requests bigint,
        queued_requests bigint,
        PRIMARY KEY (owner, model)
    )
    """,
    """
    CREATE FUNCTION forebay_limits_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        changed limits;
        number bigint;
    BEGIN
        IF TG_OP = 'DELETE' THEN changed := OLD; ELSE changed := NEW; END IF;
        PERFORM pg_advisory_xact_lock(7378413942531512066); -- as in forebay_auth_changed
        INSERT INTO auth_changes (kind, id) VALUES (changed.level, changed.owner) RETURNING seq INTO number;
        DELETE FROM auth_changes WHERE at < now() - interval '7 days';
        PERFORM pg_notify('forebay_auth', number::text);
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER limits_changed AFTER INSERT OR UPDATE OR DELETE ON limits
        FOR EACH ROW EXECUTE FUNCTION forebay_limits_changed()
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
