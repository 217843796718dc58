"""What administrators told the jobs, and how far the warehouse's alerts were read."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change."""
    op.create_table(
        "job_controls",
        sa.Column("job", sa.String(100), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True)),
        sa.Column("step_down_until", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_job_controls")),
    )
    op.create_table(
        "warehouse_feed",
        sa.Column("feed", sa.String(100), nullable=False),
        sa.Column("token", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("ledger", sa.String(100), server_default=sa.text("''"), nullable=False),
        sa.Column("position", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("feed", name=op.f("pk_warehouse_feed")),
    )


def downgrade() -> None:
    """Take the change back."""
    op.drop_table("warehouse_feed")
    op.drop_table("job_controls")
