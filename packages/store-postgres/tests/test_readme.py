"""The examples of the README run as they stand, on the database of the test."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tenure import Locks
from tenure_postgres import PostgresLockStore, create_idempotency_schema_sql, create_schema_sql, startup_check
from tenure_testbed.postgres_access import PostgresAccess, database_of

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(<!-- not run:[^\n]*-->\n)?```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def examples(postgres_server: PostgresAccess, postgres_url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Everything that the examples define, one after the other."""
    database = database_of(postgres_url)
    postgres_server.execute(create_schema_sql(), database)
    postgres_server.execute(create_idempotency_schema_sql(), database)
    postgres_server.execute(
        "CREATE TABLE products (id int PRIMARY KEY, in_stock int NOT NULL, stock_token bigint)", database
    )
    postgres_server.execute("INSERT INTO products VALUES (7, 1)", database)
    names: dict[str, Any] = {"__name__": "readme"}
    for skipped, block in BLOCKS:
        if skipped:
            continue
        code = re.sub(r"postgresql(\+asyncpg)?://shop@localhost/shop", postgres_url, block)
        exec(compile(code, "README.md", "exec"), names)
    return names


def test_the_ten_lines_take_a_lock(examples: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"No other instance is in here. Fencing token: \d{16}\n", capsys.readouterr().out)


def test_the_examples_of_fenced_writes_and_housekeeping_work(
    examples: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        engine, store = examples["engine"], examples["store"]
        assert isinstance(store, PostgresLockStore)
        async with Locks(store, ttl=30) as locks, locks.hold("invoices:stock") as lease:
            assert await examples["count_stock"](engine, lease, 7, 9)
            assert not await examples["count_stock"](engine, lease, 8, 9), "there is no such product"
            await examples["set_stock"](engine, lease, 7, 10)
            await examples["look_and_tidy"](store)
            assert "invoices:stock" in capsys.readouterr().out
        await engine.dispose()
        await examples["lock_engine"].dispose()

    asyncio.run(run())


def test_the_example_of_idempotency_sells_once_and_answers_twice(
    examples: dict[str, Any], postgres_server: PostgresAccess, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(question: str) -> list[list[str]]:
        return postgres_server.execute(question, database_of(postgres_url))

    async def run() -> None:
        await examples["sell_twice"](examples["engine"])
        await examples["engine"].dispose()
        await examples["lock_engine"].dispose()

    capsys.readouterr()
    asyncio.run(run())
    assert capsys.readouterr().out == "sold\nsold\n"
    assert told("SELECT in_stock FROM products WHERE id = 7") == [["0"]]
    assert told("SELECT attempt, effect, response IS NOT NULL FROM tenure_idempotency") == [["1", "t", "t"]]


def test_the_table_of_findings_has_every_code() -> None:
    written = set(re.findall(r'"([a-z-]+)",\n\s+fatal=', Path(startup_check.__file__).read_text(encoding="utf-8")))
    documented = set(re.findall(r"`([a-z-]+)`", README.partition("## At the start")[2].partition("## Housekeeping")[0]))
    assert written
    assert written <= documented


def test_the_examples_that_are_not_run_say_why() -> None:
    assert len(BLOCKS) > 6
    assert sum(bool(skipped) for skipped, _ in BLOCKS) == 1
