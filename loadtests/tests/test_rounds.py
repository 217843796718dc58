from collections import Counter

import pytest

from tenure_loadtests.contenders.catalogue import CATALOGUE
from tenure_loadtests.driver.rounds import calmest, rotated
from tenure_loadtests.scenarios.contract import Measured, Plan


def test_each_round_begins_with_another_contender() -> None:
    entries = list(CATALOGUE.values())[:4]
    assert Counter(rotated(entries, number)[0].name for number in range(4)) == Counter(one.name for one in entries)
    assert rotated([], 3) == []


@pytest.mark.parametrize(
    ("noise", "kept", "tries"),
    [([0.1], 0.1, 1), ([0.9, 0.2], 0.2, 2), ([0.9, 0.5, 0.7], 0.5, 3)],
    ids=["calm at once", "calm at the second try", "never calm"],
)
def test_a_noisy_cell_is_run_again_and_the_calmest_kept(noise: list[float], kept: float, tries: int) -> None:
    cells = iter([Measured({}, one) for one in noise])
    measured, tried = calmest(lambda: next(cells), Plan(quiet_cores=0.3, tries=3))
    assert (measured.foreign_cores, tried) == (kept, tries)


def test_every_ratio_is_against_somebody_there_is() -> None:
    for entry in CATALOGUE.values():
        for scenario in entry.takes_part:
            floor = entry.floor_of(scenario)
            assert not floor or scenario in CATALOGUE[floor].takes_part, (entry.name, scenario)


def test_every_environment_is_pinned() -> None:
    from tenure_loadtests.driver.environments import folder_of_loadtests

    for name in sorted(
        {one.environment for one in CATALOGUE.values() if one.environment not in (None, "node")}, key=str
    ):
        lines = (folder_of_loadtests() / "requirements" / f"{name}.txt").read_text().splitlines()
        pinned = [line for line in lines if line and not line.startswith("#")]
        assert pinned
        assert all("==" in line for line in pinned), name
