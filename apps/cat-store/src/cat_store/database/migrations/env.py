"""Alembic's way into the shop's schema. `cat_store.database.migrate` hands it a connection."""

from alembic import context

from cat_store.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_type=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
