"""Who waits is woken by the release, releases notify nobody else, and what is lost costs a poll."""

import asyncio
import itertools
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure import Locks
from tenure.errors import ConfigurationError
from tenure.store import Acquired, WakesWaiters
from tenure_postgres import PostgresLockStore, create_lock_engine, wakeups
from tenure_postgres.listening import Listening
from tenure_postgres.lock_calls import Releases
from tenure_postgres.statements import LockStatements, TableName

MakeEngine = Callable[..., AsyncEngine]
Owner = Callable[[], str]
Until = Callable[..., Awaitable[None]]
Release = Callable[[str, str], Awaitable[Any]]

LONG_MS = 600_000
"""No lock of these tests expires: what wakes a waiter is a release."""

PATIENCE_S = 10.0
"""Until when a waiter has to be woken that nothing but a wake-up ends."""


@pytest.fixture(autouse=True)
def nothing_but_a_wakeup_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "_UNKNOWN_S", 3600.0)


@pytest.fixture
async def make_store(database_url: str) -> AsyncIterator[Callable[..., PostgresLockStore]]:
    """Make stores as two instances have them, each on an engine of its own."""
    stores: list[PostgresLockStore] = []

    def make(**options: Any) -> PostgresLockStore:
        stores.append(PostgresLockStore(create_lock_engine(database_url, **options), owns_engine=True))
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


@pytest.fixture
def here(make_store: Callable[..., PostgresLockStore]) -> PostgresLockStore:
    """The store of the instance that waits."""
    return make_store()


@pytest.fixture
def there(make_store: Callable[..., PostgresLockStore]) -> PostgresLockStore:
    """The store of another instance, which holds."""
    return make_store()


async def waiting(store: PostgresLockStore, key: str) -> "asyncio.Task[None]":
    """Wait for *key*, known to the server."""
    mark = store._wakeups._marks.get(key)
    if mark is None or mark.of_key is None:
        await store.released(key)  # returns when it has become known
    return await waiting_too(store, key)


async def waiting_too(store: PostgresLockStore, key: str) -> "asyncio.Task[None]":
    """Wait for *key*, which is known to the server already, and for which nothing was missed."""
    task = asyncio.create_task(store.released(key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def is_woken(task: "asyncio.Task[None]") -> bool:
    await asyncio.wait([task], timeout=PATIENCE_S)
    return task.done()


async def has_heard_all(store: PostgresLockStore, other: PostgresLockStore, owner: Owner) -> None:
    """Return when *store* has heard of every release before this call: they are heard in their order."""
    task, holder = await waiting(store, "the last"), owner()
    await other.acquire("the last", holder, LONG_MS)
    assert await other.release("the last", holder)
    assert await is_woken(task)


async def known_keys(person: Any) -> int:
    """How many marks of waiters the server keeps."""
    count = await person.fetchval(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
        "WHERE datname = current_database() AND locktype = 'advisory' AND objsubid = 2 AND mode = 'ShareLock' "
        "AND classid = 'tenure_locks'::regclass"
    )
    assert isinstance(count, int)
    return count


async def listeners(person: Any) -> list[int]:
    """The server's processes that listen for the stores of this test."""
    rows = await person.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND (query LIKE '/* tenure:wakeups%' OR query LIKE 'LISTEN%')"
    )
    return [row["pid"] for row in rows]


@pytest.fixture
async def notified(database_url: str, connect: Any, until: Until) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
    """What has been notified so far, as somebody hears it who listens from outside."""
    heard: list[str] = []
    ends = (f"end {number}" for number in itertools.count())

    async with connect(database_url) as outside:
        await outside.add_listener("tenure", lambda _, __, ___, payload: heard.append(payload))

        async def so_far() -> list[str]:
            end = next(ends)
            await outside.execute(f"NOTIFY tenure, '{end}'")

            async def ended() -> bool:
                return end in heard

            await until(ended, "the last notification")
            return [payload for payload in heard if not payload.startswith("end")]

        yield so_far


def raw_release(person: Any, plant: Callable[[str], str] = str) -> Release:
    """Run the statement of a release as it stands in its file, or with a planted bug."""
    statement = plant(LockStatements.of(TableName("tenure_locks")).release)

    async def release(key: str, owner: str) -> bool:
        return bool(await person.fetch(statement, key, owner, "2s"))

    return release


# --------------------------------------------------------------------------------------------- being woken


async def test_a_waiter_is_woken_by_the_release_of_another_instance(
    here: PostgresLockStore, there: PostgresLockStore, owner: Owner
) -> None:
    assert isinstance(here, WakesWaiters)
    holder = owner()
    await there.acquire("job", holder, LONG_MS)
    task = await waiting(here, "job")
    assert await there.release("job", holder)
    assert await is_woken(task)


async def test_a_waiter_is_woken_by_the_release_of_another_process(
    here: PostgresLockStore, database_url: str, owner: Owner
) -> None:
    holder = owner()
    await here.acquire("job", holder, LONG_MS)
    task = await waiting(here, "job")
    program = (
        "import asyncio, sys\n"
        "from tenure_postgres import open_postgres_store\n"
        "async def main():\n"
        "    async with open_postgres_store(sys.argv[1]) as store:\n"
        "        assert await store.release('job', sys.argv[2])\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, database_url, holder)
    assert await process.wait() == 0
    assert await is_woken(task)


async def test_everybody_who_waits_for_the_key_is_woken_and_nobody_else(
    here: PostgresLockStore, there: PostgresLockStore, owner: Owner
) -> None:
    holder = owner()
    await there.acquire("job", holder, LONG_MS)
    tasks = [await waiting(here, "job"), *[await waiting_too(here, "job") for _ in range(4)]]
    elsewhere, other_case = await waiting(here, "job-2"), await waiting(here, "JOB")
    await there.release("job", holder)
    for task in tasks:
        assert await is_woken(task)
    await has_heard_all(here, there, owner)
    for task in (elsewhere, other_case):
        assert not task.done()
        task.cancel()


@pytest.mark.parametrize("key", ["x" * 500, "🐈", "é", "a:b'c\"d", " "])
async def test_any_key_can_be_waited_for(
    here: PostgresLockStore, there: PostgresLockStore, owner: Owner, key: str
) -> None:
    holder = owner()
    await there.acquire(key, holder, LONG_MS)
    task = await waiting(here, key)
    await there.release(key, holder)
    assert await is_woken(task)


async def test_a_key_outside_the_rules_is_refused(here: PostgresLockStore) -> None:
    with pytest.raises(ConfigurationError):
        await here.released("")


async def test_a_wait_hands_over_long_before_its_poll(
    here: PostgresLockStore, there: PostgresLockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through `Locks`: without the wake-up, the waiter would sleep for ten minutes."""
    monkeypatch.setattr("tenure._acquirer._FIRST_PAUSE_S", 600.0)
    monkeypatch.setattr("tenure._acquirer._LONGEST_PAUSE_S", 600.0)
    async with Locks(there, ttl="1h") as holders, Locks(here, ttl="1h") as waiters:
        lease = await holders.acquire("job", wait=0)
        for _ in range(10):
            acquiring = asyncio.create_task(waiters.acquire("job", wait=600))
            await asyncio.sleep(0)
            await lease.release()
            done, _ = await asyncio.wait([acquiring], timeout=PATIENCE_S)
            assert done, "the waiter slept on beside a free key"
            await acquiring.result().release()
            lease = await holders.acquire("job", wait=0)
        await lease.release()


async def test_releases_that_travel_together_wake_the_waiters_of_each_and_notify_for_nobody_else(
    here: PostgresLockStore,
    there: PostgresLockStore,
    owner: Owner,
    notified: Callable[[], Awaitable[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups: list[int] = []
    together = Releases.together

    def counted(self: Releases, calls: Any, row_wait: str) -> Any:
        groups.append(len(calls))
        return together(self, calls, row_wait)

    monkeypatch.setattr(Releases, "together", counted)
    holders = {f"job-{number}": owner() for number in range(10)}
    for key, holder in holders.items():
        await there.acquire(key, holder, LONG_MS)
    tasks = [await waiting(here, f"job-{number}") for number in range(0, 10, 2)]
    assert all(await asyncio.gather(*(there.release(key, holder) for key, holder in holders.items())))
    for task in tasks:
        assert await is_woken(task)
    assert len(await notified()) == 5
    assert groups, "none travelled together: it proves nothing"


# --------------------------------------------------------------------------------- nothing falls in between


async def check_that_a_release_that_crosses_the_wait_is_not_missed(
    here: PostgresLockStore, person: Any, until: Until, owner: Owner
) -> None:
    """The holder's release is under way when the waiter comes; it has looked for waiters, and found none."""
    holder = owner()
    await here.acquire("job", holder, LONG_MS)
    crossing = person.transaction()
    await crossing.start()
    await raw_release(person)("job", holder)
    task = asyncio.create_task(here.released("job"))

    async def refused_twice() -> bool:
        return here._wakeups._again._tries >= 2

    await until(refused_twice, "the waiter to have asked")
    assert not task.done()
    await crossing.commit()
    assert await is_woken(task)
    assert isinstance(await here.acquire("job", owner(), LONG_MS), Acquired), "woken, and the key was not free"


async def test_a_release_that_crosses_the_wait_is_not_missed(
    here: PostgresLockStore, person: Any, until: Until, owner: Owner
) -> None:
    await check_that_a_release_that_crosses_the_wait_is_not_missed(here, person, until, owner)


async def test_planted_a_key_becomes_known_and_nobody_is_told(
    here: PostgresLockStore, person: Any, until: Until, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.PATIENCE_S", 0.3)
    monkeypatch.setattr(wakeups._Mark, "become_known", lambda self, of_key: setattr(self, "of_key", of_key))
    with pytest.raises(AssertionError):
        await check_that_a_release_that_crosses_the_wait_is_not_missed(here, person, until, owner)


async def test_a_release_that_is_heard_while_nobody_waits_is_kept_for_the_next(
    here: PostgresLockStore, there: PostgresLockStore, owner: Owner
) -> None:
    holder = owner()
    await there.acquire("job", holder, LONG_MS)
    await here.released("job")  # known; and the waiter asks the store, and is told "held"
    await there.release("job", holder)
    await has_heard_all(here, there, owner)
    assert await is_woken(asyncio.create_task(here.released("job")))
    (await waiting_too(here, "job")).cancel()  # once


@pytest.mark.parametrize("heard_first", [True, False])
async def test_a_waiter_that_is_cancelled_in_that_moment_takes_no_wakeup_with_it(
    here: PostgresLockStore, heard_first: bool
) -> None:
    task = await waiting(here, "job")
    mark = here._wakeups._marks["job"]
    for step in (mark.heard, task.cancel) if heard_first else (task.cancel, mark.heard):
        step()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await is_woken(asyncio.create_task(here.released("job")))


async def test_planted_a_cancelled_waiter_takes_the_wakeup_with_it(
    here: PostgresLockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def naive(mark: wakeups._Mark) -> None:
        mark.missed = not mark.waiters
        mark.wake()

    monkeypatch.setattr(f"{__name__}.PATIENCE_S", 0.3)
    monkeypatch.setattr(wakeups._Mark, "heard", naive)
    with pytest.raises(AssertionError):
        await test_a_waiter_that_is_cancelled_in_that_moment_takes_no_wakeup_with_it(here, heard_first=False)


# ----------------------------------------------------------------------------------------- how often is told


async def check_the_notifications(
    here: PostgresLockStore,
    there: PostgresLockStore,
    owner: Owner,
    notified: Callable[[], Awaitable[list[str]]],
    release: Release,
) -> None:
    for key in ("job", "nobody's"):
        for _ in range(5):
            holder = owner()
            await there.acquire(key, holder, LONG_MS)
            if key == "job":
                tasks = [await waiting(store, key) for store in (here, there)]
                tasks.append(await waiting_too(here, key))
            assert await release(key, holder)
            if key == "job":
                for task in tasks:
                    assert await is_woken(task)
            assert not await release(key, holder), "a release that frees nothing"
    payloads = await notified()
    assert len(payloads) == 5, "one a release that anybody waits for, none of the others"
    assert re.fullmatch(r"-?\d+:-?\d+", payloads[0]), "no key and no owner is told to everybody"


async def test_one_notification_a_release_that_anybody_waits_for_and_none_of_others(
    here: PostgresLockStore, there: PostgresLockStore, owner: Owner, notified: Callable[[], Awaitable[list[str]]]
) -> None:
    await check_the_notifications(here, there, owner, notified, there.release)


ALWAYS = (" pg_try_advisory_xact_lock(mark.of_table, mark.of_key)", " false AND pg_backend_pid() > 0")
NEVER = ("NOT pg_try_advisory_xact_lock(mark.of_table, mark.of_key)", "false")
BACKWARDS = ("NOT pg_try_advisory_xact_lock", "pg_try_advisory_xact_lock")
OF_NO_TABLE = ("concat(mark.of_table, ':', mark.of_key)", "concat(0, ':', mark.of_key)")


@pytest.mark.parametrize("bug", [ALWAYS, NEVER, BACKWARDS, OF_NO_TABLE], ids=["always", "never", "backwards", "table"])
async def test_planted_a_release_that_notifies_otherwise(  # noqa: PLR0917 -- fixtures
    here: PostgresLockStore,
    there: PostgresLockStore,
    person: Any,
    owner: Owner,
    notified: Callable[[], Awaitable[list[str]]],
    bug: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plant(statement: str) -> str:
        assert statement.count(bug[0]) == 1
        return statement.replace(*bug)

    await check_the_notifications(here, there, owner, notified, raw_release(person))
    monkeypatch.setattr(f"{__name__}.PATIENCE_S", 0.3)
    with pytest.raises(AssertionError):
        await check_the_notifications(here, there, owner, notified, raw_release(person, plant))


async def test_two_keys_of_one_hash_wake_for_one_another_and_are_let_go_of_one_by_one(
    here: PostgresLockStore, there: PostgresLockStore, person: Any, owner: Owner, until: Until
) -> None:
    one, two = await person.fetchval(
        "SELECT array_agg(key) FROM (SELECT 'job-' || number AS key FROM generate_series(1, 300000) AS number) AS keys "
        "GROUP BY hashtext(key) HAVING count(*) = 2 LIMIT 1"
    )
    holder = owner()
    await there.acquire(one, holder, LONG_MS)
    tasks = [await waiting(here, one), await waiting(here, two)]
    await there.release(one, holder)
    for task in tasks:
        assert await is_woken(task)

    stays = await waiting(here, two)

    async def let_go() -> bool:
        return one not in here._wakeups._marks

    await until(let_go, "the other key to be let go of")
    await there.acquire(two, holder, LONG_MS)
    await there.release(two, holder)
    assert await is_woken(stays)


async def test_a_release_waits_for_no_application_that_uses_the_same_advisory_lock(
    here: PostgresLockStore, there: PostgresLockStore, person: Any, owner: Owner
) -> None:
    """It notifies for nothing, and who waits polls until the lock is free."""
    holder = owner()
    await there.acquire("job", holder, LONG_MS)
    await person.execute("SELECT pg_advisory_lock('tenure_locks'::regclass::oid::int, hashtext('job'))")
    task = asyncio.create_task(here.released("job"))
    assert await there.release("job", holder)
    await has_heard_all(here, there, owner)
    assert not task.done()
    await person.execute("SELECT pg_advisory_unlock_all()")
    assert await is_woken(task)


# ----------------------------------------------------------------------------------- what is left on the server


async def check_that_nothing_is_left(here: PostgresLockStore, person: Any, until: Until) -> None:
    tasks = [await waiting(here, f"job-{number}") for number in range(5)]
    for _ in range(20):
        (await waiting_too(here, "job-0")).cancel()
    assert await known_keys(person) == 5
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    async def none_known() -> bool:
        return await known_keys(person) == 0

    await until(none_known, "the keys to be let go of", within_s=PATIENCE_S)
    assert not here._wakeups._marks
    assert not here._wakeups._known
    assert not here._wakeups._wanted


async def test_a_key_is_let_go_of_when_nobody_waits_for_it_any_more(
    here: PostgresLockStore, person: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_LINGER_S", 0.2)
    await check_that_nothing_is_left(here, person, until)


async def test_planted_a_key_is_never_let_go_of(
    here: PostgresLockStore, person: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_LINGER_S", 0.05)

    async def forget(*_: object) -> None:
        pass

    monkeypatch.setattr(f"{__name__}.PATIENCE_S", 0.5)
    monkeypatch.setattr(Listening, "let_go", forget)
    with pytest.raises(AssertionError):
        await check_that_nothing_is_left(here, person, until)


async def test_polls_do_not_make_a_key_known_anew(here: PostgresLockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    make_known = Listening.make_known

    async def counted(self: Listening, keys: Any) -> Any:
        asked.extend(keys)
        return await make_known(self, keys)

    monkeypatch.setattr(Listening, "make_known", counted)
    await here.released("job")
    for _ in range(50):
        task = await waiting_too(here, "job")
        task.cancel()
        await asyncio.wait([task])
    assert asked == ["job"]


async def test_many_keys_at_once_travel_together(here: PostgresLockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    make_known = Listening.make_known

    async def counted(self: Listening, keys: Any) -> Any:
        batches.append(len(keys))
        return await make_known(self, keys)

    monkeypatch.setattr(Listening, "make_known", counted)
    await here.released("job")
    async with asyncio.TaskGroup() as group:
        for number in range(40):
            group.create_task(here.released(f"job-{number}"))
    assert sum(batches) == 41
    assert len(batches) <= 4


async def test_one_connection_listens_however_many_wait_and_the_pool_keeps_its_places(
    make_store: Callable[..., PostgresLockStore], person: Any, owner: Owner
) -> None:
    store = make_store(pool_size=1, pool_timeout=1)
    tasks = [await waiting(store, f"job-{number}") for number in range(20)]
    assert len(await listeners(person)) == 1
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(store.acquire(f"job-{number}", owner(), LONG_MS))
    for task in tasks:
        task.cancel()
