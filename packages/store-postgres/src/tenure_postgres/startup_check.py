"""
The start-up check: what would make a store impossible or unsafe on this server, found before its first call.

It reads settings and catalogs and writes nothing. Each finding has a code of its own, says what was found and on what,
and names what to do. Fatal ones are those with which the store cannot work or would break its promise.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]  # it ships no types

from tenure.store import Finding
from tenure_postgres.connection import Session
from tenure_postgres.statements import TableName, read_statement
from tenure_postgres.table import TableShape

__all__ = ["check_server"]

_OLDEST_VERSION: Final = 150000
"""PostgreSQL 15, the oldest that the tests run on."""

_ROOMY_FILLFACTOR: Final = 70
"""Above it pages fill up between two renewals of all their rows; see sql/locks/schema.sql for what was measured."""

_POOLER_REMEDY: Final = (
    "Make the engine with create_lock_engine(url, pooler=True), or with connect_args={'statement_cache_size': 0}; a "
    "PgBouncer from 1.21 on may carry them instead (max_prepared_statements)."
)

Row = Mapping[str, Any]


async def check_server(session: Session, table: TableName, shape: TableShape) -> Sequence[Finding]:
    """
    Look at the server, the table and the role's rights.

    Returns:
        What was found; nothing where all is well.

    Raises: what the driver raises; a server that cannot be reached is not a finding.
    """
    try:
        return await _look(session, table, shape)
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        return [
            Finding(
                "pooler-prepared-statements",
                fatal=True,
                message="A pooler in transaction mode gave a statement to a server that had not prepared it.",
                remedy=_POOLER_REMEDY,
            )
        ]


async def _look(session: Session, table: TableName, shape: TableShape) -> list[Finding]:
    mark = secrets.token_hex(8)
    [server] = await session.fetch(f"{read_statement('check_server')} /* {mark} */", mark)
    findings = [*_server(server, shape), *_durability(server, shape), *_pooler(server, session.driver.get_server_pid())]
    tables = await session.fetch(read_statement("check_table"), table.name, table.schema)
    if not tables:
        return [*findings, _missing(table, server, shape)]
    columns = await session.fetch(read_statement("check_columns"), tables[0]["oid"])
    return [
        *findings,
        *_storage(tables[0], table, shape),
        *_rights(tables[0], table, server["role"], shape),
        *_columns({column["name"]: column for column in columns}, table, shape),
        *_primary_key(tables[0], table, shape),
        *_speed(tables[0], table, shape),
    ]


def _server(server: Row, shape: TableShape) -> Iterator[Finding]:
    if server["version"] < _OLDEST_VERSION:
        yield Finding(
            "server-version",
            fatal=True,
            message=f"The server is PostgreSQL {server['version_text']}; the store needs 15 or newer.",
            remedy="Upgrade it.",
        )
    if server["in_recovery"]:
        yield Finding(
            "standby",
            fatal=True,
            message="The server is a standby: it takes no writes.",
            remedy="Point the engine at the primary; a URL may name all hosts, with target_session_attrs=read-write.",
        )
    elif server["read_only"]:
        yield Finding(
            "read-only",
            fatal=True,
            message="Transactions are read-only here (default_transaction_read_only).",
            remedy="Point the engine at the primary, or set default_transaction_read_only to off for the role "
            f"{server['role']!r}, the database and the server.",
        )
    if server["encoding"] != "UTF8":
        yield Finding(
            "database-encoding",
            fatal=True,
            message=f"The database {server['database']!r} is encoded in {server['encoding']}, which lacks characters "
            "that a key may have.",
            remedy=f"Keep the {shape.kept} in a database that was created with ENCODING 'UTF8'.",
        )
    if server["isolation"] != "read committed":
        yield Finding(
            "isolation",
            fatal=False,
            message=f"Transactions are at {server['isolation'].upper()} by default, so each call begins one of its "
            "own: three round trips instead of one.",
            remedy="Make the engine with create_lock_engine(), or set default_transaction_isolation to "
            f"'read committed' for the role of the {shape.kept}.",
        )


def _durability(server: Row, shape: TableShape) -> Iterator[Finding]:
    if not server["fsync"]:
        yield Finding(
            "fsync",
            fatal=False,
            message=f"fsync is off: a crash of the server's machine loses {shape.kept}, and {shape.at_stake}.",
            remedy="Set fsync to on.",
        )
    asynchronous = server["synchronous_commit"]
    if asynchronous == "off" or (asynchronous == "local" and server["synchronous_standbys"]):
        lost_by = "a crash of the server" if asynchronous == "off" else "a failover"
        yield Finding(
            "synchronous-commit",
            fatal=False,
            message=f"synchronous_commit is {asynchronous}: {lost_by} loses {shape.kept} that were written just "
            f"before, and {shape.at_stake}.",
            remedy=f"Set synchronous_commit to on for the role {server['role']!r}.",
        )
    if server["synchronous_standbys"] and server["client_min_messages"] not in _HEARS_WARNINGS:
        yield Finding(
            "client-min-messages",
            fatal=True,
            message=f"client_min_messages is {server['client_min_messages']}: the server does not tell when a wait for "
            f"the synchronous standby was cancelled: {shape.kept} that a failover loses would count, and "
            f"{shape.at_stake}.",
            remedy=f"Set client_min_messages to warning for the role {server['role']!r}.",
        )


_HEARS_WARNINGS: Final = frozenset(
    {"debug5", "debug4", "debug3", "debug2", "debug1", "debug", "log", "notice", "warning"}
)


def _pooler(server: Row, pid_on_the_wire: int) -> Iterator[Finding]:
    # A pooler makes up the process id that it tells its clients, because their server changes.
    if server["prepared"] and server["backend_pid"] != pid_on_the_wire:
        yield Finding(
            "pooler-prepared-statements",
            fatal=False,
            message="A pooler stands between, and asyncpg keeps prepared statements: in transaction mode calls fail "
            'with "prepared statement does not exist".',
            remedy=_POOLER_REMEDY,
        )


def _missing(table: TableName, server: Row, shape: TableShape) -> Finding:
    where = "on the search path" if table.schema is None else f"in the schema {table.schema!r}"
    return Finding(
        "table-missing",
        fatal=True,
        message=f"There is no table {table.name!r} {where} of the role {server['role']!r} in the database "
        f"{server['database']!r}.",
        remedy=f"Run the migration that creates it ({shape.mixin}, {shape.function}() or {shape.schema_text}() of "
        "tenure_postgres), or give the store its table= and schema=.",
    )


def _storage(found: Row, table: TableName, shape: TableShape) -> Iterator[Finding]:
    if found["kind"] not in ("r", "p"):
        yield Finding(
            "table-kind",
            fatal=True,
            message=f"{table} is no table (relkind {found['kind']!r}).",
            remedy="Give the store the name of the table itself.",
        )
    if found["persistence"] != "p":
        kind = "UNLOGGED: a crash empties it" if found["persistence"] == "u" else "temporary: others do not see it"
        yield Finding(
            "table-not-durable",
            fatal=True,
            message=f"The table {table} is {kind}, and {shape.at_stake}.",
            remedy=f"ALTER TABLE {table} SET LOGGED, or create it as a plain table.",
        )
    if found["row_security"]:
        yield Finding(
            "row-security",
            fatal=True,
            message=f"Row-level security is in force on {table} for this role: rows that it cannot see are "
            f"{shape.unseen}.",
            remedy=f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, or grant the role BYPASSRLS.",
        )


def _rights(found: Row, table: TableName, role: str, shape: TableShape) -> Iterator[Finding]:
    quoted = '"' + role.replace('"', '""') + '"'
    if not found["may_use_schema"]:
        schema = '"' + found["schema"].replace('"', '""') + '"'
        yield Finding(
            "schema-rights",
            fatal=True,
            message=f"The role {role!r} may not use the schema {found['schema']!r}.",
            remedy=f"GRANT USAGE ON SCHEMA {schema} TO {quoted}",
        )
    missing = [right for right in shape.rights if not found[f"may_{right.lower()}"]]
    if missing:
        yield Finding(
            "table-rights",
            fatal=True,
            message=f"The role {role!r} lacks {', '.join(missing)} on {table}.",
            remedy=f"GRANT {', '.join(missing)} ON {table} TO {quoted}",
        )


def _columns(columns: Mapping[str, Row], table: TableName, shape: TableShape) -> Iterator[Finding]:
    for name, wanted in shape.columns.items():
        column, kind = columns.get(name), wanted.sql_type
        if column is None:
            yield Finding(
                "column-missing",
                fatal=True,
                message=f"The table {table} has no column {name}.",
                remedy=f"Create the table as {shape.schema_text}() does; {name} is {kind}.",
            )
        elif column["type"] != kind:
            yield Finding(
                "column-type",
                fatal=True,
                message=f"The column {name} of {table} is {column['type']}; it has to be {kind}.",
                remedy=f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind}",
            )
        elif wanted.nullable and column["required"]:
            yield Finding(
                "column-required",
                fatal=True,
                message=f"The column {name} of {table} is NOT NULL: the store writes null.",
                remedy=f"ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL",
            )
    for name, column in columns.items():
        if name not in shape.columns and column["required"] and not column["filled"]:
            yield Finding(
                "column-unfilled",
                fatal=True,
                message=f"The column {name} of {table} is NOT NULL without a default: the store does not write it.",
                remedy=f"ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL, or give it a default.",
            )
    key = columns.get("key")
    if key is not None and key["type"] == "text" and key["collation"] != "C":
        yield Finding(
            "key-collation",
            fatal=not key["deterministic"],
            message=f"The key of {table} is compared by the collation {key['collation']!r}, not byte by byte"
            + ("." if key["deterministic"] else ": keys that differ count as one."),
            remedy=f'ALTER TABLE {table} ALTER COLUMN key TYPE text COLLATE "C"',
        )


def _primary_key(found: Row, table: TableName, shape: TableShape) -> Iterator[Finding]:
    if found["primary_key"] != ["key"]:
        yield Finding(
            "primary-key",
            fatal=True,
            message=f"The primary key of {table} is not (key), so that nothing keeps two rows of one key apart: "
            f"{shape.at_stake}.",
            remedy=f"ALTER TABLE {table} ADD PRIMARY KEY (key)",
        )


def _speed(found: Row, table: TableName, shape: TableShape) -> Iterator[Finding]:
    if shape.columns["expires_at"].indexed:
        if not found["searchable_by_expiry"]:
            yield Finding(
                "expiry-unindexed",
                fatal=False,
                message=f"No index on {table} begins with expires_at: purge() reads the whole table each time.",
                remedy=f"Create it: CREATE INDEX CONCURRENTLY ON {table} (expires_at)",
            )
    elif found["expiry_indexed"]:
        yield Finding(
            "expiry-indexed",
            fatal=False,
            message=f"An index on {table} has expires_at in it: every renewal writes to the index.",
            remedy="Drop the index; the store never searches by expiry.",
        )
    if "fillfactor" in shape.storage and found["fillfactor"] > _ROOMY_FILLFACTOR:
        yield Finding(
            "fillfactor",
            fatal=False,
            message=f"The fillfactor of {table} is {found['fillfactor']}: renewals find no room on their page and "
            "write to the index as well.",
            remedy=f"ALTER TABLE {table} SET (fillfactor = {shape.storage['fillfactor']})",
        )
