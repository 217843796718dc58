"""Several real processes on one file: exclusion, growing tokens, kill -9, forks, and a takeover through the engine."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tenure import Locks
from tenure.store import Acquired
from tenure_sqlite import SqliteLockStore

PATIENCE_S = 60

CONTENDER = """
import asyncio, json, os, sys
from tenure import Locks
from tenure_sqlite import SqliteLockStore

async def main(file, counter, rounds):
    tokens = []
    store = SqliteLockStore(file, synchronous="normal")
    async with store, Locks(store, ttl=30, instance=f"p-{os.getpid()}") as locks:
        for _ in range(rounds):
            async with locks.hold("counter", wait=60) as lease:
                value = int(open(counter).read())
                await asyncio.sleep(0)
                open(counter, "w").write(str(value + 1))
                tokens.append(lease.token)
    print(json.dumps(tokens))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""

HOLDER = """
import asyncio, os, sys
from tenure import Locks
from tenure_sqlite import SqliteLockStore

async def main(file):
    async with SqliteLockStore(file) as store, Locks(store, ttl=1, instance="holder") as locks:
        async with locks.hold("job") as lease:
            print(lease.token, flush=True)
            await asyncio.sleep(3600)

asyncio.run(main(sys.argv[1]))
"""

WRITER = """
import asyncio, sys
from tenure_sqlite import SqliteLockStore

async def main(file):
    async with SqliteLockStore(file) as store:
        for number in range(1_000_000):
            reply = await store.acquire(f"key-{number % 7}", "writer", 60_000)
            await store.release(f"key-{number % 7}", "writer")
            if number == 20:
                print("under way", flush=True)

asyncio.run(main(sys.argv[1]))
"""


def start(program: str, *arguments: Any) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.matrix
def test_of_three_processes_one_at_a_time_is_in_and_tokens_grow(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    started = [start(CONTENDER, tmp_path / "locks.db", counter, 40) for _ in range(3)]
    tokens = [json.loads(one.communicate(timeout=PATIENCE_S)[0]) for one in started]
    assert int(counter.read_text()) == 120
    assert all(own == sorted(own) for own in tokens)
    assert len({token for own in tokens for token in own}) == 120


@pytest.mark.matrix
async def test_the_key_of_a_killed_process_is_taken_over_after_its_ttl_with_a_greater_token(tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    holder = start(HOLDER, file)
    assert holder.stdout is not None
    first = int(await asyncio.to_thread(holder.stdout.readline))
    async with SqliteLockStore(file) as store, Locks(store, ttl=1, instance="heir") as locks:
        assert [lock.instance for lock in await store.list_locks()] == ["holder"]
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        async with locks.hold("job", wait=PATIENCE_S) as lease:
            assert lease.token > first


@pytest.mark.matrix
async def test_a_process_that_is_killed_amid_its_commits_leaves_a_sound_file(tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    for _ in range(5):
        writer = start(WRITER, file)
        assert writer.stdout is not None
        await asyncio.to_thread(writer.stdout.readline)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        async with SqliteLockStore(file) as store:
            [row] = await store._file.read("PRAGMA integrity_check", {})
            assert row[0] == "ok"
            assert isinstance(await store.acquire("another", "heir", 1000), Acquired)
            assert await store.release("another", "heir")


@pytest.mark.matrix
def test_a_child_of_a_fork_is_refused_and_the_parents_store_goes_on(tmp_path: Path) -> None:
    program = """
    import asyncio, os, sys
    from tenure import LeaseStateError
    from tenure_sqlite import SqliteLockStore

    async def ask(store, key):
        return await store.acquire(key, "owner", 60_000)

    with asyncio.Runner() as runner:
        store = SqliteLockStore(sys.argv[1])
        runner.run(ask(store, "before"))
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.new_event_loop().run_until_complete(ask(store, "child"))
            except LeaseStateError as error:
                os.write(1, f"{error}\\n".encode())
            os._exit(0)
        os.waitpid(pid, 0)
        runner.run(ask(store, "after"))
        print([lock.key for lock in runner.run(store.list_locks())], flush=True)
        runner.run(store.aclose())
    """
    told = start(program, tmp_path / "locks.db").communicate(timeout=PATIENCE_S)[0].splitlines()
    assert "does not survive a fork()" in told[0]
    assert told[1] == "['after', 'before']"


@pytest.mark.matrix
def test_the_examples_of_the_readme_run(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in readme.split("```python\n")[1:]]
    assert len(blocks) >= 4
    for block in blocks:
        text = block.replace("/var/lib/shop", str(tmp_path))
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", text],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
        )  # fmt: skip
        assert ran.returncode == 0, f"{text}\n{ran.stderr}"
