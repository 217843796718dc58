"""State machines on a simulated clock: stores that keep the rules pass, and planted bugs are found."""

import asyncio
import re
import subprocess
import sys
import unittest
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tenure.errors import ConfigurationError
from tenure.memory import InMemoryIdempotencyStore, InMemoryLockStore
from tenure.store import Acquired, Ending, Held, LockRecord
from tenure.testing import ManualClock, idempotency_store_mutants, lock_store_mutants
from tenure.testing.idempotency_mutants.model import Row as RecordRow
from tenure.testing.idempotency_mutants.model import SoundRecords
from tenure.testing.mutants.model import Row, SoundStore
from tenure.testing.state_machines import idempotency_store_machine, lock_store_machine, run_machine

LOCK_BUGS = {mutant.name: mutant.store for mutant in lock_store_mutants()}
RECORD_BUGS = {mutant.name: mutant.store for mutant in idempotency_store_mutants()}


class Time:
    """A clock of each example's own: an example, repeated, is the same to the last digit."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    def restarted(self) -> ManualClock:
        self.clock = ManualClock()
        return self.clock


def locks_of(store: type[SoundStore]) -> Any:
    time = Time()
    return lock_store_machine(lambda: store(store.server_kind(time.restarted())), advance=time.advance, limit_s=1)


def records_of(store: type[SoundRecords]) -> Any:
    time = Time()
    make = lambda: store(store.server_kind(time.restarted()))  # noqa: E731 -- one line, as a caller writes it
    return idempotency_store_machine(make, advance=time.advance, limit_s=1)


def find(machine: Any, examples: int) -> None:
    """Run *machine* as far as to the first finding, and not on to the shortest series that leads to it."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


# ------------------------------------------------------------------------------- who keeps the rules


def test_the_lock_store_in_memory_answers_as_the_model_does() -> None:
    time = Time()
    machine = lock_store_machine(lambda: InMemoryLockStore(time.restarted()), advance=time.advance)
    run_machine(machine, examples=20, seed=1)


def test_the_idempotency_store_in_memory_answers_as_the_model_does() -> None:
    time = Time()
    machine = idempotency_store_machine(lambda: InMemoryIdempotencyStore(time.restarted()), advance=time.advance)
    run_machine(machine, examples=20, seed=1)


class TellsNothing(SoundStore):
    """A store that does not know what is left of a lock, nor how the one before ended."""

    def left_ms(self, row: Row) -> Any:
        return None

    def ending(self, row: Row | None) -> Ending | None:
        return None

    def record(self, row: Row) -> LockRecord:
        return LockRecord(row.key, row.owner or "", row.token, super().left_ms(row))


class CountsMilliseconds(SoundStore):
    """A store whose clock has whole milliseconds, as a server's has."""

    def now(self) -> float:
        return int(super().now() * 1000 + 0.0001) / 1000


class AnswersSlowly(SoundStore):
    """A store whose calls take some turns there, and some back."""

    async def travel(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


class ExecutesLate(SoundStore):
    """A store whose server carries out what it was sent, although the caller has left."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        try:
            return await super().acquire(key, owner, ttl_ms)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(self.take, key, owner, ttl_ms)
            raise


@pytest.mark.parametrize("store", [SoundStore, TellsNothing, CountsMilliseconds, AnswersSlowly, ExecutesLate])
def test_a_lock_store_of_another_make_that_keeps_the_rules_passes(store: type[SoundStore]) -> None:
    find(locks_of(store), 8)


class TellsOneMillisecondLess(SoundRecords):
    """A store whose clock is coarse: what is left of a lock is a lower bound."""

    def wait_for(self, row: RecordRow, owner: str) -> Any:
        reply: Any = super().wait_for(row, owner)
        return type(reply)(max(1, reply.expires_in_ms - 1))


@pytest.mark.parametrize("store", [SoundRecords, TellsOneMillisecondLess])
def test_an_idempotency_store_of_another_make_that_keeps_the_rules_passes(store: type[SoundRecords]) -> None:
    find(records_of(store), 8)


# ---------------------------------------------------------------------------------- planted bugs

FOUND_LOCK_BUGS = [
    "ReadsThenWrites",  # two holders in a race
    "ForgetsTheReleased",  # the token begins again on a release
    "RenewsTheExpired",
    "RenewsByKeyAlone",
    "ReleasesByKeyAlone",
    "TakesNone",  # a ttl of 0
    "WrapsAt32Bits",
    "RefusesItsOwner",
    "ForgetsTheExpired",
    "EndsEarly",
    "NeverEnds",
    "TellsSeconds",
    "CanNeverTell",
    "ListsTheExpired",
    "TellsTheOwner",
    "KeepsWhoLeft",
]
"""The four of old, and one or more of each kind: what every change is held to."""


@pytest.mark.parametrize("name", FOUND_LOCK_BUGS)
def test_a_planted_bug_of_a_lock_store_is_found(name: str) -> None:
    with pytest.raises(AssertionError):
        find(locks_of(LOCK_BUGS[name]), 100)


FOUND_RECORD_BUGS = [
    "ReadsThenWrites",
    "InFlightFirst",
    "AnyPayloadAfterACrash",
    "CountsToTwo",
    "LocksEndEarly",
    "ExtendsByKeyAlone",
    "CompletesByKeyAlone",
    "ReleasesByKeyAlone",
    "RefusesLateExtensions",
    "ReleasesOutcomes",
    "TakesNone",
]


@pytest.mark.parametrize("name", FOUND_RECORD_BUGS)
def test_a_planted_bug_of_an_idempotency_store_is_found(name: str) -> None:
    with pytest.raises(AssertionError):
        find(records_of(RECORD_BUGS[name]), 100)


# ------------------------------------------------------------------------------- what a finding says


def finding(machine: Any, examples: int = 50) -> AssertionError:
    with pytest.raises(AssertionError) as failure:
        find(machine, examples)
    return failure.value


def test_a_finding_tells_the_reply_what_it_must_be_and_the_shortest_steps_to_it() -> None:
    with pytest.raises(AssertionError, match="gave True; it must be False") as failure:
        run_machine(locks_of(LOCK_BUGS["CreatesByRenewing"]), examples=20, steps=15, seed=1)
    assert "What led to it on this key:" in str(failure.value)
    notes = [line for note in failure.value.__notes__ for line in note.splitlines()]
    steps = [line for line in notes if line.startswith("state.")]
    # One call is enough, whichever of those that renew.
    assert len(steps) == 3
    assert steps[0].startswith("state.begin(")
    assert "'job'" in steps[1]
    assert "'A'" in steps[1]


def test_a_finding_shows_no_owner() -> None:
    failure = finding(locks_of(LOCK_BUGS["ReleasesByKeyAlone"]))
    # A key has sixteen digits of its own, an owner twice as many.
    assert re.search(r"[0-9a-f]{32}", str(failure)) is None


def test_a_seed_repeats_its_calls() -> None:
    def drawn() -> list[str]:
        asked: list[str] = []

        class Notes(SoundStore):
            def take(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
                asked.append(f"{key.split(':', 2)[2]} {owner[40:]} {ttl_ms}")
                return super().take(key, owner, ttl_ms)

        run_machine(locks_of(Notes), examples=3, steps=20, seed=7)
        return asked

    first = drawn()
    assert first
    assert drawn() == first


class Raises(SoundStore):
    """A store whose driver is down."""

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        self.check_arguments(key, owner, ttl_ms)
        raise ConnectionError("refused")


def test_an_error_is_a_finding_and_its_cause() -> None:
    failure = finding(locks_of(Raises))
    assert "raised ConnectionError; it must answer" in str(failure)
    assert isinstance(failure.__cause__, ConnectionError)


class Hangs(SoundStore):
    """A store that does not answer."""

    async def release(self, key: str, owner: str) -> bool:
        self.check_arguments(key, owner, 1)
        await asyncio.get_running_loop().create_future()
        return False


def test_a_call_that_hangs_is_a_finding() -> None:
    time = Time()
    machine = lock_store_machine(lambda: Hangs(Hangs.server_kind(time.restarted())), time.advance, limit_s=0.01)
    with pytest.raises(AssertionError, match=r"had not returned after 0\.01 s"):
        find(machine, 50)


# -------------------------------------------------------------------------------- how it is run


async def from_an_async_function(clock: ManualClock, closed: list[str]) -> InMemoryLockStore:
    return InMemoryLockStore(clock)


@asynccontextmanager
async def from_a_context_manager(clock: ManualClock, closed: list[str]) -> AsyncIterator[InMemoryLockStore]:
    yield InMemoryLockStore(clock)
    closed.append("closed")


async def from_an_async_generator(clock: ManualClock, closed: list[str]) -> AsyncIterator[InMemoryLockStore]:
    yield InMemoryLockStore(clock)
    closed.append("closed")


@pytest.mark.parametrize(
    ("make", "closes"),
    [(from_an_async_function, False), (from_a_context_manager, True), (from_an_async_generator, True)],
)
def test_a_store_is_made_in_any_way_and_cleaned_up_after_each_example(make: Callable[..., Any], closes: bool) -> None:
    clock, closed, made = ManualClock(), list[str](), list[str]()

    def make_store() -> Any:
        made.append("made")
        return make(clock, closed)

    run_machine(lock_store_machine(make_store, advance=clock.advance), examples=3, steps=5, seed=1)
    assert len(made) >= 3
    assert len(closed) == (len(made) if closes else 0)


def test_an_advance_may_be_a_plain_function() -> None:
    class Clock:
        seconds = 1000.0

        def now(self) -> float:
            return self.seconds

        def call_at(self, when: float, callback: Callable[[], None]) -> Any:
            raise NotImplementedError

        def advance(self, seconds: float) -> None:
            self.seconds = round(self.seconds + seconds, 6)

    clock = Clock()
    run_machine(lock_store_machine(lambda: InMemoryLockStore(clock), clock.advance), examples=3, steps=20, seed=1)


def test_a_store_outlives_its_examples_on_a_loop_that_is_given() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    class Looks(SoundRecords):
        async def travel(self) -> None:
            loops.add(asyncio.get_running_loop())

    clock = ManualClock()
    store = Looks(Looks.server_kind(clock))
    with asyncio.Runner() as runner:
        run_machine(
            idempotency_store_machine(lambda: store, clock.advance, runner=runner), examples=3, steps=20, seed=1
        )
        assert loops == {runner.get_loop()}
        assert not runner.get_loop().is_closed()


def test_a_machine_is_a_test_case_of_unittest() -> None:
    clock = ManualClock()
    machine = lock_store_machine(lambda: InMemoryLockStore(clock), advance=clock.advance)
    machine.TestCase.settings = settings(machine.TestCase.settings, max_examples=3, derandomize=True)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(machine.TestCase).run(result)
    assert result.testsRun == 1
    assert result.wasSuccessful()


@pytest.mark.parametrize("wrong", [{"examples": 0}, {"steps": 0}])
def test_a_run_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    machine = lock_store_machine(InMemoryLockStore)
    with pytest.raises(ConfigurationError, match="at least"):
        run_machine(machine, **wrong)


def test_a_limit_that_leaves_no_time_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="limit_s"):
        lock_store_machine(InMemoryLockStore, limit_s=0)
    with pytest.raises(ConfigurationError, match="limit_s"):
        idempotency_store_machine(InMemoryIdempotencyStore, limit_s=-1)


WITHOUT_HYPOTHESIS = """
import sys
sys.modules["hypothesis"] = None
import tenure.testing
try:
    import tenure.testing.state_machines
except tenure.ConfigurationError as error:
    print(error)
"""


def test_without_hypothesis_the_import_says_what_to_install() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_HYPOTHESIS], capture_output=True, text=True, check=True)
    assert "pip install tenure[testing]" in ran.stdout
