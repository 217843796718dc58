"""The table of the records of idempotency keys, in the shop's own metadata, like that of the locks."""

from cat_store.database.registry import Model
from tenure_postgres import IdempotencyMixin

__all__ = ["RecordRow"]


class RecordRow(IdempotencyMixin, Model):
    """One row a key. Read and written by tenure alone."""

    __tablename__ = "tenure_idempotency"
