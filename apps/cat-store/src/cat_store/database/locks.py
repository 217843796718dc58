"""The table of the locks, in the shop's own metadata: its migrations look after it like after any other table."""

from cat_store.database.registry import Model
from tenure_postgres import LockMixin

__all__ = ["LockRow"]


class LockRow(LockMixin, Model):
    """One row a key. Read and written by tenure alone."""

    __tablename__ = "tenure_locks"
