"""`Idempotency.run`: a function runs once under its key, and a repeat is told what became of it."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import world
from world import LOCK_S

from tenure import ConfigurationError, LeaseStateError
from tenure.events import IdempotencyOutcome
from tenure.idempotency import (
    Idempotency,
    IdempotencyContext,
    InFlightError,
    InMemoryIdempotencyStore,
    KeyReusedError,
    NoEffectError,
    OutcomeUnknownError,
    ResponseNotStoredError,
)
from tenure.testing import FaultyIdempotencyStore, virtual


class World(world.World):
    """The same, and a function that counts its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[int] = []

    async def work(self, context: IdempotencyContext) -> dict[str, int]:
        self.runs.append(context.attempt)
        return {"run": len(self.runs)}


async def gone(after_s: float = LOCK_S) -> None:
    """Let an execution that stopped extending lose its lock."""
    await asyncio.sleep(after_s + 0.01)


def raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def fn() -> None:
        raise error

    return fn


@virtual
async def test_a_repeat_gets_what_the_first_run_returned_and_runs_nothing() -> None:
    world = World()
    async with world.instance() as first, world.instance() as second:
        assert await first.run("k", "f", world.work) == {"run": 1}
        assert await second.run("k", "f", world.work) == {"run": 1}
    assert world.runs == [1]
    assert world.outcomes() == [IdempotencyOutcome.ACQUIRED, IdempotencyOutcome.STORED, IdempotencyOutcome.REPLAYED]


@virtual
async def test_the_first_caller_gets_what_a_repeat_gets() -> None:
    world = World()

    async def fn() -> dict[Any, Any]:
        return {1: (2, 3)}

    async with world.instance() as one:
        assert await one.run("k", "f", fn) == {"1": [2, 3]}
        assert await one.run("k", "f", fn) == {"1": [2, 3]}


@virtual
async def test_of_many_callers_one_runs_and_the_others_are_told_that_it_does() -> None:
    world = World()

    async def slow(context: IdempotencyContext) -> int:
        world.runs.append(context.attempt)
        await asyncio.sleep(1)
        return 7

    async with world.instance() as one, world.instance() as other:
        callers = [instance.run("k", "f", slow) for instance in (one, other) for _ in range(16)]
        replies = await asyncio.gather(*callers, return_exceptions=True)
        assert [reply for reply in replies if not isinstance(reply, InFlightError)] == [7]
        assert all(0 < error.retry_after_s <= LOCK_S for error in replies if isinstance(error, InFlightError))
    assert world.runs == [1]


@virtual
async def test_a_caller_that_waits_gets_the_answer_of_the_run_in_flight() -> None:
    world = World()

    async def slow() -> int:
        await asyncio.sleep(1)
        return 7

    async with world.instance() as one:
        first = asyncio.create_task(one.run("k", "f", slow))
        await world.store.called("acquire")
        assert await one.run("k", "f", slow, wait=5) == 7
        assert await first == 7


@virtual
async def test_a_caller_that_waits_too_short_is_told_that_it_runs() -> None:
    world = World()
    async with world.instance() as one:
        first = asyncio.create_task(one.run("k", "f", functools.partial(asyncio.sleep, 10)))
        await world.store.called("acquire")
        began = world.clock.now()
        with pytest.raises(InFlightError):
            await one.run("k", "f", world.work, wait=2)
        assert 2 <= world.clock.now() - began < 3
        await first


@virtual
async def test_a_storm_of_waiting_callers_is_bounded() -> None:
    world = World()
    async with world.instance() as one:
        first = asyncio.create_task(one.run("k", "f", functools.partial(asyncio.sleep, 1)))
        await world.store.called("acquire")
        replies = await asyncio.gather(
            *(one.run("k", "f", world.work, wait=5) for _ in range(150)), return_exceptions=True
        )
        assert sum(isinstance(reply, InFlightError) for reply in replies) == 50
        await first


@virtual
async def test_another_fingerprint_under_the_key_is_refused_in_every_state() -> None:
    world = World()
    async with world.instance() as one:
        begun = await one.begin("k", "f")
        with pytest.raises(KeyReusedError):
            await one.run("k", "other", world.work)
        begun.abandon()  # type: ignore[union-attr]
        await gone()
        with pytest.raises(KeyReusedError):
            await one.run("k", "other", world.work)
        assert await one.run("k", "f", world.work) == {"run": 1}
        with pytest.raises(KeyReusedError):
            await one.run("k", "other", world.work)
    assert world.runs == [2]


@virtual
async def test_a_function_that_raises_may_run_again() -> None:
    world = World()
    async with world.instance() as one:
        with pytest.raises(ZeroDivisionError):
            await one.run("k", "f", raising(ZeroDivisionError()))
        assert await one.run("k", "f", world.work) == {"run": 1}
    assert world.runs == [1]


@virtual
async def test_a_function_whose_errors_abandon_leaves_its_outcome_unknown() -> None:
    world = World()
    async with world.instance() as one:
        with pytest.raises(ZeroDivisionError):
            await one.run("k", "f", raising(ZeroDivisionError()), on_error="abandon")
        with pytest.raises(InFlightError):
            await one.run("k", "f", world.work)
        await gone()
        await one.run("k", "f", world.work)
    assert world.runs == [2]


@virtual
async def test_no_effect_releases_whatever_the_policy() -> None:
    world = World()
    async with world.instance() as one:
        with pytest.raises(NoEffectError):
            await one.run("k", "f", raising(NoEffectError("the provider was closed")), on_error="abandon")
        await one.run("k", "f", world.work)
    assert world.runs == [1]


@virtual
async def test_unknown_outcome_abandons_whatever_the_policy() -> None:
    world = World()
    async with world.instance() as one:
        with pytest.raises(OutcomeUnknownError):
            await one.run("k", "f", raising(OutcomeUnknownError()))
        await gone()
        with pytest.raises(OutcomeUnknownError) as refused:
            await one.run("k", "f", world.work, on_abandoned="refuse")
        assert refused.value.attempt == 1
        await one.run("k", "f", world.work)
    assert world.runs == [2]


@virtual
async def test_a_cancelled_function_is_neither_released_nor_completed() -> None:
    world = World()
    began = asyncio.Event()

    async def fn() -> None:
        began.set()
        await asyncio.sleep(100)

    async with world.instance() as one:
        running = asyncio.create_task(one.run("k", "f", fn))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert world.store.calls["release"] == 3  # the start's own, which measures the round trip
        with pytest.raises(InFlightError):
            await one.run("k", "f", world.work)
        await gone()
        await one.run("k", "f", world.work)
    assert world.runs == [2]


@virtual
async def test_a_function_says_itself_what_becomes_of_its_record() -> None:
    world = World()

    async def released(context: IdempotencyContext) -> str:
        context.settlement = "release"
        return "out of stock"

    async def abandoned(context: IdempotencyContext) -> str:
        context.settlement = "abandon"
        return "perhaps"

    async with world.instance() as one:
        assert await one.run("r", "f", released) == "out of stock"
        assert await one.run("r", "f", world.work) == {"run": 1}
        assert await one.run("a", "f", abandoned) == "perhaps"
        with pytest.raises(InFlightError):
            await one.run("a", "f", world.work)


@virtual
async def test_a_result_that_cannot_be_stored_is_returned_once_and_never_leads_to_a_second_run() -> None:
    world = World()
    result = object()

    async def fn() -> object:
        return result

    async with world.instance() as one:
        assert await one.run("k", "f", fn) is result
        with pytest.raises(ResponseNotStoredError):
            await one.run("k", "f", world.work)
        await gone()
        with pytest.raises(ResponseNotStoredError):
            await one.run("k", "f", world.work)
    assert world.runs == []


@virtual
async def test_nan_is_no_json_and_is_not_stored_as_such() -> None:
    world = World()

    async def fn() -> float:
        return float("nan")

    async with world.instance() as one:
        await one.run("k", "f", fn)
        with pytest.raises(ResponseNotStoredError):
            await one.run("k", "f", fn)


@virtual
async def test_after_a_failed_second_attempt_the_third_is_not_told_that_it_is_the_first() -> None:
    world = World()
    async with world.instance() as one:
        with pytest.raises(OutcomeUnknownError):
            await one.run("k", "f", raising(OutcomeUnknownError()))
        await gone()
        with pytest.raises(ZeroDivisionError):
            await one.run("k", "f", raising(ZeroDivisionError()))
        await one.run("k", "f", world.work)  # at once: the second had no effect
    assert world.runs == [3]


@virtual
async def test_a_retention_of_its_own_ends_when_it_says() -> None:
    world = World()
    async with world.instance() as one:
        await one.run("k", "f", world.work, retention=10)
        await asyncio.sleep(9.9)
        await one.run("k", "f", world.work)
        await asyncio.sleep(0.2)
        await one.run("k", "f", world.work)
    assert world.runs == [1, 1]


@virtual
async def test_a_downstream_key_is_the_same_for_every_attempt_and_another_for_every_key_and_label() -> None:
    world = World()
    seen: list[str] = []

    async def fn(context: IdempotencyContext) -> None:
        seen.append(context.downstream_key("charge"))
        seen.append(context.downstream_key("refund"))
        if context.attempt == 1:
            raise OutcomeUnknownError

    async with world.instance(secret=b"s" * 16) as one:
        with pytest.raises(OutcomeUnknownError):
            await one.run("k", "f", fn)
        await gone()
        await one.run("k", "f", fn)
    assert seen[:2] == seen[2:]
    assert len({*seen}) == 2
    assert all(len(key) == 32 for key in seen)


@virtual
async def test_an_effect_cannot_be_asserted_where_records_are_not_in_the_applications_database() -> None:
    world = World()

    async def fn(context: IdempotencyContext) -> None:
        with pytest.raises(ConfigurationError, match="PostgresIdempotencyStore"):
            await context.assert_owner(object())

    async with world.instance() as one:
        await one.run("k", "f", fn)


@pytest.mark.parametrize(
    ("fn", "says"),
    [(None, "async function"), (lambda a, b: None, "functools.partial"), (lambda *, a: None, "functools.partial")],
)
async def test_what_cannot_be_run_is_refused_before_anything_is_sent(fn: Any, says: str) -> None:
    store = FaultyIdempotencyStore(InMemoryIdempotencyStore())
    async with Idempotency(store, hooks=[]) as one:
        with pytest.raises(ConfigurationError, match=says):
            await one.run("k", "f", fn)
        assert store.calls["acquire"] == 0


@pytest.mark.parametrize(
    ("key", "fingerprint", "options"),
    [
        ("", "f", {}),
        ("k" * 501, "f", {}),
        ("a\0b", "f", {}),
        ("k", "", {}),
        ("k", "f" * 201, {}),
        ("k", "f", {"wait": -1}),
        ("k", "f", {"retention": 0}),
        ("k", "f", {"retention": "soon"}),
        ("k", "f", {"on_error": "store"}),
        ("k", "f", {"on_abandoned": "perhaps"}),
    ],
)
async def test_a_wrong_argument_is_refused_before_anything_is_sent(key: str, fingerprint: str, options: Any) -> None:
    store = FaultyIdempotencyStore(InMemoryIdempotencyStore())
    async with Idempotency(store, hooks=[]) as one:
        with pytest.raises(ConfigurationError):
            await one.run(key, fingerprint, functools.partial(asyncio.sleep, 0), **options)
        assert store.calls["acquire"] == 0


async def test_a_fingerprint_tells_its_parts_apart_and_needs_the_secret() -> None:
    one, other = (Idempotency(InMemoryIdempotencyStore(), secret=secret * 16) for secret in (b"a", b"b"))
    assert one.fingerprint("ab", "c") != one.fingerprint("a", "bc")
    assert one.fingerprint("ab", b"c") == one.fingerprint(b"ab", "c")
    assert one.fingerprint("ab") != other.fingerprint("ab")
    assert len(one.fingerprint()) == 64


async def test_it_is_entered_once_and_used_while_it_is_open() -> None:
    one = Idempotency(InMemoryIdempotencyStore(), hooks=[])
    fn = functools.partial(asyncio.sleep, 0)
    with pytest.raises(LeaseStateError, match="not started"):
        await one.run("k", "f", fn)
    async with one:
        await one.run("k", "f", fn)
    with pytest.raises(LeaseStateError, match="closed"):
        await one.run("k", "f", fn)
    with pytest.raises(LeaseStateError, match="entered once"):
        await one.__aenter__()
    await one.close()


async def test_another_event_loop_or_process_is_refused() -> None:
    one = Idempotency(InMemoryIdempotencyStore(), hooks=[])
    async with one:
        pid, one._pid = one._pid, -1
        with pytest.raises(LeaseStateError, match="fork"):
            await one.run("k", "f", functools.partial(asyncio.sleep, 0))
        one._pid = pid

        def elsewhere() -> None:
            asyncio.run(one.run("k", "f", functools.partial(asyncio.sleep, 0)))

        with pytest.raises(LeaseStateError, match="another event loop"):
            await asyncio.to_thread(elsewhere)


@pytest.mark.parametrize(
    "options",
    [
        {"lock_ttl": 0},
        {"retention": -1},
        {"grace": "soon"},
        {"on_abandoned": "maybe"},
        {"max_execution": 0},
        {"completion_deadline": -1},
        {"store_timeout": 60},
        {"secret": "text"},
        {"secret": b"short"},
    ],
)
def test_a_wrong_setting_is_refused_when_it_is_made(options: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Idempotency(InMemoryIdempotencyStore(), **options)
    assert "short'" not in str(refused.value)


@pytest.mark.parametrize("store", ["memory://", None, object()])
def test_what_is_no_store_is_refused_when_it_is_made(store: Any) -> None:
    with pytest.raises(ConfigurationError, match="idempotency store"):
        Idempotency(store)
