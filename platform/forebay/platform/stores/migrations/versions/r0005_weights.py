"""How much a tenant is served beside others where engines are short."""

from alembic import op

revision = "0005"
down_revision = "0004"

_STATEMENTS = (
    """
    ALTER TABLE tenants ADD COLUMN weight double precision NOT NULL DEFAULT 1
        CHECK (weight >= 0.01 AND weight <= 100)
    """,
    """
    CREATE TRIGGER tenant_weight_changed AFTER UPDATE OF weight ON tenants
        FOR EACH ROW EXECUTE FUNCTION forebay_auth_changed('tenant')
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
