"""Which tiers a project may ask for, and by how much the tier that was used multiplies a record's price."""

from alembic import op

revision = "0003"
down_revision = "0002"

_STATEMENTS = (
    "ALTER TABLE projects ADD COLUMN tiers text[]",  # null allows those that are open to everybody
    """
    CREATE TRIGGER project_tiers_changed AFTER UPDATE OF tiers ON projects
        FOR EACH ROW EXECUTE FUNCTION forebay_auth_changed('project')
    """,
    "ALTER TABLE usage_records ADD COLUMN price_multiplier numeric NOT NULL DEFAULT 1",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
