"""
Engines for locks: the small pool of its own that a busy application wants, and the stores that a URL opens.

A renewal that waits for a connection is a renewal that comes late. An application that keeps all connections of its
pool busy loses its leases to its own load; a handful of connections for locks alone cannot be starved by it.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import asyncpg  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure._durations import Duration, to_ms
from tenure.errors import ConfigurationError
from tenure_postgres.idempotency_store import PostgresIdempotencyStore
from tenure_postgres.lock_store import PostgresLockStore
from tenure_postgres.statements import DEFAULT_RECORDS_TABLE, DEFAULT_TABLE

__all__ = ["create_lock_engine", "open_postgres_idempotency_store", "open_postgres_store"]

_DRIVER: Final = "postgresql+asyncpg"
_SCHEMES: Final = frozenset({"postgres", "postgresql", _DRIVER})

_BACKSTOP_MS: Final = 1000
"""
How much later than the server the client gives up, in milliseconds: a server that answers is to say itself that it
cancelled the statement, and the connection stays; the client's own end is for one that does not answer.
"""

_NUMBERS: Final = ("statement_cache_size", "max_cached_statement_lifetime", "max_cacheable_statement_size")
_LISTS: Final = frozenset({"host", "port"})
"""What a URL may have more than once: several servers, in SQLAlchemy's form of them. Of two of anything else, one would
be dropped without a word, and `sslmode` is no word to drop."""
_OWN: Final = ("table", "schema", "lock_timeout", "pool_size", "pool_timeout", "statement_timeout", "pooler")


def create_lock_engine(  # noqa: PLR0913 -- keywords with defaults, one a decision
    url: str | URL,
    *,
    pool_size: int = 5,
    pool_timeout: Duration = 3,
    connect_timeout: Duration = 3,
    statement_timeout: Duration = 5,
    pooler: bool = False,
    connect_args: Mapping[str, Any] | None = None,
    **engine_options: Any,
) -> AsyncEngine:
    """
    Make an engine for locks alone: a small pool, short time-outs, nothing secret in its errors.

    Args:
        url: `postgresql://`, `postgres://` or `postgresql+asyncpg://`, with one host or several
            (`postgresql://user@one,two:5433/app`: the one that takes writes is used, and after a failover the other).
            Options that libpq knows (`sslmode`, `application_name`) and arguments of `asyncpg.connect` may follow `?`.
        pool_size: Connections at most. A call takes about a millisecond of one; five carry some thousand a second.
        pool_timeout: How long a call waits for a connection.
        connect_timeout: How long opening one may take; asyncpg's own default is a minute.
        statement_timeout: When the server gives up a statement. The client gives up a second later, so that a
            connection to a server that does not answer is not waited for until TCP gives up.
        pooler: Whether a pooler in transaction mode (PgBouncer) stands between. No prepared statements are kept, and
            nothing is set for the session, which a pooler refuses or gives to somebody else.
        connect_args: More arguments of `asyncpg.connect`, which win.
        engine_options: More arguments of `create_async_engine`, which win; with a `poolclass` the two about the pool
            are left out.

    Raises:
        ConfigurationError: The URL is not one of PostgreSQL on asyncpg, or says something twice.
    """
    target, arguments, session = _read_url(url)
    client_s = (to_ms(statement_timeout, name="statement_timeout") + _BACKSTOP_MS) / 1000
    settings = {"application_name": "tenure"}
    if pooler:
        arguments = {"statement_cache_size": 0} | arguments
    else:
        settings |= {
            # One round trip a call, whatever the database's default is.
            "default_transaction_isolation": "read committed",
            "statement_timeout": f"{to_ms(statement_timeout, name='statement_timeout')}ms",
        }
    defaults = {
        "timeout": to_ms(connect_timeout, name="connect_timeout") / 1000,
        "command_timeout": client_s,
        "server_settings": {name: value for name, value in settings.items() if name not in session},
    }
    pool = {
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": to_ms(pool_timeout, name="pool_timeout") / 1000,
    }
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "hide_parameters": True}
    options |= {} if "poolclass" in engine_options else pool
    options |= engine_options
    return create_async_engine(target, connect_args=defaults | arguments | dict(connect_args or {}), **options)


def open_postgres_store(url: str) -> PostgresLockStore:
    """
    Open the lock store behind a URL; `tenure.open_store` calls it. Nothing is connected before the first call.

    Args:
        url: As for `create_lock_engine`. After `?` may stand `table`, `schema`, `lock_timeout` (see
            `PostgresLockStore`), `pool_size`, `pool_timeout`, `statement_timeout` and `pooler=true`.

    Returns:
        A store that owns its engine: leave it with `async with`, or call `aclose()`.

    Raises:
        ConfigurationError: The URL is not one of PostgreSQL on asyncpg, or an option of it cannot be.
    """
    opened = _open(url)
    return PostgresLockStore(
        opened.engine,
        table=opened.table or DEFAULT_TABLE,
        schema=opened.schema,
        lock_timeout=opened.lock_timeout,
        owns_engine=True,
    )


def open_postgres_idempotency_store(url: str) -> PostgresIdempotencyStore:
    """
    Open the idempotency store behind a URL. Nothing is connected before the first call.

    Args:
        url: As for `open_postgres_store`; `table` and `schema` are those of the idempotency records.

    Returns:
        A store that owns its engine: leave it with `async with`, or call `aclose()`.

    Raises:
        ConfigurationError: The URL is not one of PostgreSQL on asyncpg, or an option of it cannot be.
    """
    opened = _open(url)
    return PostgresIdempotencyStore(
        opened.engine,
        table=opened.table or DEFAULT_RECORDS_TABLE,
        schema=opened.schema,
        lock_timeout=opened.lock_timeout,
        owns_engine=True,
    )


class _Opened(NamedTuple):
    """What a URL says: an engine, and the options of a store on it."""

    engine: AsyncEngine
    table: str | None
    schema: str | None
    lock_timeout: str


def _open(url: str) -> _Opened:
    target = _parse(url)
    own = {name: _single(name, target.query[name]) for name in _OWN if name in target.query}
    engine = create_lock_engine(
        target.difference_update_query(_OWN),
        pool_size=_whole(own.get("pool_size", "5"), "pool_size"),
        pool_timeout=own.get("pool_timeout", "3s"),
        statement_timeout=own.get("statement_timeout", "5s"),
        pooler=_flag(own.get("pooler", "false")),
    )
    return _Opened(engine, own.get("table"), own.get("schema"), own.get("lock_timeout", "2s"))


def _parse(url: str | URL) -> URL:
    """A SQLAlchemy URL of ours; several hosts become its form of them."""
    text, hosts = (url, []) if isinstance(url, URL) else _split_hosts(url)
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        # Not the URL itself: it may hold a password.
        raise ConfigurationError("The URL is none: give one such as postgresql://user@host:5432/database.") from None
    if parsed.drivername not in _SCHEMES:
        raise ConfigurationError(
            f"The URL begins with {parsed.drivername}://: the store needs PostgreSQL on asyncpg. Begin it with "
            "postgresql:// (the application's own engine may use another driver)."
        )
    parsed = parsed.set(drivername=_DRIVER)
    if hosts:
        parsed = parsed.update_query_dict({"host": hosts})
        if "target_session_attrs" not in parsed.query:
            parsed = parsed.update_query_dict({"target_session_attrs": "read-write"})
    return parsed


def _split_hosts(url: object) -> tuple[str, list[str]]:
    """Take several hosts out of a URL, for which SQLAlchemy has a form of its own (`?host=a:1&host=b:2`)."""
    if not isinstance(url, str):
        raise ConfigurationError(f"The URL is a {type(url).__name__}: give a str or SQLAlchemy's URL.")
    found = re.fullmatch(r"([^:/?#]+://(?:[^@/]*@)?)([^/?]*)(.*)", url, re.DOTALL)
    if found is None or "," not in found[2]:
        return url, []
    hosts = [host if re.search(r":\d+$", host) else f"{host}:5432" for host in found[2].split(",")]
    return found[1] + found[3], hosts


def _read_url(url: str | URL) -> tuple[URL, dict[str, Any], Mapping[str, Any]]:
    """Part a URL into what SQLAlchemy reads, arguments of `asyncpg.connect`, and what asyncpg reads from a DSN."""
    parsed = _parse(url)
    single = {name: _single(name, value) for name, value in parsed.query.items() if name not in _LISTS}
    if "ssl" in single and "sslmode" in single:
        raise ConfigurationError("The URL has ssl and sslmode, and only ssl would count: give sslmode alone.")
    arguments: dict[str, Any] = {name: _whole(single[name], name) for name in _NUMBERS if name in single}
    if "connect_timeout" in single:  # libpq's word, in seconds
        arguments["timeout"] = _whole(single["connect_timeout"], "connect_timeout")
    read = {*arguments, "connect_timeout", *inspect.signature(asyncpg.connect).parameters}
    # The rest asyncpg knows in a DSN, as libpq does: sslmode, sslrootcert, options, and settings of the session.
    others = {name: value for name, value in single.items() if name not in read and not name.startswith("prepared_")}
    if others:
        arguments["dsn"] = "postgresql://?" + urlencode(others)
    return parsed.difference_update_query([*arguments, "connect_timeout", *others]), arguments, others


def _single(name: str, value: str | tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"The URL has {name} more than once: give it once.")
    return value


def _whole(value: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,9}", value, re.ASCII):
        raise ConfigurationError(f"The URL's {name} is {value!r}: it has to be a whole number.")
    return int(value)


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"The URL's pooler is {value!r}: it has to be true or false.")
    return value.lower() in ("true", "1")
