"""Stores by URL."""

from typing import Any, Final
from urllib.parse import parse_qsl

from tenure.errors import ConfigurationError
from tenure_sqlite.idempotency_store import SqliteIdempotencyStore
from tenure_sqlite.lock_store import SqliteLockStore

__all__ = ["open_sqlite_idempotency_store", "open_sqlite_store"]

_OPTIONS: Final = ("busy_timeout", "synchronous")
_FORM: Final = 'sqlite:////var/lib/shop/locks.db (four slashes: "///" and an absolute path)'


def open_sqlite_store(url: str) -> SqliteLockStore:
    """
    Open the lock store in the file that a URL names; `tenure.open_store` calls it.

        sqlite:////var/lib/shop/locks.db      an absolute path, after three slashes
        sqlite:///locks.db                    a path from the working directory: for trials

    As in SQLAlchemy; `sqlite+aiosqlite` is the same. After `?` may stand `busy_timeout` ("2s") and `synchronous`
    ("full", "normal"); see `SqliteLockStore`. The file is opened, and made, at the first call.

    Raises:
        ConfigurationError: The URL or an option of it cannot be.
    """
    path, options = _parse(url)
    return SqliteLockStore(path, **options)


def open_sqlite_idempotency_store(url: str) -> SqliteIdempotencyStore:
    """
    Open the idempotency store in the file that a URL names; `tenure.open_idempotency_store` calls it.

    The URL and its options are those of `open_sqlite_store`; it may name the same file.

    Raises:
        ConfigurationError: The URL or an option of it cannot be.
    """
    path, options = _parse(url)
    return SqliteIdempotencyStore(path, **options)


def _parse(url: str) -> tuple[str, dict[str, Any]]:
    base, _, query = url.partition("?")
    _, _, rest = base.partition("://")
    if not rest.startswith("/") or "#" in rest:
        raise ConfigurationError(f"The URL names no file: a SQLite file has no host. Give one such as {_FORM}.")
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ConfigurationError(f"The URL has the option {name!r}: it may have {', '.join(_OPTIONS)}.")
        if name in options:
            raise ConfigurationError(f"The URL has {name} more than once: give it once.")
        options[name] = value
    return rest.removeprefix("/"), options
