"""The contracts of both stores, on one file that several stores have open; and random calls beside the models."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.store import ChecksServer, ListsLocks, RenewsMany
from tenure.testing import Case, idempotency_histories, idempotency_store_contract, lock_store_contract, run_all
from tenure.testing.state_machines import idempotency_store_machine, lock_store_machine, run_machine
from tenure_sqlite import SqliteIdempotencyStore, SqliteLockStore

CAPABILITIES = (RenewsMany, ListsLocks, ChecksServer)


def lock_cases(make_store: Any, *, ttl_ms: int = 600, **options: Any) -> list[Case]:
    return lock_store_contract(make_store, concurrent=16, capabilities=CAPABILITIES, ttl_ms=ttl_ms, **options)


def record_cases(make_store: Any, *, ttl_ms: int = 600, **options: Any) -> list[Case]:
    return idempotency_store_contract(make_store, concurrent=16, ttl_ms=ttl_ms, **options)


LOCKS = [case.name for case in lock_cases(lambda: None)]
RECORDS = [case.name for case in record_cases(lambda: None)]

# What waits for nothing, and is read first when something breaks; the rest is in the matrix.
ESSENTIAL = {
    "A held key is refused to another owner, however often it asks",
    "Tokens grow across a release",
    "Another owner's renewal is refused, and moves nothing",
    "A release frees the key at once",
}


def _selected(names: list[str]) -> list[Any]:
    return [name if name in ESSENTIAL else pytest.param(name, marks=pytest.mark.matrix) for name in names]


def test_the_cases_of_the_default_run_are_cases_of_the_contract() -> None:
    assert set(LOCKS) >= ESSENTIAL


@pytest.mark.parametrize("name", _selected(LOCKS))
async def test_the_locks_bear_out_that(name: str, file: Path) -> None:
    [case] = [one for one in lock_cases(lambda: SqliteLockStore(file)) if one.name == name]
    await case.run()


@pytest.mark.matrix
@pytest.mark.parametrize("name", RECORDS)
async def test_the_records_bear_out_that(name: str, file: Path) -> None:
    [case] = [one for one in record_cases(lambda: SqliteIdempotencyStore(file)) if one.name == name]
    await case.run()


@pytest.mark.matrix
@pytest.mark.parametrize("synchronous", ["full", "normal"])
async def test_the_contract_of_locks_holds_whichever_way_commits_reach_the_disk(file: Path, synchronous: Any) -> None:
    # All cases at once on one file: whoever writes waits for the others.
    cases = lock_cases(lambda: SqliteLockStore(file, synchronous=synchronous), ttl_ms=2000, rounds=4)
    await run_all(cases)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.matrix
def test_locks_answer_as_the_model_does(file: Path, runner: asyncio.Runner) -> None:
    run_machine(lock_store_machine(lambda: SqliteLockStore(file), runner=runner), examples=8, steps=20, seed=8)


@pytest.mark.matrix
def test_records_answer_as_the_model_does(file: Path, runner: asyncio.Runner) -> None:
    machine = idempotency_store_machine(lambda: SqliteIdempotencyStore(file), runner=runner)
    run_machine(machine, examples=8, steps=20, seed=8)


@pytest.mark.matrix
async def test_random_histories_are_answered_as_the_machine_says(file: Path) -> None:
    async with SqliteIdempotencyStore(file) as one:
        report = await idempotency_histories({"file": one}, calls=600, seed=8)
    assert report.calls == 600
    assert len(report.answers) > 5
