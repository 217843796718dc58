"""Each finding of the start-up check, on a server that has the fault and nothing else."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.store import Finding
from tenure_postgres import PostgresIdempotencyStore, PostgresLockStore, create_lock_engine, create_schema_sql
from tenure_postgres.lock_table import LOCKS
from tenure_postgres.startup_check import _columns, _durability, _server
from tenure_postgres.statements import TableName
from tenure_testbed.pgbouncer import PgBouncer
from tenure_testbed.postgres_access import PostgresAccess, database_of
from tenure_testbed.postgres_pair import PostgresPair
from tenure_testbed.pytest_plugin import or_skip

MakeEngine = Callable[..., AsyncEngine]
Check = Callable[..., Awaitable[dict[str, Finding]]]

OF_THE_TEST_BED = {"fsync"}
"""The servers of the tests run with fsync off, which is found each time."""


async def findings_of(store: PostgresLockStore) -> dict[str, Finding]:
    findings = await store.check()
    assert len({finding.code for finding in findings}) == len(findings)
    for finding in findings:
        assert finding.message.endswith(".")
        assert finding.remedy
    return {finding.code: finding for finding in findings}


@pytest.fixture
def check(make_engine: MakeEngine, person: Any) -> Check:
    """Change the table with SQL, then look: with settings of the session or as another role, if asked."""

    async def run(*statements: str, role: str | None = None, **settings: str) -> dict[str, Finding]:
        for statement in statements:
            await person.execute(statement)
        engine = make_engine(connect_args={"server_settings": settings})
        if role is not None:
            url = engine.url.set(username=role)
            engine = make_engine(url.render_as_string(hide_password=False))
        found = await findings_of(PostgresLockStore(engine))
        return {code: finding for code, finding in found.items() if code not in OF_THE_TEST_BED}

    return run


async def test_a_sound_server_has_no_finding(check: Check) -> None:
    assert await check() == {}


async def test_fsync_off_is_told(make_engine: MakeEngine, database_url: str) -> None:
    found = await findings_of(PostgresLockStore(make_engine()))
    assert found["fsync"].fatal is False
    server = {"fsync": True, "synchronous_commit": "on", "synchronous_standbys": False}
    assert list(_durability(server, LOCKS)) == []


TABLE = "ALTER TABLE tenure_locks "

FAULTS: list[tuple[str, bool, str, tuple[str, ...]]] = [
    ("table-missing", True, "create_schema_sql()", ("DROP TABLE tenure_locks",)),
    (
        "table-kind",
        True,
        "the table itself",
        ("ALTER TABLE tenure_locks RENAME TO t", "CREATE VIEW tenure_locks AS TABLE t"),
    ),
    ("table-not-durable", True, "SET LOGGED", (TABLE + "SET UNLOGGED",)),
    ("column-missing", True, "create_schema_sql()", (TABLE + "DROP COLUMN after",)),
    ("column-type", True, "TYPE bigint", (TABLE + "ALTER token TYPE int",)),
    ("column-type", True, "TYPE timestamp with time zone", (TABLE + "ALTER expires_at TYPE timestamp",)),
    ("column-required", True, "DROP NOT NULL", (TABLE + "ALTER owner SET NOT NULL",)),
    ("column-unfilled", True, "DROP NOT NULL", (TABLE + "ADD note text NOT NULL",)),
    ("key-collation", False, 'COLLATE "C"', (TABLE + "ALTER key TYPE text COLLATE ucs_basic",)),
    ("primary-key", True, "ADD PRIMARY KEY (key)", (TABLE + "DROP CONSTRAINT tenure_locks_pkey",)),
    (
        "primary-key",
        True,
        "ADD PRIMARY KEY (key)",
        (TABLE + "DROP CONSTRAINT tenure_locks_pkey, ADD PRIMARY KEY (key, token)",),
    ),
    ("expiry-indexed", False, "Drop the index", ("CREATE INDEX ON tenure_locks (expires_at)",)),
    ("fillfactor", False, "fillfactor = 45", (TABLE + "RESET (fillfactor)",)),
]


@pytest.mark.parametrize(
    ("code", "fatal", "remedy", "statements"), FAULTS, ids=[f"{one[0]}-{one[1]}-{one[2]}" for one in FAULTS]
)
async def test_a_fault_of_the_table_is_found_with_its_remedy(
    check: Check, code: str, fatal: bool, remedy: str, statements: tuple[str, ...]
) -> None:
    found = await check(*statements)
    assert found[code].fatal is fatal
    assert remedy in found[code].remedy
    if code not in ("table-kind", "table-missing"):
        assert set(found) == {code}


async def test_a_column_more_that_fills_itself_is_no_fault(check: Check) -> None:
    assert await check(TABLE + "ADD note text, ADD made timestamptz NOT NULL DEFAULT now()") == {}
    assert await check(TABLE + "ADD number int GENERATED ALWAYS AS IDENTITY") == {}


@pytest.fixture
async def role(postgres_server: PostgresAccess, person: Any) -> Any:
    name = "locks " + database_of(postgres_server.url()).replace('"', "") + "_role"
    await person.execute(f'DROP ROLE IF EXISTS "{name}"')
    await person.execute(f'CREATE ROLE "{name}" LOGIN')
    yield name
    await person.execute(f'DROP OWNED BY "{name}"')
    await person.execute(f'DROP ROLE "{name}"')


async def test_missing_rights_are_found_with_the_grant_that_gives_them(check: Check, role: str) -> None:
    found = await check(f'GRANT SELECT ON tenure_locks TO "{role}"', role=role)
    assert set(found) == {"table-rights"}
    assert found["table-rights"].fatal
    assert found["table-rights"].remedy == f'GRANT INSERT, UPDATE ON "tenure_locks" TO "{role}"'
    assert await check(found["table-rights"].remedy, role=role) == {}


async def test_a_schema_that_the_role_may_not_use_is_found(make_engine: MakeEngine, person: Any, role: str) -> None:
    await person.execute("CREATE SCHEMA ops")
    await person.execute(create_schema_sql(schema="ops"))
    await person.execute(f'GRANT ALL ON ops.tenure_locks TO "{role}"')
    url = make_engine().url.set(username=role)
    store = PostgresLockStore(make_engine(url.render_as_string(hide_password=False)), schema="ops")
    found = await findings_of(store)
    assert found["schema-rights"].fatal
    assert found["schema-rights"].remedy == f'GRANT USAGE ON SCHEMA "ops" TO "{role}"'
    await person.execute(found["schema-rights"].remedy)
    assert set(await findings_of(store)) == OF_THE_TEST_BED


async def test_rows_that_the_role_cannot_see_are_found(check: Check, role: str) -> None:
    found = await check(
        TABLE + "ENABLE ROW LEVEL SECURITY", f'GRANT SELECT, INSERT, UPDATE ON tenure_locks TO "{role}"', role=role
    )
    assert set(found) == {"row-security"}
    assert found["row-security"].fatal


async def test_a_table_in_another_schema_is_looked_for_where_the_store_was_told(
    make_engine: MakeEngine, person: Any
) -> None:
    await person.execute("CREATE SCHEMA ops")
    store = PostgresLockStore(make_engine(), schema="ops")
    assert "in the schema 'ops'" in (await findings_of(store))["table-missing"].message
    await person.execute(create_schema_sql(schema="ops"))
    assert set(await findings_of(store)) == OF_THE_TEST_BED


async def test_a_read_only_session_is_found(check: Check) -> None:
    found = await check(default_transaction_read_only="on")
    assert set(found) == {"read-only"}
    assert found["read-only"].fatal


async def test_a_stricter_default_isolation_is_told(check: Check) -> None:
    found = await check(default_transaction_isolation="serializable")
    assert set(found) == {"isolation"}
    assert not found["isolation"].fatal
    assert "SERIALIZABLE" in found["isolation"].message


async def test_a_commit_that_does_not_wait_for_the_disk_is_told(check: Check) -> None:
    found = await check(synchronous_commit="off")
    assert set(found) == {"synchronous-commit"}
    assert not found["synchronous-commit"].fatal
    assert await check(synchronous_commit="local") == {}, "without a standby, local is all there is"


async def test_an_encoding_that_lacks_characters_is_found(
    make_engine: MakeEngine, postgres_server: PostgresAccess, connect: Any
) -> None:
    name = "latin_" + database_of(postgres_server.create_database())
    postgres_server.execute(f"CREATE DATABASE \"{name}\" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    async with connect(postgres_server.url(name)) as person:
        await person.execute(create_schema_sql())
    engine = make_engine(postgres_server.url(name))
    found = await findings_of(PostgresLockStore(engine))
    await engine.dispose()
    postgres_server.drop_database(name)
    postgres_server.drop_database(name.removeprefix("latin_"))
    assert found["database-encoding"].fatal


def test_a_collation_to_which_keys_that_differ_are_equal_is_found() -> None:
    """The wheel's server is built without ICU, which such a collation needs: asked of the rule itself."""
    kinds = {
        "key": "text",
        "owner": "text",
        "token": "bigint",
        "expires_at": "timestamp with time zone",
        "after": "text",
    }
    columns = {
        name: {"type": kind, "required": False, "filled": False, "collation": "blind", "deterministic": False}
        for name, kind in kinds.items()
    }
    [finding] = _columns(columns, TableName("tenure_locks"), LOCKS)
    assert finding.code == "key-collation"
    assert finding.fatal


def test_a_server_that_is_too_old_is_found() -> None:
    """There is no such server to start: asked of the rule itself."""
    row = {"version": 140011, "version_text": "14.11", "in_recovery": False, "read_only": False, "encoding": "UTF8"}
    [finding] = _server(row | {"isolation": "read committed"}, LOCKS)
    assert finding.code == "server-version"
    assert finding.fatal
    assert "14.11" in finding.message


async def test_a_standby_and_a_standby_that_is_not_waited_for_are_found(make_engine: MakeEngine, connect: Any) -> None:
    with or_skip(), PostgresPair(synchronous=True) as pair:
        async with connect(pair.primary.url()) as person:
            await person.execute(create_schema_sql())
        pair.catch_up()
        found = await findings_of(PostgresLockStore(make_engine(pair.standby.url())))
        assert found["standby"].fatal
        assert "read-only" not in found, "one fault, one finding"
        local = make_engine(pair.primary.url(), connect_args={"server_settings": {"synchronous_commit": "local"}})
        found = await findings_of(PostgresLockStore(local))
        assert "failover" in found["synchronous-commit"].message
        for engine in (local,):
            await engine.dispose()


async def test_the_check_writes_nothing(make_engine: MakeEngine, person: Any) -> None:
    before = await person.fetchval("SELECT pg_current_xact_id()::text::bigint")
    await PostgresLockStore(make_engine()).check()
    assert await person.fetchval("SELECT pg_current_xact_id()::text::bigint") == before + 1


# --------------------------------------------------------------------------------------------------------- a pooler


async def test_prepared_statements_behind_a_pooler_are_told_and_without_them_nothing_is(
    make_engine: MakeEngine, pgbouncer: PgBouncer, database_url: str
) -> None:
    url = pgbouncer.url(database_of(database_url))
    found = await findings_of(PostgresLockStore(make_engine(url)))
    assert "pooler=True" in found["pooler-prepared-statements"].remedy
    engine = create_lock_engine(url, pooler=True)
    assert set(await findings_of(PostgresLockStore(engine))) == OF_THE_TEST_BED
    await engine.dispose()


async def test_a_pooler_that_loses_prepared_statements_in_the_check_is_a_finding_and_no_error(
    make_engine: MakeEngine, pgbouncer: PgBouncer, database_url: str, connect: Any
) -> None:
    url = pgbouncer.url(database_of(database_url))
    # The lock store looks through a new connection each time, whose statements are lost within a check alone.
    store = PostgresIdempotencyStore(make_engine(url, pool_size=1, max_overflow=0))
    await store.check()
    async with connect(url) as other, other.transaction():
        await other.execute("SELECT 1")  # it holds the server that has the statements; the next check gets another
        [finding] = await store.check()
    assert finding.code == "pooler-prepared-statements"
    assert finding.fatal
    assert "pooler=True" in finding.remedy
