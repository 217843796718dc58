"""A store, opened for one look or one step by hand: no `Locks`, no lease, every call bounded."""

import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, final

from tenure._keeper import Keeper
from tenure._keys import check_key
from tenure.cli.addresses import Address
from tenure.cli.endings import Stop
from tenure.clock import SystemClock
from tenure.config import open_idempotency_store, open_store
from tenure.errors import TenureError
from tenure.store import ListsLocks, LockRecord

__all__ = ["Look", "look_at", "refuse_alone", "unreachable"]

_T = TypeVar("_T")

_CALL_S: Final = 10.0
"""How long a call may take, in seconds: a person waits for it, and a store with many keys is searched in steps."""


@final
class Look:
    """
    One store, and calls on it that end.

    Attributes:
        address: Where it is.
        store: The store.
        keeper: Who runs the calls.
        clock: This machine's clock.
    """

    def __init__(self, address: Address, store: Any) -> None:
        self.address = address
        self.store = store
        self.clock = SystemClock()
        self.keeper = Keeper(self.clock, lambda _: None, random.Random())  # noqa: S311 -- it keeps no lease

    async def ask(self, operation: str, call: Awaitable[_T]) -> _T:
        """
        Wait for a call on the store.

        Raises:
            TenureError: As the store says, or it did not answer in time.
            Stop: The driver failed.
        """
        try:
            return await self.keeper.call(operation, call, timeout_s=_CALL_S)
        except TenureError:
            raise
        except Exception as error:
            raise unreachable(self.address, error) from error

    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """
        List the live locks whose key begins with *prefix*, sorted by key.

        Raises:
            Stop: The store cannot tell, or the driver failed.
        """
        if prefix:
            check_key(prefix)
        if not isinstance(self.store, ListsLocks):
            raise Stop(f"A {type(self.store).__name__} cannot tell who holds what: it has no list_locks().")
        return await self.ask("list_locks", self.store.list_locks(prefix))

    async def find(self, key: str) -> LockRecord | None:
        """Find the live lock on *key*, if there is one."""
        check_key(key)
        return next((record for record in await self.list_locks(key) if record.key == key), None)


def unreachable(address: Address, error: BaseException, code: int | None = None) -> Stop:
    """Make the ending for a driver's error."""
    message = (
        f"The store {address.shown} failed: {address.tell(error)}. See that it is up, that the URL is right, and what "
        "`tenure check` says."
    )
    return Stop(message) if code is None else Stop(message, code)


def refuse_alone(store: object) -> None:
    """
    Refuse a store that other processes do not see.

    Raises:
        Stop: It is one.
    """
    if getattr(store, "reach", "cluster") == "process":
        raise Stop(
            "A store in memory is seen by one process alone, and this command is another one: give the URL of the "
            "store that the instances share."
        )


@asynccontextmanager
async def look_at(address: Address, *, idempotency: bool = False, alone: bool = False) -> AsyncIterator[Look]:
    """
    Open a store for a look.

    Args:
        address: Where it is.
        idempotency: Open the store of idempotency records there.
        alone: Accept a store that other processes do not see.
    """
    opened: Any = open_idempotency_store(address.url) if idempotency else open_store(address.url)
    async with opened as store:
        if not alone:
            refuse_alone(store)
        yield Look(address, store)
