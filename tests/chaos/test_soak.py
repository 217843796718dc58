"""The soak: an hour of it (marker soak), a minute of it (marker chaos), and what it judges by (in every run)."""

import json
import math
from pathlib import Path

import pytest

from chaos.outcome import Outcome
from chaos.soak.__main__ import plan_of, soak_all
from chaos.soak.conductor import Plan
from chaos.soak.faults import KINDS
from chaos.soak.growth import FLOORS, SHARE_PER_HOUR, growth_of, settled
from chaos.soak.stalls import worst_s
from chaos.soak.window import judged
from tenure_testbed.pytest_plugin import or_skip

HOUR_S = 3600.0
EVERY_S = 30.0


async def soak(stores: list[str], plan: Plan, directory: Path) -> list[Outcome]:
    with or_skip():
        return await soak_all(stores, plan, directory)


@pytest.mark.soak
async def test_an_hour_of_mixed_faults_breaks_no_rule_and_lets_nothing_grow(tmp_path: Path) -> None:
    outcomes = await soak(["postgres", "valkey"], plan_of(60, seed=1), tmp_path)
    assert all(outcome.ok for outcome in outcomes), "\n".join(outcome.line() for outcome in outcomes)


@pytest.mark.chaos
async def test_a_minute_of_mixed_faults_breaks_no_rule(tmp_path: Path) -> None:
    outcomes = await soak(["postgres", "valkey"], plan_of(1.2, seed=1), tmp_path)
    assert all(outcome.ok for outcome in outcomes), "\n".join(outcome.line() for outcome in outcomes)


def samples(value: float, per_hour: float, lasts_s: float = HOUR_S, noise: float = 0.0) -> list[tuple[float, float]]:
    times = [number * EVERY_S for number in range(int(lasts_s / EVERY_S))]
    # A fixed wave, and not a random one: a test that fails once in forty runs tells nothing.
    return [(at, value + per_hour * at / HOUR_S + noise * math.sin(at)) for at in times]


@pytest.mark.parametrize("measure", list(FLOORS))
def test_what_stays_within_its_noise_is_flat(measure: str) -> None:
    noise = FLOORS[measure] / 2
    assert growth_of("a process", measure, samples(60 * FLOORS[measure], 0.0, noise=noise)).flat


@pytest.mark.parametrize("measure", list(FLOORS))
def test_a_leak_that_passes_the_floor_within_an_hour_is_seen_through_the_noise(measure: str) -> None:
    per_hour = 3 * FLOORS[measure]
    assert not growth_of("a process", measure, samples(60 * FLOORS[measure], per_hour, noise=FLOORS[measure] / 2)).flat


def test_memory_may_grow_by_a_hundredth_an_hour() -> None:
    mean = 10 * FLOORS["rss_kib"] / SHARE_PER_HOUR
    assert growth_of("a process", "rss_kib", samples(mean, 0.9 * SHARE_PER_HOUR * mean)).flat
    assert not growth_of("a process", "rss_kib", samples(mean, 1.2 * SHARE_PER_HOUR * mean)).flat


def test_nothing_is_known_of_what_was_hardly_measured() -> None:
    assert not growth_of("a process", "tasks", samples(9, 0)[:2]).flat


def test_the_first_five_minutes_or_the_first_tenth_of_a_run_are_left_out() -> None:
    assert settled(samples(1, 0), 0.0, HOUR_S)[0][0] == 300
    assert settled(samples(1, 0), 0.0, 600)[0][0] == 60


def test_a_time_when_a_process_was_stopped_on_purpose_is_no_stall() -> None:
    stalls = [(1.0, 1.21), (5.0, 9.01)]
    assert worst_s(stalls, [(4.9, 9.0)]) == pytest.approx(0.2)
    assert worst_s(stalls, []) == pytest.approx(4.0)


@pytest.mark.parametrize("store", list(KINDS))
def test_each_store_has_a_fault_of_its_own(store: str) -> None:
    assert {"SCRIPT FLUSH", "pg_terminate_backend"} & set(KINDS[store])


def granted(at: float, process: str, token: int) -> list[dict[str, object]]:
    owner = f"{process:0>12}"
    head = {"at": at, "process": process, "call": 1}
    return [
        {"what": "invoke", **head, "op": "acquire", "key": "job", "owner": owner, "ttl_ms": 1000},
        {"what": "return", **head, "result": "ok", "token": token},
    ]


@pytest.mark.parametrize(("second", "broken"), [(8, False), (7, True), (6, True)])
def test_a_window_whose_tokens_do_not_grow_is_broken(second: int, broken: bool, tmp_path: Path) -> None:
    run = {"what": "run", "at": 0.0, "process": "nemesis", "topology": "test"}
    run |= {"ttl_s": 1.0, "retry_s": 1.0, "call_timeout_s": 0.3}
    events = [run, *granted(1.0, "a", 7), *granted(3.0, "b", second)]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    found = judged(tmp_path, first=True)
    assert bool(found["violations"]) is broken
    assert found["tokens"] == {"job": (min(7, second), max(7, second))}
