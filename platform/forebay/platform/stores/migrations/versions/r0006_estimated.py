"""Records of which the front door counted a part that the engine did not tell."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.execute("ALTER TABLE usage_records ADD COLUMN estimated boolean NOT NULL DEFAULT false")
