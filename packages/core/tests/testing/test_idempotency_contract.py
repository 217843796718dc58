"""The idempotency contract on stores that keep it, in every way in which it can be run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.errors import ConfigurationError
from tenure.idempotency_store import AcquireReply, Completion, InFlight, RecordsEffects
from tenure.memory import InMemoryIdempotencyStore
from tenure.testing import Case, LoopClock, ManualClock, idempotency_store_contract, run_all, run_virtual
from tenure.testing.idempotency_mutants.model import Row, Server, SoundRecords

manual = ManualClock()


@pytest.mark.parametrize(
    "case",
    idempotency_store_contract(
        lambda: InMemoryIdempotencyStore(manual), concurrent=True, advance_time=manual.advance, purges=True
    ),
    ids=str,
)
async def test_the_in_memory_store_keeps_the_contract_on_a_manual_clock(case: Case) -> None:
    await case.run()


@pytest.mark.matrix
async def test_the_in_memory_store_keeps_the_contract_in_real_time() -> None:
    # 1.2 s: a quarter of it, 0.3 s, is what a loaded machine may lose before a look just before an end comes after it.
    await run_all(idempotency_store_contract(InMemoryIdempotencyStore, concurrent=4, rounds=3, ttl_ms=1200))


def test_in_real_time_one_after_the_other_the_cases_take_less_than_90_seconds() -> None:
    async def main() -> float:
        cases = idempotency_store_contract(lambda: InMemoryIdempotencyStore(LoopClock()), concurrent=True)
        loop = asyncio.get_running_loop()
        start = loop.time()
        await run_all(cases, parallel=False)
        return loop.time() - start

    # Virtual seconds: what the waits add up to, on a server that answers at once.
    assert run_virtual(main) < 90


def test_side_by_side_they_take_as_long_as_the_longest_and_the_purges() -> None:
    async def main() -> float:
        cases = idempotency_store_contract(lambda: InMemoryIdempotencyStore(LoopClock()))
        start = asyncio.get_running_loop().time()
        await run_all(cases)
        return asyncio.get_running_loop().time() - start

    assert run_virtual(main) < 12


class ExpiresByItself(SoundRecords):
    """A store with native expiry: what has ended is gone, and a purge has nothing to do."""

    async def purge(self, limit: int = 1000) -> int:
        self.check_count(limit)
        return 0


class PurgesSome(SoundRecords):
    """A store that purges one record a call of its own accord, and tells of two."""

    purged = 0

    async def purge(self, limit: int = 1000) -> int:
        purged = await super().purge(limit)
        PurgesSome.purged += 1
        return 2 if PurgesSome.purged == 2 else min(purged, 0)


def purging_case(store: type[SoundRecords], *, purges: bool | None) -> Case:
    clock = ManualClock()
    server = Server(clock)
    cases = idempotency_store_contract(lambda: store(server), advance_time=clock.advance, purges=purges)
    (case,) = [case for case in cases if case.name.startswith("A purge deletes")]
    return case


@pytest.mark.parametrize(
    ("store", "purges", "keeps"),
    [
        (SoundRecords, True, True),
        (SoundRecords, None, True),
        (SoundRecords, False, False),
        (ExpiresByItself, True, False),
        (ExpiresByItself, None, True),
        (ExpiresByItself, False, True),
        (PurgesSome, None, False),
    ],
)
def test_a_purge_deletes_all_or_nothing_as_was_said(
    store: type[SoundRecords], purges: bool | None, keeps: bool
) -> None:
    case = purging_case(store, purges=purges)
    if keeps:
        run_virtual(case.run)
    else:
        with pytest.raises(AssertionError, match=r"(ended records|by itself) deleted"):
            run_virtual(case.run)


def test_cases_of_effects_are_added_with_a_transaction_and_skipped_where_the_store_has_none() -> None:
    clock = ManualClock()
    server = Server(clock)
    cases = idempotency_store_contract(
        lambda: SoundRecords(server), advance_time=clock.advance, effects=server.transaction
    )
    effects = [case for case in cases if case.capability is RecordsEffects]
    assert len(effects) >= 7
    run_virtual(lambda: run_all(cases))
    assert len(cases) == len(effects) + len(idempotency_store_contract(InMemoryIdempotencyStore))


class Context:
    """An async context manager that gives a store, and tells when it was left."""

    left = 0

    @asynccontextmanager
    async def make(self) -> AsyncIterator[InMemoryIdempotencyStore]:
        try:
            yield InMemoryIdempotencyStore(LoopClock())
        finally:
            self.left += 1

    async def generate(self) -> AsyncIterator[InMemoryIdempotencyStore]:
        try:
            yield InMemoryIdempotencyStore(LoopClock())
        finally:
            self.left += 1

    async def enter_later(self) -> Any:
        return self.make()


@pytest.mark.parametrize("way", ["make", "generate", "enter_later"])
def test_a_store_is_cleaned_up_after_each_case(way: str) -> None:
    context = Context()
    for case in idempotency_store_contract(getattr(context, way))[:4]:
        run_virtual(case.run)
    assert context.left == 4


def test_the_names_of_cases_are_unique_and_every_rule_that_a_store_can_break_has_some() -> None:
    async def restart() -> None: ...

    cases = idempotency_store_contract(
        InMemoryIdempotencyStore, concurrent=True, restart=restart, effects=Server(manual).transaction
    )
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert {case.rule for case in cases} == set(range(1, 10))
    assert all(case.race.endswith(".") for case in cases)


def test_races_and_restarts_are_added_on_request() -> None:
    async def restart() -> None: ...

    plain = len(idempotency_store_contract(InMemoryIdempotencyStore))
    assert plain < len(idempotency_store_contract(InMemoryIdempotencyStore, concurrent=True))
    assert len(idempotency_store_contract(InMemoryIdempotencyStore, restart=restart)) == plain + 1


@pytest.mark.parametrize("wrong", [{"callers": 1}, {"rounds": 0}, {"ttl_ms": 0}, {"ttl_ms": 99}])
def test_an_option_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        idempotency_store_contract(InMemoryIdempotencyStore, **wrong)


class FreesForAnyone(SoundRecords):
    """release() by key alone."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        return super().free(key, row.owner if row else owner)


def test_a_failure_says_the_rule_what_was_seen_what_must_be_and_the_race() -> None:
    cases = idempotency_store_contract(lambda: FreesForAnyone(Server(LoopClock())))
    (case,) = [case for case in cases if case.name == "Nobody else releases"]
    with pytest.raises(AssertionError) as failure:
        run_virtual(case.run)
    assert str(failure.value) == (
        "Rule 4 of the idempotency store contract, 'Nobody else releases': release() by another owner gave True; it "
        "must be False. The race: A shutdown hook gives back by key, and frees an execution of another instance's."
    )


class TellsAnother(SoundRecords):
    """A response comes back as another one."""

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        super().store(row, b"card 4242", retention_ms)


def test_a_failure_holds_neither_a_response_nor_an_owner() -> None:
    failures = []
    server = Server(LoopClock())
    for case in idempotency_store_contract(lambda: TellsAnother(server), limit_s=60):
        try:
            run_virtual(case.run)
        except AssertionError as failure:
            failures.append(str(failure))
    assert len(failures) > 10
    assert not [failure for failure in failures if "4242" in failure or "'contract:" in failure]


class Broken:
    """A store whose driver is down."""

    async def acquire(self, *_: object, takeover: bool = True) -> AcquireReply:
        raise ConnectionError("refused")

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        raise ConnectionError("refused")

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        raise ConnectionError("refused")

    async def release(self, key: str, owner: str) -> bool:
        raise ConnectionError("refused")

    async def purge(self, limit: int = 1000) -> int:
        raise ConnectionError("refused")


def test_an_error_of_the_driver_fails_every_case_and_is_its_cause() -> None:
    cases = idempotency_store_contract(Broken)
    for case in cases:
        with pytest.raises(AssertionError, match="ConnectionError") as failure:
            run_virtual(case.run)
        assert isinstance(failure.value.__cause__, ConnectionError)
    with pytest.raises(ExceptionGroup, match=rf"{len(cases)} of {len(cases)} cases failed"):
        run_virtual(lambda: run_all(cases))


class Silent(Broken):
    """A store that never answers."""

    async def acquire(self, *_: object, takeover: bool = True) -> AcquireReply:
        await asyncio.sleep(1e6)
        return InFlight(1)


def test_a_store_that_does_not_answer_fails_the_case_within_its_limit() -> None:
    (case, *_) = idempotency_store_contract(Silent, limit_s=60)
    with pytest.raises(AssertionError, match="a call had not returned after 60 s"):
        run_virtual(case.run)


async def test_what_was_begun_is_given_back_on_a_server_that_others_use() -> None:
    server = Server(manual)
    # Without effects: what is committed cannot be given back.
    cases = idempotency_store_contract(
        lambda: SoundRecords(server), concurrent=4, rounds=2, advance_time=manual.advance
    )
    await run_all(cases)
    now_ms = manual.now() * 1000
    in_flight = [
        row for row in server.rows.values() if not row.completed and row.lock_ends > now_ms and row.expires > now_ms
    ]
    assert in_flight == []


class LateStore:
    """A store on a machine that stalls: its first answer comes long after the lock that it speaks of has ended."""

    def __init__(self, inner: InMemoryIdempotencyStore, stalls: list[float]) -> None:
        self._inner = inner
        self._stalls = stalls
        self.extend, self.complete, self.release, self.purge = inner.extend, inner.complete, inner.release, inner.purge

    async def acquire(self, *arguments: Any, takeover: bool = True) -> AcquireReply:
        reply = await self._inner.acquire(*arguments, takeover=takeover)
        if self._stalls:
            await asyncio.sleep(self._stalls.pop())
        return reply


async def test_a_case_that_fails_for_want_of_a_timely_machine_is_tried_again() -> None:
    stalls = [0.3]
    cases = idempotency_store_contract(lambda: LateStore(InMemoryIdempotencyStore(), stalls), ttl_ms=200)
    (case,) = [one for one in cases if one.name.startswith("An execution is in flight until")]
    await case.run()
    assert stalls == []
