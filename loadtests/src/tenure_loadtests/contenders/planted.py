"""A planted slowdown: a contender that uses as much CPU time again as the one that it is made of."""

import time
from typing import Any

from tenure_loadtests.contenders.contract import Address, AsyncLock, Contender, load

__all__ = ["Doubled"]


class Doubled(Contender):
    """
    Everything costs twice: the guard has to find it.

    Args:
        address: Where the servers are.
        of: The contender that it is made of, `module:Class`.
        options: That one's options.
    """

    def __init__(self, address: Address, *, of: str, **options: Any) -> None:
        super().__init__(address)
        self._inner = load(of, address, options)
        self._mark_s = 0.0

    async def open(self, tasks: int) -> None:
        """Open the other one."""
        await self._inner.open(tasks)
        self._mark_s = time.process_time()

    async def close(self) -> None:
        """Close it."""
        await self._inner.close()

    def lock(self, key: str) -> AsyncLock:
        """Its lock, after which as much is burnt as everything took since the last time."""
        return _BurningLock(self._inner.lock(key), self.burn)

    def burn(self) -> None:
        """Use as much CPU time as was used since the last burn."""
        until = 2 * time.process_time() - self._mark_s
        while time.process_time() < until:
            pass
        self._mark_s = time.process_time()


class _BurningLock:
    def __init__(self, lock: AsyncLock, burn: Any) -> None:
        self._lock = lock
        self._burn = burn

    async def acquire(self) -> None:
        """As the other one."""
        await self._lock.acquire()

    async def release(self) -> None:
        """As the other one, and the burn."""
        await self._lock.release()
        self._burn()
