"""The shipped engine under faults, recorded and checked: right as it is, and caught with a bug planted in it."""

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from tenure import InMemoryLockStore, Locks, _keeper
from tenure import _lease_machine as machine
from tenure._kept import Kept
from tenure._lease_machine import LeaseEvent
from tenure.errors import LeaseLostError, LockNotAcquiredError, StoreError
from tenure.testing import FaultyStore, LoopClock, lock_store_mutants, run_virtual
from tenure.testing.errors import FaultError
from tenure.testing.history import HistoryRecorder, HistoryReport, check_history

TTL_S = 3.0
KEYS = ("export", "feed")

Plant = Callable[[pytest.MonkeyPatch], None]


class World:
    """Three instances that want the same two keys, on one store, each behind a network of its own that fails."""

    def __init__(self, seed: int, store: Callable[[Any], Any]) -> None:
        self.events: list[dict[str, Any]] = []
        self.clock = LoopClock()
        self.rng = random.Random(seed)
        self.store = store(self.clock)
        self.fence: dict[str, int] = {}

    async def run(self) -> None:
        nemesis = HistoryRecorder(self.events, process="nemesis", clock=self.clock)
        nemesis.note(
            "run", topology="one store", ttl_s=TTL_S, retry_s=1.0, call_timeout_s=1.0, takeover_s=TTL_S + 1.0 + 1.0
        )
        nemesis.note("phase", name="faults")
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(self.instance(f"holder-{number}", nemesis))

    async def instance(self, name: str, nemesis: HistoryRecorder) -> None:
        network = FaultyStore(self.store, clock=self.clock, seed=self.rng.getrandbits(32))
        recorder = HistoryRecorder(self.events, process=name, clock=self.clock)
        locks = Locks(
            recorder.around(network),
            ttl=TTL_S,
            store_timeout=1,
            instance=name,
            drain=0,
            clock=self.clock,
            rng=random.Random(self.rng.getrandbits(32)),
            hooks=[recorder],
            startup_check=False,
        )
        async with locks, asyncio.TaskGroup() as group:
            trouble = group.create_task(self.trouble(name, network, nemesis))
            workers = [group.create_task(self.worker(locks, key, recorder, trouble)) for key in KEYS]
            await asyncio.wait(workers)

    async def trouble(self, name: str, network: FaultyStore, nemesis: HistoryRecorder) -> None:
        for number in range(2):
            await asyncio.sleep(self.rng.uniform(0.5, 4))
            kind = self.rng.choice(["hang", "lose_reply", "lose_request", "slow_reply"])
            fault = f"{name}-{number}"
            nemesis.note("fault", fault=fault, kind=kind, scope=name)
            faults = network.on("*", chance=0.8)
            faults.slow_reply(0.7) if kind == "slow_reply" else getattr(faults, kind)()
            await asyncio.sleep(self.rng.uniform(1, 2.5 * TTL_S))
            network.heal()
            nemesis.note("healed", fault=fault, kind=kind, scope=name)

    async def worker(self, locks: Locks, key: str, recorder: HistoryRecorder, trouble: asyncio.Task[None]) -> None:
        calm_until = float("inf")
        while self.clock.now() < calm_until:
            if trouble.done() and calm_until == float("inf"):
                calm_until = self.clock.now() + 3 * TTL_S
            try:
                async with locks.hold(key, wait=1) as lease:
                    recorder.note("enter", key=key, token=lease.token)
                    for _ in range(self.rng.randint(1, 30)):
                        if lease.held:
                            recorder.note("believes", key=key, token=lease.token)
                        self.write(recorder, key, lease.token)
                        await asyncio.sleep(0.25)
                    recorder.note("exit", key=key, token=lease.token)
            except (LockNotAcquiredError, LeaseLostError, StoreError, FaultError):
                await asyncio.sleep(0.1)
            await asyncio.sleep(self.rng.uniform(0, 0.2))

    def write(self, recorder: HistoryRecorder, key: str, token: int) -> None:
        accepted = token >= self.fence.get(key, 0)
        if accepted:
            self.fence[key] = token
        recorder.note("write", resource=key, key=key, token=token, accepted=accepted, sent_at=recorder.now())


def judge(seed: int, store: Callable[[Any], Any] = InMemoryLockStore) -> HistoryReport:
    async def main() -> list[dict[str, Any]]:
        world = World(seed, store)
        await world.run()
        return world.events

    return check_history(run_virtual(main, seed=seed, within_s=300))


@pytest.fixture(scope="module")
def reports() -> list[HistoryReport]:
    return [judge(seed) for seed in range(4)]


def test_the_shipped_engine_breaks_nothing(reports: list[HistoryReport]) -> None:
    for report in reports:
        report.raise_if_broken()
        assert report.counts["grants"] >= 10
        assert report.counts["faults"] == 6


def test_the_faults_do_what_they_are_there_for(reports: list[HistoryReport]) -> None:
    for what in ("losses", "acquire unknown", "renew unknown", "renew ok", "acquire no", "keys after the last fault"):
        assert sum(report.counts.get(what, 0) for report in reports) > 0, what


# ------------------------------------------------------------------------------------- planted bugs


def deadline_from_the_reply(patch: pytest.MonkeyPatch) -> None:
    step, init = machine.step, Kept.__init__

    def late(self: Kept, clock: Any, claim: Any, token: int, _: float, renewer: Any) -> None:
        init(self, clock, claim, token, clock.now(), renewer)

    patch.setattr(Kept, "__init__", late)
    patch.setattr(machine, "step", lambda term, event, now, **rest: step(term, event, now, **{**rest, "sent_at": now}))


def no_deadline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "trusted_until", lambda sent_at, ttl_s: sent_at + 100 * ttl_s)


def unknown_taken_for_confirmed(patch: pytest.MonkeyPatch) -> None:
    step = machine.step

    def believes(term: Any, event: LeaseEvent, now: float, **rest: Any) -> Any:
        taken = LeaseEvent.CONFIRMED if event is LeaseEvent.UNKNOWN else event
        return step(term, taken, now, **{"ttl_s": TTL_S, **rest, "sent_at": now})

    patch.setattr(machine, "step", believes)


def refusals_are_ignored(patch: pytest.MonkeyPatch) -> None:
    read = _keeper._read_answers

    def ignores(attempt: Any) -> Any:
        answers, error = read(attempt)
        return [None if answer is False else answer for answer in answers], error or "ignored"

    patch.setattr(_keeper, "_read_answers", ignores)


def a_loss_is_told_a_second_late(patch: pytest.MonkeyPatch) -> None:
    step = machine.step

    def waits(term: Any, event: LeaseEvent, now: float, **rest: Any) -> Any:
        if event is LeaseEvent.TIME and term.trusted_until <= now < term.trusted_until + 1:
            return dataclasses.replace(term, trusted_until=term.trusted_until + 1, renew_at=term.trusted_until + 1)
        return step(term, event, now, **rest)

    patch.setattr(machine, "step", waits)


def scene(trouble: Callable[[FaultyStore], None]) -> HistoryReport:
    """A takes a key with a slow reply; then there is trouble for A alone, while both say what they believe."""

    async def main() -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        clock = LoopClock()
        store = InMemoryLockStore(clock)
        network = FaultyStore(store, clock=clock)
        network.on("acquire").slow_reply(0.7)
        HistoryRecorder(events, process="nemesis", clock=clock).note(
            "run", topology="one store", ttl_s=TTL_S, retry_s=1.0, call_timeout_s=1.0
        )
        async with asyncio.TaskGroup() as group:
            for name, road in (("a", network), ("b", store)):
                recorder = HistoryRecorder(events, process=name, clock=clock)
                wants = Locks(recorder.around(road), ttl=TTL_S, store_timeout=1, clock=clock, hooks=[recorder], drain=0)
                group.create_task(believe(wants, recorder))
                await asyncio.sleep(1.0)
                trouble(network)
        return events

    async def believe(locks: Locks, recorder: HistoryRecorder) -> None:
        async with locks:
            lease = await locks.acquire("export", wait=20)
            until = locks.clock.now() + 3 * TTL_S
            while locks.clock.now() < until:
                if lease.held:
                    recorder.note("believes", key="export", token=lease.token)
                await asyncio.sleep(0.05)

    return check_history(run_virtual(main, within_s=300))


def silence(network: FaultyStore) -> None:
    network.on("*").hang()


def errors(network: FaultyStore) -> None:
    network.on("*").lose_request()


def refusals(network: FaultyStore) -> None:
    network.on("renew").refuse()
    network.on("renew_many").refuse()


PLANTED: list[tuple[Plant, Callable[[FaultyStore], None], set[str]]] = [
    (deadline_from_the_reply, silence, {"H3", "H8"}),
    (no_deadline, silence, {"H3", "H8"}),
    (unknown_taken_for_confirmed, errors, {"H3", "H8"}),
    (refusals_are_ignored, refusals, {"H8"}),
    (a_loss_is_told_a_second_late, silence, {"H3", "H8"}),
]


@pytest.mark.parametrize("trouble", [silence, errors, refusals])
def test_in_each_scene_the_shipped_engine_breaks_nothing(trouble: Callable[[FaultyStore], None]) -> None:
    report = scene(trouble)
    report.raise_if_broken()
    assert report.counts["grants"] == 2


@pytest.mark.parametrize(("plant", "trouble", "rules"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED])
def test_a_bug_that_is_planted_in_the_engine_breaks_its_rules(
    plant: Plant, trouble: Callable[[FaultyStore], None], rules: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert set(scene(trouble).broken_rules) == rules


MUTANTS: list[tuple[str, set[str]]] = [
    ("ReadsThenWrites", {"H3"}),
    ("LetsInWhoAsksAgain", {"H3"}),
    ("EndsEarly", {"H3"}),
]


@pytest.mark.parametrize(("name", "rules"), MUTANTS)
def test_a_bug_that_is_planted_in_the_store_breaks_its_rules(name: str, rules: set[str]) -> None:
    mutant = next(one for one in lock_store_mutants() if one.name == name)
    reports = [judge(seed, lambda clock: mutant.store(mutant.store.server_kind(clock))) for seed in range(3)]
    # In some run: what a bug does there is up to who asks when.
    assert rules <= {rule for report in reports for rule in report.broken_rules}
