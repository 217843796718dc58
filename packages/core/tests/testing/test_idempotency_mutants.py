"""The museum of broken idempotency stores: each fails the cases that it names, and no others."""

import asyncio
from typing import Any
from unittest import SkipTest

import pytest

from tenure.idempotency_store import AcquireReply, Completion, InFlight
from tenure.testing import Case, IdempotencyMutant, idempotency_store_mutants, run_virtual
from tenure.testing.idempotency_mutants.model import Row, SoundRecords

MUTANTS = idempotency_store_mutants()
RACES = [f"A{n}" for n in (1, 2, 3, 4, 5, 6, 8, 9, 10)] + [f"E{n}" for n in range(1, 6)]
RACES += [f"C{n}" for n in (1, 2, 3, 4, 5, 7, 8)] + ["R1", "R2"]
"""The races that a store can lose. A7 is the engine's, and C6 takes a server that is full."""


def failures_of(mutant: IdempotencyMutant) -> dict[str, AssertionError]:
    """Run the contract on *mutant*. Under virtual time: a store that hangs is found at once."""
    failures: dict[str, AssertionError] = {}
    for case in mutant.contract():
        try:
            run_virtual(case.run)
        except AssertionError as failure:
            failures[case.name] = failure
    return failures


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_fails_exactly_its_cases(mutant: IdempotencyMutant) -> None:
    failures = failures_of(mutant)
    assert set(failures) == mutant.caught_by
    for failure in failures.values():
        assert str(failure).startswith("Rule ")


class AnswersSlowly(SoundRecords):
    """A store whose calls take some turns there, and some back."""

    async def travel(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        extended = await super().extend(key, owner, lock_ttl_ms)
        await self.travel()
        return extended

    async def release(self, key: str, owner: str) -> bool:
        released = await super().release(key, owner)
        await self.travel()
        return released


class ExecutesLate(SoundRecords):
    """A store whose server carries out what it was sent, although the caller has left."""

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        try:
            return await super().complete(key, owner, response, retention_ms)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(self.settle, key, owner, response, retention_ms)
            raise


class TellsOneMillisecond(SoundRecords):
    """A store whose clock is coarse: what is left of a lock is a lower bound."""

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        reply: Any = super().wait_for(row, owner)
        return type(reply)(max(1, reply.expires_in_ms - 1))


class KeepsNobodyWaiting(SoundRecords):
    """A store that says that it is in flight where a transaction has the row locked."""

    async def acquire(
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        if key in self.server.locked:
            return InFlight(1)
        return await super().acquire(key, owner, fingerprint, lock_ttl_ms, grace_ms, takeover=takeover)


@pytest.mark.parametrize("store", [SoundRecords, AnswersSlowly, ExecutesLate, TellsOneMillisecond, KeepsNobodyWaiting])
def test_a_store_of_another_make_that_keeps_the_rules_fails_none(store: type[SoundRecords]) -> None:
    assert failures_of(IdempotencyMutant(store.__name__, "none", 1, frozenset(), store)) == {}


def contract() -> list[Case]:
    return MUTANTS[0].contract()


def test_every_case_is_failed_by_a_mutant() -> None:
    caught = frozenset().union(*(mutant.caught_by for mutant in MUTANTS))
    assert [case.name for case in contract() if case.name not in caught] == []


def test_every_rule_that_a_store_can_break_has_a_mutant() -> None:
    assert {mutant.rule for mutant in MUTANTS} == set(range(1, 10))


@pytest.mark.parametrize("race", RACES)
def test_every_race_has_a_case_that_names_it_and_a_mutant_that_loses_it(race: str) -> None:
    cases = {case.name for case in contract() if case.race.startswith(f"{race}. ")}
    losers = [mutant for mutant in MUTANTS if race in mutant.bug.split(". ")[0].split(", ")]
    assert cases
    assert losers
    assert any(mutant.caught_by & cases for mutant in losers)


def test_no_case_is_skipped_in_the_museum() -> None:
    for case in contract():
        try:
            run_virtual(case.run)
        except AssertionError:
            continue
        except SkipTest:
            pytest.fail(f"{case.name!r} was skipped: a mutant could not be caught by it.")


def test_mutants_have_names_of_their_own_and_say_what_is_wrong_with_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.bug.endswith(".") for mutant in MUTANTS)
