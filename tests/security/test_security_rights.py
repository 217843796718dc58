"""What the rights in the documents allow a role or a user to do, and what they do not: tried as that role."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from tenure import open_store
from tenure.config import open_idempotency_store
from tenure.store import Acquired
from tenure_postgres import create_idempotency_schema_sql, create_schema_sql
from tenure_testbed import ValkeyServer
from tenure_testbed.postgres_access import PostgresAccess, database_of

ROOT = Path(__file__).resolve().parents[2]
ROLE = "tenure_security_role"
PASSWORD = "of-this-test-alone"


@pytest.fixture
def as_shop(postgres_server: PostgresAccess, postgres_url: str) -> Iterator[str]:
    """The URL of a role with the rights of SECURITY.md, in a database with both tables and one of somebody else's."""
    database = database_of(postgres_url)
    granted = "".join(re.findall(r"```sql\n(.+?)```", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.DOTALL))
    assert granted.count("TO shop;") == 3
    for statement in (
        create_schema_sql(),
        create_idempotency_schema_sql(),
        "CREATE TABLE salaries (name text)",
        f"DROP ROLE IF EXISTS {ROLE}",
        f"CREATE ROLE {ROLE} LOGIN",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        granted.replace("TO shop;", f"TO {ROLE};"),
    ):
        postgres_server.execute(statement, database)
    yield re.sub(r"://[^@]*@", f"://{ROLE}@", postgres_url)
    postgres_server.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}", database)


REFUSED = [
    "DELETE FROM tenure_locks",
    "TRUNCATE tenure_locks",
    "DROP TABLE tenure_locks",
    "ALTER TABLE tenure_locks DISABLE TRIGGER ALL",
    "TRUNCATE tenure_idempotency",
    "DROP TABLE tenure_idempotency",
    "CREATE TABLE mine (a int)",
    "CREATE INDEX ON tenure_locks (owner)",
    "SELECT * FROM salaries",
    "CREATE ROLE other",
    "SELECT pg_read_file('/etc/hostname')",
    "COPY tenure_locks TO PROGRAM 'cat'",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'postgres'",
    "ALTER SYSTEM SET fsync = off",
]


async def test_the_role_of_the_document_does_what_the_stores_do_and_nothing_else(as_shop: str) -> None:
    async with open_store(as_shop) as locks, open_idempotency_store(as_shop) as records:
        assert isinstance(await locks.acquire("key", "owner", 60_000), Acquired)
        assert await locks.renew("key", "owner", 60_000)
        assert await locks.release("key", "owner")
        await records.acquire("key", "owner", "fingerprint", 60_000, 60_000)
        assert await records.release("key", "owner")
        both: list[Any] = [locks, records]
        for store in both:
            found = await store.check()
            assert not [finding for finding in found if "right" in finding.code or finding.fatal], found
    person = await asyncpg.connect(as_shop.replace("+asyncpg", ""))
    try:
        allowed = []
        for statement in REFUSED:
            try:
                await person.execute(statement)
            except asyncpg.InsufficientPrivilegeError:
                continue
            allowed.append(statement)
        assert allowed == []
        # The control: it is told of rights, and not of a table that is missing or a statement that is none.
        await person.execute("SELECT * FROM tenure_locks")
    finally:
        await person.close()


def rights(title: str) -> list[str]:
    readme = (ROOT / "packages/store-valkey/README.md").read_text(encoding="utf-8")
    line = re.search(rf"^# {re.escape(title)}\nACL SETUSER shop on >secret (.+)$", readme, re.MULTILINE)
    assert line is not None, f"the README has no rights under {title!r}"
    return line[1].split()


FORBIDDEN = [
    ("SET", "elsewhere", "x"),
    ("GET", "elsewhere"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("ACL", "LIST"),
    ("DEBUG", "SLEEP", "0"),
    ("SHUTDOWN",),
    ("MONITOR",),
    ("SLOWLOG", "GET"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("REPLICAOF", "NO", "ONE"),
    ("SCRIPT", "FLUSH"),
]
SNEAKING = "return redis.call('set', 'elsewhere', 'x')"
"""A key that the script did not declare: the server looks at what is called, too."""


@pytest.mark.parametrize(
    ("title", "own"),
    [("redis-py: one server, Sentinel", "locks:{key}"), ("records, redis-py: one server, Sentinel", "idem:key")],
)
async def test_the_user_of_the_readme_reaches_its_own_keys_and_nothing_else(
    title: str, own: str, valkey_server: ValkeyServer
) -> None:
    valkey_server.execute("ACL", "SETUSER", "shop", "reset", "on", f">{PASSWORD}", *rights(title))
    client: Any = Redis(host="127.0.0.1", port=valkey_server.port, username="shop", password=PASSWORD)
    try:
        allowed = []
        for command in FORBIDDEN:
            try:
                await client.execute_command(*command)
            except NoPermissionError:
                continue
            allowed.append(command)
        assert allowed == []
        with pytest.raises(ResponseError, match=r"(?i)permission|can't access"):
            await client.eval(SNEAKING, 0)
        assert valkey_server.execute("GET", "elsewhere") is None
        # The control: its own keys are there for it.
        await client.eval("return redis.call('pttl', KEYS[1])", 1, own)
    finally:
        await client.aclose()
        valkey_server.execute("ACL", "DELUSER", "shop")
