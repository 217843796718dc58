"""The table of the records of idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change."""
    op.create_table(
        "tenure_idempotency",
        sa.Column("key", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lock_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("effect", sa.Boolean(), nullable=False),
        sa.Column("response", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_tenure_idempotency")),
        postgresql_with={"vacuum_truncate": "off"},
    )
    op.create_index(op.f("ix_tenure_idempotency_expires_at"), "tenure_idempotency", ["expires_at"])


def downgrade() -> None:
    """Take the change back."""
    op.drop_table("tenure_idempotency")
