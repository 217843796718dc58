"""The start-up check of the idempotency records: what it finds beside what it finds of locks."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.store import Finding
from tenure_postgres import PostgresIdempotencyStore
from tenure_postgres.record_table import RECORDS
from tenure_postgres.startup_check import _durability
from tenure_testbed.postgres_access import PostgresAccess, database_of

MakeEngine = Callable[..., AsyncEngine]
Check = Callable[..., Awaitable[dict[str, Finding]]]

TABLE = "ALTER TABLE tenure_idempotency "


@pytest.fixture
def check(make_engine: MakeEngine, person: Any) -> Check:
    """Change the table with SQL, then look: with settings of the session or as another role, if asked."""

    async def run(*statements: str, role: str | None = None, **settings: str) -> dict[str, Finding]:
        for statement in statements:
            await person.execute(statement)
        engine = make_engine(connect_args={"server_settings": settings})
        if role is not None:
            engine = make_engine(engine.url.set(username=role).render_as_string(hide_password=False))
        findings = await PostgresIdempotencyStore(engine).check()
        # The servers of the tests run with fsync off, which is found each time.
        return {finding.code: finding for finding in findings if finding.code != "fsync"}

    return run


async def test_a_sound_server_has_no_finding(check: Check) -> None:
    assert await check() == {}


FAULTS: list[tuple[str, bool, str, str]] = [
    ("table-missing", True, "create_idempotency_schema_sql()", "DROP TABLE tenure_idempotency"),
    ("table-not-durable", True, "SET LOGGED", TABLE + "SET UNLOGGED"),
    ("column-missing", True, "create_idempotency_schema_sql()", TABLE + "DROP COLUMN effect"),
    ("column-type", True, "TYPE bytea", TABLE + "ALTER response TYPE text"),
    ("column-type", True, "TYPE integer", TABLE + "ALTER attempt TYPE bigint"),
    ("column-required", True, "DROP NOT NULL", TABLE + "ALTER response SET NOT NULL"),
    ("column-unfilled", True, "DROP NOT NULL", TABLE + "ADD tenant text NOT NULL"),
    ("key-collation", False, 'COLLATE "C"', TABLE + "ALTER key TYPE text COLLATE ucs_basic"),
    ("primary-key", True, "ADD PRIMARY KEY (key)", TABLE + "DROP CONSTRAINT tenure_idempotency_pkey"),
    ("expiry-unindexed", False, "CREATE INDEX CONCURRENTLY", "DROP INDEX ix_tenure_idempotency_expires_at"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{one[0]}-{one[2]}" for one in FAULTS])
async def test_a_fault_of_the_table_is_found_with_its_remedy(check: Check, fault: tuple[str, bool, str, str]) -> None:
    code, fatal, remedy, statement = fault
    found = await check(statement)
    assert set(found) == {code}
    assert found[code].fatal is fatal
    assert remedy in found[code].remedy
    assert "lock" not in found[code].message


async def test_an_index_that_cannot_be_searched_by_the_end_is_not_enough(check: Check) -> None:
    found = await check(
        "DROP INDEX ix_tenure_idempotency_expires_at", "CREATE INDEX ON tenure_idempotency (attempt, expires_at)"
    )
    assert set(found) == {"expiry-unindexed"}
    assert await check("CREATE INDEX ON tenure_idempotency (expires_at, attempt)") == {}


async def test_a_role_without_the_right_to_delete_is_found(
    check: Check, person: Any, postgres_server: PostgresAccess
) -> None:
    role = f"records_{database_of(postgres_server.url())}_role"
    await person.execute(f'DROP ROLE IF EXISTS "{role}"')
    await person.execute(f'CREATE ROLE "{role}" LOGIN')
    try:
        found = await check(f'GRANT SELECT, INSERT, UPDATE ON tenure_idempotency TO "{role}"', role=role)
        assert set(found) == {"table-rights"}
        assert found["table-rights"].fatal
        assert found["table-rights"].remedy == f'GRANT DELETE ON "tenure_idempotency" TO "{role}"'
        assert await check(found["table-rights"].remedy, role=role) == {}
    finally:
        await person.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


async def test_a_commit_that_does_not_wait_for_the_disk_is_told_with_what_it_costs(check: Check) -> None:
    found = await check(synchronous_commit="off")
    assert set(found) == {"synchronous-commit"}
    assert not found["synchronous-commit"].fatal
    assert "a request may be executed twice" in found["synchronous-commit"].message
    [fsync] = _durability({"fsync": False, "synchronous_commit": "on", "synchronous_standbys": False}, RECORDS)
    assert "a request may be executed twice" in fsync.message


async def test_the_check_writes_nothing(make_engine: MakeEngine, person: Any) -> None:
    before = await person.fetchval("SELECT pg_current_xact_id()::text::bigint")
    await PostgresIdempotencyStore(make_engine()).check()
    assert await person.fetchval("SELECT pg_current_xact_id()::text::bigint") == before + 1
