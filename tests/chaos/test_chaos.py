"""Every scenario of the short run as a test of its own: `uv run pytest -n 0 -m chaos tests/chaos`."""

from pathlib import Path

import pytest

from chaos.scenario import Run, Scenario, carry_out
from chaos.scenarios import SCENARIOS
from tenure_testbed.pytest_plugin import or_skip

CASES = [
    pytest.param(
        found, store, id=f"{found.id}-{store}", marks=pytest.mark.docker if found.docker else pytest.mark.chaos
    )
    for found in SCENARIOS
    for store in found.quick_stores
]


@pytest.mark.parametrize(("found", "store"), CASES)
async def test_the_claims_of_a_scenario_hold(found: Scenario, store: str, tmp_path: Path) -> None:
    run = Run(found, store, full=False, directory=tmp_path)
    with or_skip():
        outcome = await carry_out(found, run)
    assert outcome.ok, outcome.line()
