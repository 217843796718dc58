"""Orders, their lines, and products."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change."""
    op.create_table(
        "orders",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("customer", sa.String(100), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("total_cents", sa.Integer(), nullable=False),
        sa.Column("placed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("invoice_batch", sa.String(100)),
        sa.Column("invoiced_at", sa.DateTime(timezone=True)),
        sa.Column("sa_orm_sentinel", sa.Integer()),
        sa.CheckConstraint("total_cents >= 0", name=op.f("ck_orders_total_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_orders")),
    )
    op.create_index(
        "ix_orders_due",
        "orders",
        ["placed_at"],
        postgresql_where=sa.text("status = 'placed' AND invoiced_at IS NULL"),
    )
    op.create_index(op.f("ix_orders_invoice_batch"), "orders", ["invoice_batch"])
    op.create_table(
        "products",
        sa.Column("id", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("price_cents", sa.Integer(), nullable=False),
        sa.Column("in_stock", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("in_stock >= 0", name=op.f("ck_products_stock_not_negative")),
        sa.CheckConstraint("price_cents >= 0", name=op.f("ck_products_price_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_products")),
    )
    op.create_table(
        "order_lines",
        sa.Column("order_id", sa.Uuid(), nullable=False),
        sa.Column("product_id", sa.String(100), nullable=False),
        sa.Column("quantity", sa.Integer(), nullable=False),
        sa.Column("price_cents", sa.Integer(), nullable=False),
        sa.CheckConstraint("quantity > 0", name=op.f("ck_order_lines_quantity_positive")),
        sa.ForeignKeyConstraint(
            ["order_id"], ["orders.id"], name=op.f("fk_order_lines_order_id_orders"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["product_id"], ["products.id"], name=op.f("fk_order_lines_product_id_products")),
        sa.PrimaryKeyConstraint("order_id", "product_id", name=op.f("pk_order_lines")),
    )


def downgrade() -> None:
    """Take the change back."""
    op.drop_table("order_lines")
    op.drop_table("products")
    op.drop_table("orders")
