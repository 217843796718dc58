"""
Servers as pytest fixtures; pytest loads this file by itself where tenure-testbed is installed.

A server that cannot be had skips its tests with the reason on a laptop, and fails them where `CI` is set: a suite
that skips everything must not look like one that passes.

`TENURE_TEST_POSTGRES_URL` names a PostgreSQL to use instead of the wheel's: a superuser's URL, or that of a role
that may create databases. `TENURE_TEST_VALKEY_PROGRAM` names a valkey-server to run instead of the wheel's.
"""

import contextlib
import os
from collections.abc import Iterator

import pytest

from tenure_testbed.errors import ServerUnavailableError
from tenure_testbed.pgbouncer import PgBouncer
from tenure_testbed.postgres import PostgresServer
from tenure_testbed.postgres_access import PostgresAccess, database_of
from tenure_testbed.valkey import RedisServer, ValkeyServer
from tenure_testbed.valkey_cluster import ValkeyCluster
from tenure_testbed.valkey_pair import ValkeyPair
from tenure_testbed.valkey_sentinel import ValkeySentinel

POSTGRES_URL = "TENURE_TEST_POSTGRES_URL"

_SHARED = frozenset({"valkey_server", "redis_server", "valkey_cluster", "valkey_sentinel"})


@contextlib.contextmanager
def or_skip() -> Iterator[None]:
    """
    Turn a server that is not on this machine into a skip, or into a failure where `CI` is set.

    For tests that start servers of their own:

        with or_skip(), PostgresServer() as server: ...
    """
    try:
        yield
    except ServerUnavailableError as error:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"Needed where CI is set: {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresAccess]:
    """
    The PostgreSQL that the tests of a session share, as a role that may create databases.

    It is for everybody: who stops, kills or pauses a server takes `own_postgres`.
    """
    if url := os.environ.get(POSTGRES_URL):
        yield PostgresAccess.from_url(url)
        return
    with or_skip(), PostgresServer() as server:
        yield server.access


@pytest.fixture
def postgres_url(postgres_server: PostgresAccess) -> Iterator[str]:
    """An empty database of the test's own, as a URL for SQLAlchemy on asyncpg; dropped after the test."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(database_of(url))


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of the test's own, to stop, kill, pause and configure; always from the wheel."""
    with or_skip(), PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresAccess) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode in front of `postgres_server`; it leads to every database there."""
    with or_skip(), PgBouncer(postgres_server) as bouncer:
        yield bouncer


@pytest.fixture
def pgbouncer_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    """The database of `postgres_url`, through PgBouncer."""
    return pgbouncer.url(database_of(postgres_url))


@pytest.fixture(autouse=True)
def _emptied(request: pytest.FixtureRequest) -> None:
    """Every shared Valkey and Redis that a test asks for is empty when the test begins."""
    for name in _SHARED.intersection(request.fixturenames):
        request.getfixturevalue(name).flush_all()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """The Valkey that the tests of a session share; who stops, kills or pauses one takes `own_valkey`."""
    with or_skip(), ValkeyServer() as server:
        yield server


@pytest.fixture
def valkey_url(valkey_server: ValkeyServer) -> str:
    """The shared Valkey, emptied, as a `redis://` URL."""
    return valkey_server.url()


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A Valkey of the test's own, to stop, kill and pause."""
    with or_skip(), ValkeyServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The Redis, from the system, that the tests of a session share."""
    with or_skip(), RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The shared Redis, emptied, as a `redis://` URL."""
    return redis_server.url()


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[ValkeyCluster]:
    """
    The Valkey cluster that the tests of a session share: three primaries, three replicas.

    A test may have it fail over and move slots: every client has to live with that. Who kills, pauses or
    configures a node takes `own_valkey_cluster`.
    """
    with or_skip(), ValkeyCluster() as cluster:
        yield cluster


@pytest.fixture
def valkey_cluster_url(valkey_cluster: ValkeyCluster) -> str:
    """The shared cluster, emptied, as a `valkey+cluster://` URL of all its nodes."""
    return valkey_cluster.url()


@pytest.fixture
def own_valkey_cluster() -> Iterator[ValkeyCluster]:
    """A Valkey cluster of the test's own, to kill, pause and configure."""
    with or_skip(), ValkeyCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def valkey_sentinel() -> Iterator[ValkeySentinel]:
    """
    The Valkey primary with a replica and three Sentinels that the tests of a session share.

    A test may have it fail over; who kills a server starts a `ValkeySentinel` of its own.
    """
    with or_skip(), ValkeySentinel() as watched:
        yield watched


@pytest.fixture
def valkey_sentinel_url(valkey_sentinel: ValkeySentinel) -> str:
    """The shared pair behind Sentinels, emptied, as a `redis+sentinel://` URL."""
    return valkey_sentinel.url()


@pytest.fixture
def own_valkey_pair() -> Iterator[ValkeyPair]:
    """A Valkey primary with a replica of the test's own, whose link can be cut."""
    with or_skip(), ValkeyPair() as pair:
        yield pair
