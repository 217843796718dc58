"""The museum of broken stores: each fails the cases that it names, and no others."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar
from unittest import SkipTest

import pytest

from tenure.store import Acquired, Claim, Ending, Held, LockRecord
from tenure.testing import Case, Mutant, lock_store_mutants, run_virtual
from tenure.testing.mutants.model import Row, SoundStore

MUTANTS = lock_store_mutants()


def failures_of(mutant: Mutant) -> dict[str, AssertionError]:
    """Run the contract on *mutant*. Under virtual time: a store that hangs is found at once."""
    failures: dict[str, AssertionError] = {}
    for case in mutant.contract():
        try:
            run_virtual(case.run)
        except AssertionError as failure:
            failures[case.name] = failure
    return failures


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_fails_exactly_its_cases(mutant: Mutant) -> None:
    failures = failures_of(mutant)
    assert set(failures) - mutant.sometimes == mutant.caught_by
    for failure in failures.values():
        assert str(failure).startswith("Rule ")


def test_the_store_that_they_are_made_of_fails_none() -> None:
    sound = Mutant("SoundStore", "none", 1, frozenset(), SoundStore)
    assert failures_of(sound) == {}


class TellsNothing(SoundStore):
    """A store that does not know what is left of a lock, nor how the one before ended."""

    def left_ms(self, row: Row) -> Any:
        return None

    def ending(self, row: Row | None) -> Ending | None:
        return None

    def record(self, row: Row) -> LockRecord:
        return LockRecord(row.key, row.owner or "", row.token, super().left_ms(row))


class ExecutesLate(SoundStore):
    """A store whose server carries out what it was sent, although the caller has left."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        try:
            return await super().acquire(key, owner, ttl_ms)
        except asyncio.CancelledError:
            # After the release that the caller sends behind it.
            asyncio.get_running_loop().create_task(self.carry_out(key, owner, ttl_ms))
            raise

    async def carry_out(self, key: str, owner: str, ttl_ms: int) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.take(key, owner, ttl_ms)


class AnswersSlowly(SoundStore):
    """A store whose calls take some turns there, and some back."""

    async def travel(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        renewed = await super().renew(key, owner, ttl_ms)
        await self.travel()
        return renewed


class CountsTokens(SoundStore):
    """A store whose tokens are counted from one, key by key."""

    def draw(self, row: Row | None, owner: str) -> int:
        return 1 if row is None else row.token + 1


class StepsOverBusyRows(SoundStore):
    """A store that cannot tell of rows that another call is at."""

    busy: ClassVar[set[str]] = set()

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        free = [claim.key not in self.busy for claim in claims]
        self.busy.update(claim.key for claim in claims)
        try:
            answers = await super().renew_many(claims)
        finally:
            self.busy.clear()
        return [answer if told else None for answer, told in zip(answers, free, strict=True)]


@pytest.mark.parametrize("store", [TellsNothing, ExecutesLate, AnswersSlowly, CountsTokens, StepsOverBusyRows])
def test_a_store_of_another_make_that_keeps_the_rules_fails_none(store: type[SoundStore]) -> None:
    assert failures_of(Mutant(store.__name__, "none", 1, frozenset(), store)) == {}


def contract() -> list[Case]:
    return MUTANTS[0].contract()


def test_every_case_is_failed_by_a_mutant() -> None:
    caught = frozenset().union(*(mutant.caught_by for mutant in MUTANTS))
    assert [case.name for case in contract() if case.name not in caught] == []


def test_every_rule_that_a_store_can_break_has_a_mutant() -> None:
    assert {mutant.rule for mutant in MUTANTS} == set(range(1, 11))


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
    assert all(mutant.bug.endswith((".", ")")) for mutant in MUTANTS)
