"""The table of the locks, and the fencing token of the stock writes: all that tenure adds to a shop's schema."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change."""
    op.create_table(
        "tenure_locks",
        sa.Column("key", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("after", sa.Text()),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_tenure_locks")),
        postgresql_with={"fillfactor": "45", "vacuum_truncate": "off"},
    )
    op.add_column("products", sa.Column("stock_token", sa.BigInteger(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    """Take the change back."""
    op.drop_column("products", "stock_token")
    op.drop_table("tenure_locks")
