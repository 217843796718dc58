"""What the facts about the benchmark share."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tenure_loadtests.records import Cell, RunRecord

Figures = dict[str, float]


@pytest.fixture
def or_skip() -> Callable[[str | None], None]:
    """Fail in CI, and skip on a laptop, where what a test needs is missing: a test that never runs proves nothing."""

    def decide(reason: str | None) -> None:
        if reason is None:
            return
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return decide


@pytest.fixture
def record_of() -> Callable[..., RunRecord]:
    """A record with cells that are written down by hand: `{contender: [figures of each round]}`."""

    def make(scenario: str, setting: str, rounds: dict[str, list[Figures]], **fields: Any) -> RunRecord:
        record = RunRecord(
            machine={
                "when": "a day",
                "python": "3.11",
                "kernel": "6",
                "processors": 2,
                "processor": "one",
                "memory": "8 GiB",
                "load_before": 0.1,
            },
            plan={"rounds": 2, "cell_s": 1.0, "quiet_cores": 0.3, "tries": 3},
            **fields,
        )
        for contender, cells in rounds.items():
            for number, figures in enumerate(cells):
                record.cells.append(Cell(scenario, setting, contender, number, figures, 0.05))
        return record

    return make
