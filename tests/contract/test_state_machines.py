"""The state machines in real time, on real servers: short ttls, and every reply compared with the reference model."""

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.testing.state_machines import idempotency_store_machine, lock_store_machine, run_machine
from tenure_postgres import PostgresIdempotencyStore, PostgresLockStore
from tenure_testbed import RedisServer, ValkeyCluster, ValkeySentinel, ValkeyServer
from tenure_valkey import (
    ValkeyIdempotencyStore,
    ValkeyLockStore,
    open_valkey_idempotency_store,
    open_valkey_store,
)

EXAMPLES, STEPS, SEED = 8, 20, 20261130
"""A few seconds of short locks; the matrix draws on."""

MORE = 15

CLIENTS = ["glide", "redis"]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """A loop that outlives an example: a store on it keeps its connections."""
    with asyncio.Runner() as runner:
        yield runner


def run_locks_on_postgres(url: str, runner: asyncio.Runner, examples: int = EXAMPLES) -> None:
    engine = create_async_engine(url, pool_size=10, max_overflow=0)
    try:
        machine = lock_store_machine(lambda: PostgresLockStore(engine), runner=runner)
        run_machine(machine, examples=examples, steps=STEPS, seed=SEED)
    finally:
        runner.run(engine.dispose())


def run_records_on_postgres(url: str, runner: asyncio.Runner, examples: int = EXAMPLES) -> None:
    engine = create_async_engine(url, pool_size=10, max_overflow=0)
    try:
        machine = idempotency_store_machine(lambda: PostgresIdempotencyStore(engine), runner=runner)
        run_machine(machine, examples=examples, steps=STEPS, seed=SEED)
    finally:
        runner.run(engine.dispose())


def run_locks_on_valkey(url: str, runner: asyncio.Runner, examples: int = EXAMPLES) -> None:
    opened = open_valkey_store(url)
    runner.run(opened.__aenter__())
    try:
        machine = lock_store_machine(lambda: ValkeyLockStore(opened._runner), runner=runner)
        run_machine(machine, examples=examples, steps=STEPS, seed=SEED)
    finally:
        runner.run(opened.__aexit__(None, None, None))


def run_records_on_valkey(url: str, runner: asyncio.Runner, examples: int = EXAMPLES) -> None:
    opened = open_valkey_idempotency_store(url)
    runner.run(opened.__aenter__())
    try:
        machine = idempotency_store_machine(lambda: ValkeyIdempotencyStore(opened._runner), runner=runner)
        run_machine(machine, examples=examples, steps=STEPS, seed=SEED)
    finally:
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.matrix
def test_locks_in_postgres_answer_as_the_model_does(locks_database: str, runner: asyncio.Runner) -> None:
    run_locks_on_postgres(locks_database, runner)


def test_records_in_postgres_answer_as_the_model_does(records_database: str, runner: asyncio.Runner) -> None:
    run_records_on_postgres(records_database, runner)


def test_locks_in_valkey_answer_as_the_model_does(valkey_url: str, runner: asyncio.Runner) -> None:
    run_locks_on_valkey(valkey_url, runner)


@pytest.mark.matrix
def test_records_in_valkey_answer_as_the_model_does(valkey_url: str, runner: asyncio.Runner) -> None:
    run_records_on_valkey(valkey_url, runner)


@pytest.mark.matrix
@pytest.mark.parametrize("client", CLIENTS)
def test_on_a_cluster(client: str, valkey_cluster: ValkeyCluster, runner: asyncio.Runner) -> None:
    url = f"{valkey_cluster.url()}?client={client}"
    run_locks_on_valkey(url, runner, MORE)
    run_records_on_valkey(url, runner, MORE)


@pytest.mark.matrix
@pytest.mark.parametrize("client", CLIENTS)
def test_on_one_server(client: str, valkey_server: ValkeyServer, runner: asyncio.Runner) -> None:
    url = f"{valkey_server.url(scheme='valkey')}?client={client}"
    run_locks_on_valkey(url, runner, MORE)
    run_records_on_valkey(url, runner, MORE)


@pytest.mark.matrix
@pytest.mark.parametrize("client", CLIENTS)
def test_on_redis(client: str, redis_server: RedisServer, runner: asyncio.Runner) -> None:
    url = f"{redis_server.url()}?client={client}"
    run_locks_on_valkey(url, runner, MORE)
    run_records_on_valkey(url, runner, MORE)


@pytest.mark.matrix
def test_behind_sentinel(valkey_sentinel: ValkeySentinel, runner: asyncio.Runner) -> None:
    run_locks_on_valkey(valkey_sentinel.url(), runner, MORE)
    run_records_on_valkey(valkey_sentinel.url(), runner, MORE)


@pytest.mark.matrix
def test_longer_on_postgres(locks_database: str, records_database: str, runner: asyncio.Runner) -> None:
    run_locks_on_postgres(locks_database, runner, 40)
    run_records_on_postgres(records_database, runner, 40)
