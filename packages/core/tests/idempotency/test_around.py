"""What surrounds an execution: effects that are asserted, seals, the end of its `Idempotency`, and random failures."""

import asyncio
import random
from typing import Any

import pytest
from world import LOCK_S, World, begin, replayed

from tenure import ConfigurationError, LossReason, StoreReplyError, StoreTimeoutError
from tenure.events import (
    IdempotencyClosed,
    IdempotencyOutcome,
    IdempotencyStarted,
)
from tenure.idempotency import (
    Completion,
    ExecutionLostError,
    Idempotency,
    InFlightError,
    InMemoryIdempotencyStore,
    Replay,
    SealError,
    Settled,
)
from tenure.store import Finding
from tenure.testing import FaultyIdempotencyStore, virtual

# ----------------------------------------------------------------------------- effects, seals, end


class Effects:
    """A store that records effects, of whatever became of the transaction."""

    def __init__(self, inner: InMemoryIdempotencyStore) -> None:
        self.inner = inner
        self.committed = False
        self.replaced = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def assert_owner(self, connection: Any, key: str, owner: str) -> None:
        if self.replaced:
            raise ExecutionLostError

    async def effect_committed(self, key: str, owner: str) -> bool:
        return self.committed


@virtual
async def test_a_commit_that_failed_silently_is_not_stored_as_done() -> None:
    world = World()
    store = Effects(world.inner)
    async with world.instance(store=store) as one:
        execution = await begin(one)
        await execution.context.assert_owner(object())
        assert await execution.complete(b"201") is Settled.RELEASED
        again = await begin(one)
        assert again.context.attempt == 1
        await again.context.assert_owner(object())
        store.committed = True
        assert await again.complete(b"201") is Settled.STORED


@virtual
async def test_an_execution_that_was_replaced_cannot_assert_its_effect() -> None:
    world = World()
    store = Effects(world.inner)
    store.replaced = True
    async with world.instance(store=store) as one:
        execution = await begin(one)
        with pytest.raises(ExecutionLostError):
            await execution.context.assert_owner(object())
        # What it did not assert is not asked for.
        assert await execution.complete(b"201") is Settled.STORED


@virtual
async def test_the_failure_of_a_handler_whose_effect_is_committed_is_not_reported_as_a_replacement() -> None:
    world = World()
    store = Effects(world.inner)
    async with world.instance(store=store) as one:
        execution = await begin(one)
        await execution.context.assert_owner(object())
        await world.inner.release("k", execution.context.owner)  # as a store that keeps such a record answers: False
        assert not await execution.release()
    assert world.outcomes()[-1] is IdempotencyOutcome.ABANDONED


class Reversed:
    """A sealer that anyone could open, and that looks at what its seal is bound to."""

    def seal(self, plain: bytes, *, bound_to: bytes) -> bytes:
        return bound_to + plain[::-1]

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes:
        if not sealed.startswith(bound_to):
            raise SealError("moved")
        return sealed.removeprefix(bound_to)[::-1]


@virtual
async def test_what_is_stored_is_sealed_and_bound_to_its_record() -> None:
    world = World()
    async with world.instance(sealer=Reversed()) as one:
        await (await begin(one)).complete(b"secret")
        record = world.inner._records["k"]
        assert record.response is not None
        assert b"secret" not in record.response
        assert await replayed(one) == b"secret"
        world.inner._records["other"] = record
        with pytest.raises(SealError):
            await one.begin("other", "f")


class Broken(Reversed):
    def seal(self, plain: bytes, *, bound_to: bytes) -> bytes:
        raise SealError("no key")


@virtual
async def test_a_sealer_that_fails_leaves_the_outcome_unknown_and_holds_nothing_up() -> None:
    world = World()
    async with world.instance(sealer=Broken()) as one:
        execution = await begin(one)
        with pytest.raises(SealError):
            await execution.complete(b"secret")
        assert execution.settled is Settled.ABANDONED
        assert one.running == 0
        await asyncio.sleep(LOCK_S)
        assert (await begin(one)).context.attempt == 2


@virtual
async def test_a_response_that_something_else_wrote_is_an_error_and_never_a_reason_to_run() -> None:
    world = World()
    async with world.instance() as one:
        await world.inner.acquire("k", "somebody", "f", 1000, 1000)
        await world.inner.complete("k", "somebody", b"whatever", 100_000)
        with pytest.raises(StoreReplyError, match="sealer"):
            await one.begin("k", "f")


@virtual
async def test_a_stored_result_that_the_codec_cannot_read_is_an_error_without_a_word_of_it() -> None:
    world = World()
    runs: list[str] = []

    async def charge() -> None:
        runs.append("again")

    async with world.instance() as one:
        for key, stored in (("text", b"secret"), ("deep", b"[" * 100_000 + b"secret")):
            await (await begin(one, key)).complete(stored)
            with pytest.raises(StoreReplyError, match=r"cannot be decoded \((JSONDecode|Recursion)Error\)") as caught:
                await one.run(key, "f", charge)
            assert (caught.value.__context__, runs) == (None, [])
            assert "secret" not in str(caught.value)


@virtual
async def test_leaving_waits_for_a_completion_that_is_being_tried_again() -> None:
    world = World()
    async with world.instance(drain=10) as one:
        execution = await begin(one)
        world.store.on("complete").lose_request(times=4)
        assert await execution.complete(b"done") is Settled.PENDING
    assert execution.settled is Settled.STORED
    assert isinstance(world.events[0], IdempotencyStarted)
    assert world.events[-1] == IdempotencyClosed(one.instance, 0)


@virtual
async def test_leaving_waits_no_longer_than_it_was_told_and_says_what_it_left() -> None:
    world = World()
    async with world.instance(drain=2) as one:
        running, pending = await begin(one), await begin(one, "p")
        world.store.on("complete").lose_request()
        assert await pending.complete(b"done") is Settled.PENDING
        before = world.clock.now()
    assert world.clock.now() - before < 5
    assert world.events[-1] == IdempotencyClosed(one.instance, 2)
    assert running.context.lost_reason is LossReason.CLOSED
    world.store.heal()


@virtual
async def test_no_event_and_no_repr_holds_a_key_an_owner_a_fingerprint_or_a_payload() -> None:
    world = World()
    key, payload = "canary-key", b"canary-payload"
    async with world.instance(secret=b"canary-secret-16-bytes") as one:
        execution = await begin(one, key)
        owner = execution.context.owner
        said = [repr(execution), repr(execution.context), repr(one), repr(execution._ticket)]
        world.store.on("extend").lose_request(times=1)
        await asyncio.sleep(LOCK_S)
        await execution.complete(payload)
        said.append(repr(await one.begin(key, "f")))
        with pytest.raises(Exception, match="another payload") as told:
            await one.begin(key, "canary-fingerprint")
        said.append(repr(told.value) + str(told.value))
    said.extend(map(repr, world.events))
    for secret in ("canary", owner, owner.rpartition(":")[2]):
        assert [text for text in said if secret in text] == []


@virtual
async def test_random_failures_never_let_two_executions_run_at_once_or_a_completed_one_again() -> None:
    for seed in range(40):
        world = World()
        chance = random.Random(seed)
        world.store = FaultyIdempotencyStore(world.inner, clock=world.clock, seed=seed)
        done: list[int] = []
        running = 0

        async def client(one: Idempotency, chance: random.Random = chance, done: list[int] = done) -> None:
            nonlocal running
            for _ in range(12):
                await asyncio.sleep(chance.random())
                try:
                    begun = await one.begin("k", "f")
                except (InFlightError, ConnectionError, StoreTimeoutError):
                    continue
                if isinstance(begun, Replay):
                    assert done
                    continue
                assert not done
                assert running == 0
                running += 1
                await asyncio.sleep(chance.random() * 2)
                running -= 1
                if chance.random() < 0.5:
                    await begun.release()
                else:
                    await begun.complete(b"done")
                    done.append(begun.context.attempt)

        async with world.instance() as one, world.instance() as other:
            for method in ("acquire", "extend", "release"):
                world.store.on(method, chance=0.2).lose_request()
                world.store.on(method, chance=0.2).lose_reply()
            await asyncio.gather(*(client(instance) for instance in (one, other) for _ in range(3)))
            world.store.heal()
        assert world.store.fired["lose_reply"] > 0


def test_a_completion_says_what_became_of_it() -> None:
    assert [one.value for one in Completion] == ["stored", "stale", "gone"]


class Looks:
    """A store whose server can be looked at."""

    def __init__(self, inner: InMemoryIdempotencyStore, findings: list[Finding]) -> None:
        self.inner = inner
        self.findings = findings

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def check(self) -> list[Finding]:
        return self.findings


@virtual
async def test_a_store_that_cannot_work_stops_the_start_and_is_told_of_later() -> None:
    world = World()
    finding = Finding("table-missing", fatal=True, message="There is no table.", remedy="Run the migration.")
    store = Looks(world.inner, [finding])
    with pytest.raises(ConfigurationError, match="Run the migration"):
        await world.instance(store=store).__aenter__()
    store.findings = []
    async with world.instance(store=store) as one:
        assert await one.check() == []
        store.findings = [finding]
        assert await one.check() == [finding]


@virtual
async def test_a_lock_that_its_server_cannot_keep_alive_is_refused_at_the_start() -> None:
    world = World()
    world.store.on("release").slow_reply(1.5)
    with pytest.raises(ConfigurationError, match="three round trips"):
        await world.instance(store_timeout=LOCK_S).__aenter__()
