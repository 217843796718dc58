"""`tenure run` on PostgreSQL and on Valkey: what it needs of a store, it has there too."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tenure.sync import Locks
from tenure_postgres import create_schema_sql
from tenure_testbed import ValkeyServer

pytestmark = pytest.mark.matrix

PATIENCE_S = 60
SLEEPS = (sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(3600)")


@pytest.fixture(params=["postgres", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty store."""
    if request.param == "valkey":
        found: str = request.getfixturevalue("valkey_url")
        yield found.replace("redis://", "valkey://")
        return
    import asyncpg

    found = request.getfixturevalue("postgres_url")

    async def prepare() -> None:
        connection = await asyncpg.connect(found.replace("+asyncpg", ""))
        await connection.execute(create_schema_sql())
        await connection.close()

    asyncio.run(prepare())
    yield found


def test_a_program_runs_and_the_lock_is_free_again(start: Any, server: str) -> None:
    tokens = []
    for code in (0, 7):
        running = start("run", server, "job", "--", "sh", "-c", f"echo $TENURE_TOKEN; exit {code}")
        out, err = running.communicate(timeout=PATIENCE_S)
        assert (running.returncode, err) == (code, "")
        tokens.append(int(out))
    assert 0 < tokens[0] < tokens[1]


def test_a_conflict_runs_nothing_and_a_killed_command_frees_the_lock_with_its_ttl(start: Any, server: str) -> None:
    first = start("run", server, "--ttl", "5s", "--kill-after", "100ms", "job", "--", *SLEEPS)
    assert first.stdout.readline() == "runs\n"
    second = start("run", server, "--json", "job", "--", "echo", "never")
    out, err = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, out, json.loads(err)["outcome"]) == (1, "", "held")
    first.send_signal(signal.SIGKILL)
    third = start("run", server, "--wait", "1m", "job", "--", "echo", "mine")
    assert third.communicate(timeout=PATIENCE_S) == ("mine\n", "")


def test_a_job_stays_on_its_host_between_runs(start: Any, server: str) -> None:
    def tick(host: str) -> int:
        running = start("run", server, "--on-one-instance", "--instance", host, "--ttl", "5m", "job", "--", "true")
        running.communicate(timeout=PATIENCE_S)
        return int(running.returncode)

    assert [tick("one"), tick("two"), tick("one")] == [0, 1, 0]
    with Locks(server, hooks=[]) as locks:
        assert [(record.key, record.instance) for record in locks.list_locks("job")] == [("job:owner", "one")]


def test_a_server_that_answers_no_more_ends_the_program_at_the_deadline(start: Any, own_valkey: ValkeyServer) -> None:
    url = own_valkey.url(scheme="valkey")
    running = start("run", url, "--ttl", "5s", "--kill-after", "100ms", "job", "--", *SLEEPS)
    assert running.stdout.readline() == "runs\n"
    own_valkey.pause()
    try:
        _, err = running.communicate(timeout=PATIENCE_S)
    finally:
        own_valkey.resume()
    assert running.returncode == 70
    assert "was lost (expired), and the command was ended: another instance may hold the lock now." in err
