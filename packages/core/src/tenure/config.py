"""
Assembly: a store found by its URL, and a `Locks` from settings whose relations are checked.

In production a store in memory is refused: every instance would take the same lock in a store of its own, and run the
same job, and nothing would look wrong until accounting calls.
"""

import contextlib
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol, Self, cast, final

from tenure._durations import Duration, to_ms, to_seconds
from tenure._keys import check_instance
from tenure._startup import StartupCheck, store_timeout_s
from tenure.errors import ConfigurationError
from tenure.idempotency_store import IdempotencyStore
from tenure.locks import Locks
from tenure.store import LockStore

__all__ = ["OpenedIdempotencyStore", "OpenedStore", "TenureConfig", "open_idempotency_store", "open_store"]

_GROUP: Final = "tenure.stores"
_IDEMPOTENCY_GROUP: Final = "tenure.idempotency_stores"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ENVIRONMENT: Final = "TENURE_ENVIRONMENT"

_PLUGINS: Final = {
    "postgresql": "tenure-postgres",
    "postgres": "tenure-postgres",
    "valkey": "tenure-valkey",
    "valkeys": "tenure-valkey",
    "redis": "tenure-valkey",
    "rediss": "tenure-valkey",
    "sqlite": "tenure-sqlite",
}
"""Who brings the store of a scheme, by what stands before its `+`."""


class OpenedStore(LockStore, Protocol):
    """A lock store with the client that it was opened with; closing it closes the client."""

    async def aclose(self) -> None:
        """Close what was opened."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> Literal[False] | None: ...


class OpenedIdempotencyStore(IdempotencyStore, Protocol):
    """An idempotency store with the client that it was opened with; closing it closes the client."""

    async def aclose(self) -> None:
        """Close what was opened."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> Literal[False] | None: ...


def open_store(url: str, *, allow_in_memory: bool = False, environment: str | None = None) -> OpenedStore:
    """
    Open the store that a URL names, with the plugin that its scheme names.

        async with open_store("postgresql+asyncpg://app@db/shop") as store, Locks(store) as locks:
            ...

    Nothing is sent yet: the client connects at its first call. The store is closed by leaving it, after the `Locks` on
    it was left.

    Args:
        url: `postgresql+asyncpg://…` (tenure-postgres), `valkey://…` (tenure-valkey), `memory://`.
        allow_in_memory: Accept a store in memory in production: right for a single instance only.
        environment: "production" refuses a store in memory; by default the variable TENURE_ENVIRONMENT.

    Raises:
        ConfigurationError: The URL has no scheme, no plugin for it is installed, or it is a store in memory in
            production. The message does not hold the URL, which may hold a password.
    """
    return cast("OpenedStore", _open(url, _GROUP, allow_in_memory=allow_in_memory, environment=environment))


def open_idempotency_store(
    url: str, *, allow_in_memory: bool = False, environment: str | None = None
) -> OpenedIdempotencyStore:
    """
    Open the idempotency store that a URL names, as `open_store` opens a lock store.

        async with open_idempotency_store("valkey://cache:6379") as store, Idempotency(store) as idempotency:
            ...

    Args:
        url: `postgresql+asyncpg://…` (tenure-postgres), `valkey://…` (tenure-valkey), `memory://`.
        allow_in_memory: Accept a store in memory in production: right for a single instance only.
        environment: "production" refuses a store in memory; by default the variable TENURE_ENVIRONMENT.

    Raises:
        ConfigurationError: As `open_store`.
    """
    opened = _open(url, _IDEMPOTENCY_GROUP, allow_in_memory=allow_in_memory, environment=environment)
    return cast("OpenedIdempotencyStore", opened)


def _open(url: str, group: str, *, allow_in_memory: bool, environment: str | None) -> object:
    match = _SCHEME.match(url) if isinstance(url, str) else None  # type: ignore[redundant-expr]  # from a setting
    if match is None:
        raise ConfigurationError(
            'A store URL begins with a scheme, such as "postgresql+asyncpg://", "valkey://" or "memory://"; this one '
            "has none."
        )
    scheme = match[1]
    _refuse_memory_in_production(scheme, environment, allow_in_memory=allow_in_memory)
    # Imported here: it takes a third of the time that importing all of tenure does.
    from importlib.metadata import entry_points

    found = entry_points(group=group, name=scheme)
    if not found:
        raise ConfigurationError(_no_plugin(scheme, {entry.name for entry in entry_points(group=group)}, group))
    factory = next(iter(found)).load()
    opened: object = factory(url)
    return opened


def _refuse_memory_in_production(scheme: str, environment: str | None, *, allow_in_memory: bool) -> None:
    environment = environment or os.environ.get(_ENVIRONMENT, "")
    if scheme == "memory" and environment.lower() == "production" and not allow_in_memory:
        raise ConfigurationError(
            "The store is in memory, and the environment is production: what is in memory excludes callers in this "
            "process only, so every instance would take the same lock and run the same job. Give the URL of a store "
            'that the instances share, such as "postgresql+asyncpg://…", or pass allow_in_memory=True where there is '
            "one instance."
        )


def _no_plugin(scheme: str, installed: set[str], group: str) -> str:
    plugin = _PLUGINS.get(scheme.partition("+")[0])
    if plugin is not None:
        return f'No store is installed for "{scheme}://": pip install {plugin}'
    known = sorted(installed | {"postgresql+asyncpg", "valkey"})
    return (
        f'No store is known for "{scheme}://": the schemes are {", ".join(known)}. A store of your own registers an '
        f'entry point in the group "{group}".'
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TenureConfig:
    """
    The settings of a `Locks`, checked against each other when they are made.

    Attributes:
        store: The store's URL. It is left out of the `repr`, for it may hold a password.
        ttl: How long a lease lives without a renewal.
        instance: This process's name; by default its host and pid.
        store_timeout: How long a store call may take; at most the ttl.
        drain: How long leaving waits for guarded bodies to end.
        startup_check: "warn", "strict" or False.
        environment: "production" refuses a store in memory.
        allow_in_memory: Accept one all the same.

    Raises:
        ConfigurationError: A value, or a relation between two, is wrong.
    """

    store: str = field(repr=False)
    ttl: Duration = 30
    instance: str | None = None
    store_timeout: Duration | None = None
    drain: Duration = 10
    startup_check: StartupCheck = "warn"
    environment: str | None = None
    allow_in_memory: bool = False

    def __post_init__(self) -> None:
        ttl_ms = to_ms(self.ttl, name="ttl")
        to_seconds(self.drain, name="drain")
        if self.instance is not None:
            check_instance(self.instance)
        store_timeout_s(self.store_timeout, ttl_ms / 1000)
        if self.startup_check not in ("warn", "strict", False):
            raise ConfigurationError(f'startup_check is {self.startup_check!r}: it is "warn", "strict" or False.')

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """
        Read TENURE_STORE, TENURE_TTL, TENURE_INSTANCE and the like; durations as "30s" or as seconds.

        Raises:
            ConfigurationError: TENURE_STORE is missing, or a value is wrong; the message names the variable.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for setting in fields(cls):
            variable = f"TENURE_{setting.name.upper()}"
            if environ.get(variable):
                values[setting.name] = _read(setting.name, environ[variable], variable)
        if "store" not in values:
            raise ConfigurationError("TENURE_STORE is not set: give it the store's URL.")
        known = {"store": values.pop("store")}
        made = cls(**known)
        # Made anew with each variable, the ttl before what is compared with it: an error names the one it came with.
        for name, value in values.items():
            known[name] = value
            try:
                made = cls(**known)
            except ConfigurationError as error:
                raise ConfigurationError(f"TENURE_{name.upper()}: {error}") from None
        return made

    @contextlib.asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Locks]:
        """
        Open the store, enter a `Locks` on it, and close both at the end, in the right order.

        Args:
            options: More arguments of `Locks`, such as `hooks`.
        """
        opened = open_store(self.store, allow_in_memory=self.allow_in_memory, environment=self.environment)
        async with opened as store:
            locks = Locks(
                store,
                ttl=self.ttl,
                instance=self.instance,
                store_timeout=self.store_timeout,
                drain=self.drain,
                startup_check=self.startup_check,
                **options,
            )
            async with locks:
                yield locks


def _read(name: str, text: str, variable: str) -> Any:
    if name in ("ttl", "store_timeout", "drain"):
        try:
            return float(text)
        except ValueError:
            return text
    if name == "allow_in_memory" or (name == "startup_check" and text.lower() in ("false", "off", "0")):
        if text.lower() not in ("true", "on", "1", "false", "off", "0"):
            raise ConfigurationError(f"{variable} is neither true nor false.")
        return text.lower() in ("true", "on", "1")
    return text
