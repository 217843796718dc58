"""The shop's Alembic environment; its revisions are in `versions/`."""
