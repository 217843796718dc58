"""Every planted bug is found; and what judges the runs is itself shown to see."""

import pytest

from simulation.batch import run_batch
from simulation.observers.situations import ENOUGH_SEEDS, SITUATIONS, never_seen
from simulation.plan import FAULTS
from simulation.planted import PLANTED, Planted, catch
from simulation.world import run_seed


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name.replace(" ", "-"))
def test_a_planted_bug_is_caught_within_its_seeds(planted: Planted) -> None:
    found = catch(planted, planted.seeds(), once=True)
    assert found.caught, f"not caught in {found.seeds} seeds"


def test_a_bug_that_was_planted_is_gone_afterwards() -> None:
    before = run_seed(0).journal.hash()
    catch(PLANTED[0], [0])
    assert run_seed(0).journal.hash() == before


def test_a_large_batch_fails_where_a_situation_never_came_up() -> None:
    batch = run_batch([range(3)])
    assert never_seen(batch.fired, batch.seen)
    small, batch.seeds = batch.ok, ENOUGH_SEEDS
    assert (small, batch.ok) == (True, False)


def test_a_large_batch_that_saw_everything_passes() -> None:
    batch = run_batch([range(3)])
    batch.seeds = ENOUGH_SEEDS
    batch.fired.update(FAULTS)
    batch.seen.update(SITUATIONS)
    assert batch.never_seen == []
    assert batch.ok
