"""Tenants, projects, keys, and the feed by which a change reaches every replica's key cache."""

from alembic import op

revision = "0001"
down_revision = None

_STATEMENTS = (
    """
    CREATE TABLE tenants (
        id text PRIMARY KEY,
        name text, -- null once deleted
        status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'suspended', 'deleted')),
        created_at timestamptz NOT NULL DEFAULT now(),
        suspended_at timestamptz,
        deleted_at timestamptz
    )
    """,
    "CREATE UNIQUE INDEX tenants_name ON tenants (name) WHERE status <> 'deleted'",
    """
    CREATE TABLE projects (
        id text PRIMARY KEY,
        tenant_id text NOT NULL REFERENCES tenants (id),
        name text, -- null once the tenant is deleted
        models text[], -- null allows every model of the catalogue
        created_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    "CREATE UNIQUE INDEX projects_name ON projects (tenant_id, name)",
    """
    CREATE TABLE api_keys (
        id text PRIMARY KEY,
        kind text NOT NULL CHECK (kind IN ('project', 'admin')),
        project_id text REFERENCES projects (id),
        name text,
        prefix text NOT NULL UNIQUE, -- what may be shown: everything before the secret
        hash bytea NOT NULL, -- HMAC-SHA256 of the whole key under the pepper
        pepper_id text NOT NULL,
        scopes text[] NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        expires_at timestamptz,
        revoked_at timestamptz,
        replaced_by text REFERENCES api_keys (id),
        CHECK ((kind = 'project') = (project_id IS NOT NULL))
    )
    """,
    "CREATE INDEX api_keys_project ON api_keys (project_id)",
    """
    CREATE TABLE auth_changes (
        seq bigserial PRIMARY KEY,
        kind text NOT NULL CHECK (kind IN ('tenant', 'project', 'key')),
        id text NOT NULL,
        at timestamptz NOT NULL DEFAULT now()
    )
    """,
    "CREATE INDEX auth_changes_at ON auth_changes (at)",
    """
    CREATE FUNCTION forebay_auth_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        number bigint;
    BEGIN
        -- One writer at a time, so that numbers become visible in their order and a reader that has seen n has seen
        -- all below it. Changes to keys are rare.
        PERFORM pg_advisory_xact_lock(7378413942531512066);
        INSERT INTO auth_changes (kind, id) VALUES (TG_ARGV[0], NEW.id) RETURNING seq INTO number;
        DELETE FROM auth_changes WHERE at < now() - interval '7 days';
        PERFORM pg_notify('forebay_auth', number::text);
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER tenants_changed AFTER UPDATE OF status ON tenants
        FOR EACH ROW EXECUTE FUNCTION forebay_auth_changed('tenant')
    """,
    """
    CREATE TRIGGER projects_changed AFTER UPDATE OF models ON projects
        FOR EACH ROW EXECUTE FUNCTION forebay_auth_changed('project')
    """,
    """
    CREATE TRIGGER api_keys_changed AFTER INSERT OR UPDATE OF revoked_at, expires_at, scopes ON api_keys
        FOR EACH ROW EXECUTE FUNCTION forebay_auth_changed('key')
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
