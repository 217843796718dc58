"""
What this store adds to the `tenure` command: `tenure init-postgres`.

Imported by that command alone, through the entry point in the group `tenure.commands`; it needs `tenure[cli]`.
"""

import asyncio
import json as json_text
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, final

import typer
from sqlalchemy import Connection

from tenure.cli.addresses import Address
from tenure.cli.endings import NOT_SO, Stop, say
from tenure.errors import TenureError
from tenure.store import Finding
from tenure_postgres.commands.revision import write_revision
from tenure_postgres.engine import _open
from tenure_postgres.idempotency_store import PostgresIdempotencyStore
from tenure_postgres.lock_store import PostgresLockStore
from tenure_postgres.lock_table import create_lock_table, create_schema_sql
from tenure_postgres.record_table import create_idempotency_schema_sql, create_idempotency_table
from tenure_postgres.statements import DEFAULT_RECORDS_TABLE, DEFAULT_TABLE

__all__ = ["init_postgres"]

_CHOICES: Final = "--sql (print the statements), --url URL (run them) and --alembic DIR (write a revision)"


@final
@dataclass(frozen=True, slots=True)
class _Tables:
    """What to create; None for a table that was not asked for."""

    locks: str | None
    records: str | None
    schema: str | None

    @property
    def names(self) -> list[str]:
        schema = () if self.schema is None else (self.schema,)
        return [".".join((*schema, name)) for name in (self.locks, self.records) if name is not None]

    def sql(self) -> str:
        texts = []
        if self.locks is not None:
            texts.append(create_schema_sql(table=self.locks, schema=self.schema))
        if self.records is not None:
            texts.append(create_idempotency_schema_sql(table=self.records, schema=self.schema))
        return ";\n\n".join(text.rstrip().removesuffix(";") for text in texts) + ";\n"

    def create(self, connection: Connection) -> None:
        if self.locks is not None:
            create_lock_table(connection, table=self.locks, schema=self.schema)
        if self.records is not None:
            create_idempotency_table(connection, table=self.records, schema=self.schema)


def init_postgres(  # noqa: PLR0913 -- one argument an option of the command line
    *,
    url: Annotated[str | None, typer.Option("--url", help="Create them in this database.", show_default=False)] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements; nothing is run.")] = False,
    alembic: Annotated[
        Path | None,
        typer.Option("--alembic", metavar="DIR", help="Write a revision into Alembic's versions.", show_default=False),
    ] = None,
    idempotency: Annotated[bool, typer.Option("--idempotency", help="The table of idempotency records, too.")] = False,
    table: Annotated[str, typer.Option("--table", help="The name of the table of locks.")] = DEFAULT_TABLE,
    records_table: Annotated[
        str, typer.Option("--records-table", help="The name of the table of records.")
    ] = DEFAULT_RECORDS_TABLE,
    schema: Annotated[
        str | None, typer.Option("--schema", help="Their schema, which has to exist.", show_default=False)
    ] = None,
    down_revision: Annotated[
        str | None,
        typer.Option("--down-revision", help="What the revision follows; by default the head.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """
    Create the PostgreSQL tables: as SQL text, in a database, or as an Alembic revision.

    Nothing is changed where a table of the name is there already. With --url it is checked, and the command exits with
    1 where it is one that locks cannot use.

    JSON: {"tables": [...], "sql" or null, "revision": the file's path or null, "findings" (with --url):
    [{"code", "fatal", "message", "remedy"}] or null}
    """
    if sum((url is not None, sql, alembic is not None)) != 1:
        raise Stop(f"Say what to do with the tables: one of {_CHOICES}.")
    if down_revision is not None and alembic is None:
        raise Stop("--down-revision goes with --alembic DIR: it is the revision that the new one follows.")
    tables = _Tables(table, records_table if idempotency else None, schema)
    shape: dict[str, Any] = {"tables": tables.names, "sql": None, "revision": None, "findings": None}
    if sql:
        shape["sql"] = tables.sql()
    elif alembic is not None:
        shape["revision"] = str(write_revision(alembic, tables.locks, tables.records, schema, down_revision))
    elif url is not None:
        shape["findings"] = asyncio.run(_create(Address(url), tables))
    (_print_json if json else _print)(shape)
    if any(finding["fatal"] for finding in shape["findings"] or ()):
        raise typer.Exit(NOT_SO)


async def _create(address: Address, tables: _Tables) -> list[dict[str, Any]]:
    opened = _open(address.url)
    if opened.table is not None or opened.schema is not None:
        raise Stop("The URL names a table or a schema: here they are options, --table and --schema.")
    try:
        async with opened.engine.connect() as connection:
            await connection.run_sync(tables.create)
        findings = list(await PostgresLockStore(opened.engine, table=tables.locks or "", schema=tables.schema).check())
        if tables.records is not None:
            records = PostgresIdempotencyStore(opened.engine, table=tables.records, schema=tables.schema)
            # What is wrong with the server is found by both.
            findings += [found for found in await records.check() if found not in findings]
    except TenureError:
        raise
    except Exception as error:
        raise Stop(
            f"The tables were not created in {address.shown}: {address.tell(error)}. See that the server is up, that "
            "the schema exists, and that the role may create tables in it."
        ) from error
    finally:
        await opened.engine.dispose()
    return [_shape(finding) for finding in findings]


def _shape(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in ("code", "fatal", "message", "remedy")}


def _print_json(shape: dict[str, Any]) -> None:
    sys.stdout.write(f"{json_text.dumps(shape)}\n")


def _print(shape: dict[str, Any]) -> None:
    if shape["sql"] is not None:
        sys.stdout.write(shape["sql"])
        return
    names = ", ".join(shape["tables"])
    if shape["revision"] is not None:
        sys.stdout.write(f"Wrote {shape['revision']}, which creates {names}. Now: alembic upgrade head\n")
        return
    sys.stdout.write(f"There is {names}.\n")
    tell: Callable[[str], None] = say
    for finding in shape["findings"]:
        tell(f"{finding['message']} {finding['remedy']} [{finding['code']}]")
