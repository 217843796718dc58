"""Random histories: stores that keep the rules answer as the machine does, and one that does not is told of."""

import asyncio
from typing import Any

import pytest

from tenure.errors import ConfigurationError
from tenure.idempotency_store import AcquireReply, IdempotencyStore
from tenure.memory import InMemoryIdempotencyStore
from tenure.testing import (
    HistoriesReport,
    IdempotencyMutant,
    LoopClock,
    ManualClock,
    idempotency_histories,
    idempotency_store_mutants,
    run_virtual,
)
from tenure.testing.idempotency_mutants.model import Row, Server, SoundRecords

EVERY_ANSWER = {
    "Acquired",
    "Acquired again",
    "InFlight",
    "Abandoned",
    "Mismatch",
    "Completed",
    "True",
    "False",
    "STORED",
    "STALE",
    "GONE",
}


def run(store: type[SoundRecords], *, seed: int = 1, calls: int = 4000) -> HistoriesReport:
    """Run histories on a store of the museum beside the shipped one."""
    clock = ManualClock()
    stores: dict[str, IdempotencyStore] = {
        "memory": InMemoryIdempotencyStore(clock),
        "museum": store(store.server_kind(clock)),
    }
    return run_virtual(lambda: idempotency_histories(stores, calls=calls, seed=seed, advance_time=clock.advance))


@pytest.mark.parametrize("seed", range(5))
def test_the_store_in_memory_and_the_museums_sound_one_answer_as_the_machine_does(seed: int) -> None:
    report = run(SoundRecords, seed=seed)
    assert report.calls == 4000
    assert report.seed == seed
    # Each answer often enough that a wrong one would be met.
    assert {answer for answer, times in report.answers.items() if times >= 10} == EVERY_ANSWER


def test_a_seed_repeats_its_histories() -> None:
    assert run(SoundRecords, seed=7) == run(SoundRecords, seed=7)
    assert run(SoundRecords, seed=7).answers != run(SoundRecords, seed=8).answers


SEEN = [
    "InFlightFirst",
    "AnyPayloadAfterACrash",
    "AnyPayloadAfterTheOutcome",
    "MismatchExtends",
    "PollingExtends",
    "CountsLooks",
    "CountsToTwo",
    "OwnNeedsATakeover",
    "TellsTheRecordsEnd",
    "GraceBeginsAtOnce",
    "NeverForgetsAbandoned",
    "NeverForgetsCompleted",
    "KeepsTheGraceAtCompletion",
    "TakeoverKeepsTheGrace",
    "ExtensionLeavesTheEnd",
    "ExtendsByKeyAlone",
    "RefusesLateExtensions",
    "CompletesByKeyAlone",
    "OverwritesOutcomes",
    "RefusesLateCompletions",
    "ReleasesByKeyAlone",
    "RefusesItsOwn",
    "RepeatBringsItsGrace",
    "LastCompletionWins",
    "RestartsTheRetention",
    "SetsTheLock",
    "ShortensTheRecord",
    "RepeatSetsTheLock",
    "AddsToWhatIsLeft",
    "ExtendsOutcomes",
    "ReleasesOutcomes",
    "KeepsWhatIsReleased",
    "ForgetsEveryAttempt",
    "TakesTheAttemptBack",
    "ReleaseForgetsThePayload",
    "ReleaseLeavesTheOwner",
    "ReleaseLeavesTheEnd",
    "EmptyIsNone",
    "CutsAtNul",
    "NamesTheFirstOwner",
    "GivesAnotherType",
]
"""Mutants whose bug any history of a few thousand calls comes by."""


@pytest.mark.parametrize("mutant", [one for one in idempotency_store_mutants() if one.name in SEEN], ids=str)
def test_a_planted_bug_is_met_by_the_histories(mutant: IdempotencyMutant) -> None:
    with pytest.raises(AssertionError, match=r"(?s)parts at its call .* 'museum' does not"):
        run(mutant.store)


def test_the_bugs_that_are_to_be_met_are_in_the_museum() -> None:
    assert {*SEEN} <= {mutant.name for mutant in idempotency_store_mutants()}


class TakesOverTheLiving(SoundRecords):
    """acquire() takes over what is in flight."""

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        row.lock_ends = self.now()
        return super().wait_for(row, owner)


def test_a_difference_tells_the_history_that_led_to_it_and_no_owner_and_no_response() -> None:
    with pytest.raises(AssertionError) as failure:
        run(TakesOverTheLiving, seed=3)
    message = str(failure.value)
    assert "of seed 3 parts" in message
    assert "'memory' gave InFlight" in message
    assert "'museum' gave InFlight(expires_in_ms=0)" in message
    assert "What led to it:\n" in message
    assert "acquire(" in message.split("What led to it:")[1]
    assert "histories:" not in message


class Raises(SoundRecords):
    """A store whose driver is down."""

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        raise ConnectionError("refused")


def test_an_error_is_a_difference_and_its_cause() -> None:
    with pytest.raises(AssertionError, match="gave ConnectionError") as failure:
        run(Raises)
    assert isinstance(failure.value.__cause__, ConnectionError)


class PurgesMore(SoundRecords):
    """purge() answers more than it was told."""

    async def purge(self, limit: int = 1000) -> int:
        return limit + 1


def test_a_purge_that_answers_no_count_within_its_limit_is_told_of() -> None:
    with pytest.raises(AssertionError, match="purge\\(1000\\) of 'museum' gave 1001"):
        run(PurgesMore)


def real_time(travel_s: list[float]) -> tuple[HistoriesReport, float]:
    """Run 2 000 calls on a clock that the histories wait for, on a store that takes its time."""

    class Takes(SoundRecords):
        async def travel(self) -> None:
            await asyncio.sleep(travel_s[0])

    async def main() -> tuple[HistoriesReport, float]:
        clock = LoopClock()
        stores: dict[str, IdempotencyStore] = {
            "memory": InMemoryIdempotencyStore(clock),
            "slow": Takes(Server(clock)),
        }
        start = asyncio.get_running_loop().time()
        report = await idempotency_histories(stores, seed=5)
        return report, asyncio.get_running_loop().time() - start

    return run_virtual(main)


def test_2000_calls_on_a_real_clock_take_less_than_a_minute() -> None:
    report, elapsed_s = real_time([0.02])
    assert report.calls == 2000
    assert report.unit_ms == 900
    # Virtual seconds: what the waits add up to.
    assert elapsed_s < 60


def test_stores_that_are_too_slow_for_the_unit_are_given_twice_the_time() -> None:
    report, _ = real_time([0.12])
    assert report.unit_ms == 1800


def test_stores_that_are_too_slow_for_every_unit_are_told_so() -> None:
    with pytest.raises(TimeoutError, match="too slow"):
        real_time([2.0])


async def test_histories_run_on_a_store_in_real_time() -> None:
    report = await idempotency_histories({"memory": InMemoryIdempotencyStore()}, calls=300, keys=60, unit_ms=300)
    assert report.calls == 300


@pytest.mark.parametrize("wrong", [{"calls": 0}, {"keys": 0}, {"unit_ms": 0}, {"unit_ms": 100}])
async def test_an_option_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await idempotency_histories({"memory": InMemoryIdempotencyStore()}, **wrong)
    with pytest.raises(ConfigurationError):
        await idempotency_histories({})
