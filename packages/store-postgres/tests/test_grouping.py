"""Calls that travel together: few statements, and nobody notices it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.store import MAX_TOKEN, Acquired, Claim, Held
from tenure_postgres import PostgresLockStore, TokensExhaustedError, create_schema_sql
from tenure_postgres import lane as lane_module
from tenure_postgres.lane import Lane

Owner = Callable[[], str]
MakeEngine = Callable[..., AsyncEngine]
Until = Callable[..., Awaitable[None]]
Waits = Callable[[], Awaitable[None]]

KEYS = [f"order:{number}" for number in range(50)]


async def all_of(calls: Any) -> list[Any]:
    """Ask at once, and return answers and errors."""
    return await asyncio.gather(*calls, return_exceptions=True)


WARM = ["warm", "warmer"]
"""Keys of two calls that travel together: after a group, whatever comes at once travels together as well."""


async def take_all(store: PostgresLockStore, owner: str, keys: list[str], ttl_ms: int = 600_000) -> list[Any]:
    return await all_of(store.acquire(key, owner, ttl_ms) for key in keys)


async def owners(person: Any) -> dict[str, str | None]:
    """Who holds what, as the table says."""
    return {row["key"]: row["owner"] for row in await person.fetch("SELECT key, owner FROM tenure_locks")}


# ------------------------------------------------------------------------------------------------ what is sent


async def test_two_hundred_calls_at_once_need_a_handful_of_statements(
    store: PostgresLockStore, sent: list[str], person: Any
) -> None:
    keys = [f"order:{number}" for number in range(200)]
    replies = await all_of(store.acquire(key, f"owner-of-{key}", 60_000) for key in keys)
    tokens = {row["key"]: row["token"] for row in await person.fetch("SELECT key, token FROM tenure_locks")}
    assert replies == [Acquired(tokens[key]) for key in keys], "each has its own answer"
    assert await owners(person) == {key: f"owner-of-{key}" for key in keys}
    assert await all_of(store.renew(key, f"owner-of-{key}", 60_000) for key in keys) == [True] * 200
    assert await all_of(store.release(key, f"owner-of-{key}") for key in keys) == [True] * 200
    assert set(sent) == {"acquire_many", "renew_many", "release_many"}
    assert len(sent) <= 9


async def test_a_call_that_is_alone_goes_out_at_once_as_the_statement_for_one_row(
    store: PostgresLockStore, sent: list[str]
) -> None:
    await store.acquire("job", "me", 60_000)
    await store.renew("job", "me", 60_000)
    await store.release("job", "me")
    assert sent == ["acquire", "renew", "release"]


async def test_what_arrives_while_a_call_is_under_way_travels_in_the_next(
    store: PostgresLockStore, sent: list[str], locked_table: Any, waits_for_a_row: Waits
) -> None:
    await store.acquire("warm", "me", 60_000)
    async with locked_table():
        first = asyncio.create_task(store.acquire("first", "me", 60_000))
        await waits_for_a_row()
        others = asyncio.create_task(take_all(store, "me", KEYS))
        await asyncio.sleep(0)
        assert not first.done()
        assert store._lanes._beginning._serving is None, "who is alone needs no task"
    assert all(isinstance(reply, Acquired) for reply in [await first, *await others])
    assert sent == ["acquire", "acquire", "acquire_many"]


async def test_what_travels_together_is_of_one_kind_and_goes_in_the_order_of_arrival(
    store: PostgresLockStore, sent: list[str]
) -> None:
    await take_all(store, "me", KEYS)
    sent.clear()
    calls = [
        *(store.release(key, "me") for key in KEYS[:10]),
        *(store.renew(key, "me", 60_000) for key in KEYS[10:20]),
        store.renew_many([Claim(key, "me", 60_000) for key in KEYS[20:30]]),
        *(store.release(key, "me") for key in KEYS[30:40]),
    ]
    assert await all_of(calls) == [True] * 20 + [[True] * 10] + [True] * 10
    assert sent == ["release_many", "renew_many", "renew_many"]


# ---------------------------------------------------------------------------------------- answers and errors


async def exhausted_among_good_ones(store: PostgresLockStore, person: Any) -> None:
    await person.execute("INSERT INTO tenure_locks VALUES ($1, NULL, $2, now(), NULL)", KEYS[7], MAX_TOKEN)
    replies = await take_all(store, "me", KEYS)
    assert isinstance(replies.pop(7), TokensExhaustedError)
    assert all(isinstance(reply, Acquired) for reply in replies)


async def test_a_key_whose_tokens_are_used_up_fails_its_own_caller(store: PostgresLockStore, person: Any) -> None:
    await exhausted_among_good_ones(store, person)


async def test_a_call_that_the_server_refuses_fails_alone(
    store: PostgresLockStore, person: Any, sent: list[str]
) -> None:
    await person.execute(f"ALTER TABLE tenure_locks ADD CONSTRAINT few CHECK (key <> '{KEYS[31]}')")
    replies = await take_all(store, "me", KEYS)
    assert isinstance(replies.pop(31), asyncpg.CheckViolationError)
    assert all(isinstance(reply, Acquired) for reply in replies)
    assert len(sent) <= 1 + 2 * 6, "asked again in halves, and not one by one"


async def errors_of_their_own(store: PostgresLockStore, person: Any) -> None:
    await person.execute("DROP TABLE tenure_locks")
    errors = await take_all(store, "me", KEYS[:8])
    assert all(isinstance(error, asyncpg.UndefinedTableError) for error in errors)
    assert len({id(error) for error in errors}) == 8
    for error in errors:
        error.add_note("seen")
    assert all(len(error.__notes__) == 2 for error in errors), "what one caller notes is in no other's error"
    assert all("create_schema_sql()" in error.__notes__[0] for error in errors)


async def test_each_caller_gets_an_error_of_its_own(store: PostgresLockStore, person: Any) -> None:
    await errors_of_their_own(store, person)


async def killed_under_way(store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits) -> None:
    """End the lane's connection in the middle of a statement of eight callers."""
    await take_all(store, "me", WARM)
    async with locked_table():
        calls = [asyncio.create_task(store.acquire(key, "me", 60_000)) for key in KEYS[:8]]
        await waits_for_a_row()
        waiting = "datname = current_database() AND wait_event_type = 'Lock'"
        await person.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {waiting}")
        errors = await all_of(calls)
    assert all(isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | OSError) for error in errors)
    assert len({id(error) for error in errors}) == 8
    assert all(isinstance(reply, Acquired) for reply in await take_all(store, "me", KEYS)), "and it goes on"


async def test_a_connection_that_is_killed_fails_those_who_were_under_way_each_with_an_error_of_its_own(
    store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits
) -> None:
    await killed_under_way(store, person, locked_table, waits_for_a_row)


async def test_planted_an_error_that_callers_share(
    store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "_own", lambda error: error)
    with pytest.raises(AssertionError):
        await killed_under_way(store, person, locked_table, waits_for_a_row)


async def one_winner_a_key(store: PostgresLockStore, person: Any) -> None:
    for _ in ("a key that is new", "a key that was released"):
        names = [f"owner-{number}" for number in range(30)]
        replies = await all_of(store.acquire("job", name, 60_000) for name in names)
        winners = [name for name, reply in zip(names, replies, strict=True) if isinstance(reply, Acquired)]
        assert sum(isinstance(reply, Held) for reply in replies) == 29
        assert [(await owners(person))["job"]] == winners
        assert await store.release("job", winners[0])


async def test_of_many_who_ask_for_one_key_at_once_one_wins(store: PostgresLockStore, person: Any) -> None:
    await one_winner_a_key(store, person)


async def test_planted_a_key_that_is_twice_in_a_group_tells_the_wrong_owner(
    store: PostgresLockStore, person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "_each_key_once", lambda calls: (list(calls), []))
    with pytest.raises(AssertionError):
        await one_winner_a_key(store, person)


# ---------------------------------------------------------------------------------------------------- cancellation


async def test_a_caller_that_is_cancelled_before_its_call_was_sent_is_taken_out(
    store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits
) -> None:
    await take_all(store, "me", WARM)
    async with locked_table():
        first = asyncio.create_task(store.acquire("first", "me", 60_000))
        await waits_for_a_row()
        others = [asyncio.create_task(store.acquire(key, "me", 60_000)) for key in KEYS]
        await asyncio.sleep(0)
        others[3].cancel()
        await asyncio.wait({others[3]}, timeout=5)
        assert others[3].cancelled(), "it waits for nobody"
    assert isinstance(await first, Acquired)
    replies = await all_of(call for call in others if call is not others[3])
    assert all(isinstance(reply, Acquired) for reply in replies)
    assert KEYS[3] not in await owners(person)


async def cancelled_under_way(store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits) -> None:
    """Cancel one of fifty callers in the middle of their statement, twice; then let the statement go on."""
    await take_all(store, "me", WARM)
    async with locked_table():
        calls = [asyncio.create_task(store.acquire(key, "me", 60_000)) for key in KEYS]
        await waits_for_a_row()
        for _ in range(2):
            calls[3].cancel()
            await asyncio.sleep(0.01)
        early = [call for call in calls if call.done()]
    await asyncio.wait(calls)
    assert not early, "a release that goes behind it would come first"
    assert calls[3].cancelled()
    assert all(isinstance(call.result(), Acquired) for call in calls if call is not calls[3])
    assert (await owners(person))[KEYS[3]] == "me"
    assert await store.release(KEYS[3], "me"), "as the engine does, behind a call of unknown outcome"


async def test_a_caller_that_is_cancelled_under_way_waits_for_its_group_and_leaves_it_intact(
    store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits
) -> None:
    await cancelled_under_way(store, person, locked_table, waits_for_a_row)


async def test_planted_a_cancelled_caller_that_leaves_at_once_lets_its_release_overtake(
    store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(*_: Any) -> None: ...

    monkeypatch.setattr(Lane, "_leave", leave)
    with pytest.raises(AssertionError):
        await cancelled_under_way(store, person, locked_table, waits_for_a_row)


async def test_planted_a_cancelled_caller_that_takes_its_group_along(
    store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = Lane._leave

    async def leave_and_give_up(self: Lane, call: Any) -> None:
        if self._under_way is not None:
            self._give_up(self._under_way)
        await leave(self, call)

    monkeypatch.setattr(Lane, "_leave", leave_and_give_up)
    with pytest.raises((AssertionError, TimeoutError)):
        await cancelled_under_way(store, person, locked_table, waits_for_a_row)


async def test_a_statement_that_nobody_waits_for_any_more_ends_on_the_server(
    store: PostgresLockStore, person: Any, locked_table: Any, waits_for_a_row: Waits, until: Until
) -> None:
    await take_all(store, "me", WARM)
    async with locked_table():
        calls = [asyncio.create_task(store.acquire(key, "me", 60_000)) for key in KEYS]
        await waits_for_a_row()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert all(call.cancelled() for call in calls)
        none = (
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database()"
            " AND query LIKE '/* tenure:locks/%' AND state = 'active'"
        )
        await until(lambda: person.fetchval(none), "the abandoned statement to end")
    assert set(await owners(person)) == set(WARM)
    assert isinstance(await store.acquire(KEYS[0], "me", 60_000), Acquired)


# ---------------------------------------------------------------------- the group's statements against those for one


async def expire(person: Any, key: str, tables: tuple[str, ...]) -> None:
    for table in tables:
        await person.execute(f"UPDATE {table} SET expires_at = clock_timestamp() WHERE key = $1", key)


async def last_tokens(person: Any, table: str) -> dict[str, int]:
    return {row["key"]: row["token"] for row in await person.fetch(f"SELECT key, token FROM {table}")}


def shape(reply: Any, last_token: int) -> Any:
    """What of a reply does not depend on when it was given."""
    if isinstance(reply, Acquired):
        return ("acquired", reply.after, reply.token == last_token, reply.token == last_token + 1)
    if isinstance(reply, Held):
        return ("held", reply.expires_in_ms is not None and reply.expires_in_ms > 500_000)
    return type(reply) if isinstance(reply, Exception) else reply


async def random_history(
    together: PostgresLockStore, alone: PostgresLockStore, person: Any, seed: int, rounds: int
) -> int:
    """Ask one store in groups and the other one call after the other; every answer and every row is the same."""
    chance, calls = random.Random(seed), 0
    tables = (str(together.table), str(alone.table))
    for _ in range(rounds):
        plan = [
            (chance.choice(("acquire", "acquire", "renew", "release")), key, f"owner-{chance.randrange(3)}")
            for key in chance.sample(KEYS, chance.randrange(2, 30))
        ]
        calls += len(plan)

        def ask(store: PostgresLockStore, call: tuple[str, str, str]) -> Awaitable[Any]:
            name, key, owner = call
            return store.release(key, owner) if name == "release" else getattr(store, name)(key, owner, 600_000)

        before = [await last_tokens(person, table) for table in tables]
        grouped = await all_of(ask(together, call) for call in plan)
        single = [(await all_of([ask(alone, call)]))[0] for call in plan]
        for (_, key, _), reply, right in zip(plan, grouped, single, strict=True):
            assert shape(reply, before[0].get(key, 0)) == shape(right, before[1].get(key, 0))
        for key in chance.sample(KEYS, 3):
            await expire(person, key, tables)
        if chance.random() < 0.2:  # the server's clock stepped back, as far as these rows can tell
            ahead = "UPDATE {} SET token = token + 60000000 WHERE key = $1 AND token < 9000000000000000"
            key = chance.choice(KEYS)
            for table in tables:
                await person.execute(ahead.format(table), key)
        look = "SELECT key, owner, after, expires_at > clock_timestamp() AS live FROM {} ORDER BY key"
        first, second = [await person.fetch(look.format(table)) for table in tables]
        assert first == second
    return calls


@pytest.fixture
async def pair(store: PostgresLockStore, person: Any, engine: AsyncEngine) -> tuple[Any, Any]:
    await person.execute(create_schema_sql(table="alone"))
    return store, PostgresLockStore(engine, table="alone")


async def test_a_group_answers_as_single_calls_would_over_two_thousand_random_calls(
    pair: tuple[PostgresLockStore, PostgresLockStore], person: Any
) -> None:
    assert await random_history(*pair, person, seed=7, rounds=130) >= 2000


@pytest.mark.parametrize(
    ("statement", "right", "wrong"),
    [
        ("acquire_many", "own.expires_at > own.at THEN own.token", "own.expires_at > own.at THEN own.token + 1"),
        ("acquire_many", ", own.token + 1)", ", 0)"),
        ("acquire_many", "own.expires_at > own.at THEN own.after", "own.expires_at > own.at THEN 'expired'"),
        ("acquire_many", "lock.owner IS NULL OR", "true OR"),
        ("renew_many", "lock.owner = claim.owner AND", ""),
        ("release_many", "claim.owner AND lock.expires_at > clock_timestamp()", "claim.owner"),
    ],
)
async def test_planted_a_group_that_decides_otherwise_is_found_out(
    pair: tuple[PostgresLockStore, PostgresLockStore],
    person: Any,
    planted_locks: Any,
    *,
    statement: str,
    right: str,
    wrong: str,
) -> None:
    planted_locks(pair[0], statement, (right, wrong))
    with pytest.raises(AssertionError):
        await random_history(*pair, person, seed=7, rounds=130)


async def tokens_grow(store: PostgresLockStore, person: Any) -> None:
    """The rows' tokens are ahead of the clock, as after a step back of it: each next one is greater all the same."""
    await take_all(store, "first", KEYS)
    await all_of(store.release(key, "first") for key in KEYS)
    await person.execute("UPDATE tenure_locks SET token = token + 3600000000")
    before = {row["key"]: row["token"] for row in await person.fetch("SELECT key, token FROM tenure_locks")}
    replies = await take_all(store, "second", KEYS)
    assert all(reply.token == before[key] + 1 for key, reply in zip(KEYS, replies, strict=True))


async def test_tokens_grow_in_a_group_too(store: PostgresLockStore, person: Any) -> None:
    await tokens_grow(store, person)


async def test_planted_a_token_that_is_drawn_before_its_row_is_locked(
    store: PostgresLockStore, person: Any, planted_locks: Any
) -> None:
    """From the clock at the beginning of the statement alone: a row that was taken since has a greater one."""
    drawn_before = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
    right = "greatest((extract(epoch FROM own.at) * 1000000)::bigint, own.token + 1)"
    planted_locks(store, "acquire_many", (right, drawn_before))
    with pytest.raises(AssertionError):
        await tokens_grow(store, person)
