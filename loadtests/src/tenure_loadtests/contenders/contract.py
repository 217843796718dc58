"""What the scenarios ask of a contender. Runs in its process: standard library only."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol, Self

__all__ = [
    "TTL_S",
    "Address",
    "AsyncLock",
    "Blocking",
    "BlockingLock",
    "Contender",
    "HeldLeases",
    "HoldsMany",
    "OneAfterAnother",
    "RunsCycles",
    "RunsJobs",
    "load",
]

TTL_S = 30.0
"""How long a lock lives without a renewal, in seconds, for every contender that has such a thing."""


@dataclass(frozen=True, slots=True)
class Address:
    """
    Where the servers are.

    Attributes:
        postgres: `postgresql://user@host:port/database`, or empty.
        valkey: `host:port`, or empty.
        cluster: `host:port` of some nodes of a cluster.
    """

    postgres: str = ""
    valkey: str = ""
    cluster: tuple[str, ...] = ()

    @property
    def valkey_host(self) -> str:
        """The host of the single server."""
        return self.valkey.rpartition(":")[0]

    @property
    def valkey_port(self) -> int:
        """The port of the single server."""
        return int(self.valkey.rpartition(":")[2])

    def with_all_of(self, other: Self) -> Self:
        """This one, and what the other has."""
        return replace(
            self,
            postgres=self.postgres or other.postgres,
            valkey=self.valkey or other.valkey,
            cluster=self.cluster or other.cluster,
        )

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """From what `to_json` gave."""
        return cls(fields["postgres"], fields["valkey"], tuple(fields["cluster"]))


class AsyncLock(Protocol):
    """One task's lock on one key: taken and given back in turns."""

    async def acquire(self) -> object:
        """Take the key, waiting for it for as long as it takes."""
        ...

    async def release(self) -> object:
        """Give it back."""
        ...


class BlockingLock(Protocol):
    """One thread's lock on one key."""

    def acquire(self) -> object:
        """Take the key, waiting for it for as long as it takes."""
        ...

    def release(self) -> object:
        """Give it back."""
        ...


class Contender(ABC):
    """
    A library, or a floor, under measurement.

    Args:
        address: Where the servers are.
        options: What tells this contender from another of its class.
    """

    distributions: Sequence[str] = ()
    """The distributions whose versions stand in the record."""

    def __init__(self, address: Address, **options: Any) -> None:
        self.address = address
        self.options = options

    @abstractmethod
    async def open(self, tasks: int) -> None:
        """Connect, for that many tasks at once."""

    @abstractmethod
    async def close(self) -> None:
        """Close what was opened."""

    @abstractmethod
    def lock(self, key: str) -> AsyncLock:
        """One task's lock on *key*."""

    def versions(self) -> dict[str, str]:
        """The versions of its distributions, as they are installed here."""
        return {name: found for name in self.distributions if (found := _version(name))}


class Blocking(Contender):
    """A contender whose locks block their thread: the worker gives each task a thread."""

    def lock(self, key: str) -> AsyncLock:
        """It has none of this kind."""
        raise NotImplementedError(f"{type(self).__name__} blocks: ask for blocking_lock({key!r}).")

    @abstractmethod
    def blocking_lock(self, key: str) -> BlockingLock:
        """One thread's lock on *key*."""


class RunsCycles(Contender):
    """A program that measures itself, such as pgbench: it has no locks to hand out."""

    def lock(self, key: str) -> AsyncLock:
        """It has none."""
        raise NotImplementedError(f"{type(self).__name__} runs its own cycles and has no lock for {key!r}.")

    @abstractmethod
    async def run_cycles(self, tasks: int, seconds: float) -> Mapping[str, float]:
        """
        Run cycles in *tasks* clients.

        Returns:
            `cycles`, and of `p50_us` and `p99_us` what the program tells.
        """


class HeldLeases(Protocol):
    """Many leases that a contender holds and renews by itself."""

    def lost(self) -> int:
        """How many were lost so far."""
        ...

    def late_ms(self) -> Sequence[float]:
        """How late each renewal so far was sent, in milliseconds after its due time."""
        ...

    async def let_go(self) -> None:
        """Give all of them back."""
        ...


class HoldsMany(Contender):
    """A contender that keeps leases alive, by itself or in the way that its documentation tells."""

    @abstractmethod
    async def hold(self, keys: Sequence[str], ttl_s: float) -> HeldLeases:
        """Take every one of *keys*, and keep them renewed."""


class RunsJobs(Contender):
    """A contender that runs a job on one of several instances."""

    @abstractmethod
    def job(self, key: str, ran: Callable[[], None]) -> Callable[[], Awaitable[object]]:
        """
        A tick of a job: called on every instance, it runs on one.

        Args:
            key: The job's key, the same on every instance.
            ran: Called where it runs.
        """


class OneAfterAnother:
    """A lock for a library whose locks are used once: each turn makes the next one."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock: Any = None

    async def acquire(self) -> None:
        """Take the key, and fail where the library did not."""
        self._lock = self._make()
        if await self._lock.acquire() is False:
            raise RuntimeError("The library gave up waiting for a key that is free or soon will be.")

    async def release(self) -> None:
        """Give it back."""
        await self._lock.release()


def load(path: str, address: Address, options: Mapping[str, Any]) -> Contender:
    """Make the contender that `module:Class` names, a module of this package."""
    module, _, name = path.partition(":")
    made = getattr(import_module(f"{__package__}.{module}"), name)(address, **options)
    if not isinstance(made, Contender):
        raise TypeError(f"{path} names a {type(made).__name__}, which is no Contender.")
    return made


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
