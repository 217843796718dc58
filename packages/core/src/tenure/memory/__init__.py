"""
The stores in memory: the contracts' executable meaning.

They exclude callers in one process only, which is right for a single instance and for tests, and wrong for everything
else: three instances would each have their own, and all three would take "the" lock.
"""

from tenure.memory.locks import InMemoryLockStore, open_memory_store
from tenure.memory.records import InMemoryIdempotencyStore, open_memory_idempotency_store

__all__ = ["InMemoryIdempotencyStore", "InMemoryLockStore", "open_memory_idempotency_store", "open_memory_store"]
