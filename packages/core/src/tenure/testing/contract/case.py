"""The cases of this contract: those of every contract, on its own bench."""

from tenure.testing import _case
from tenure.testing._case import Case, run_all
from tenure.testing.contract.bench import Bench

__all__ = ["Case", "Rung", "Script", "run_all"]

Script = _case.Script[Bench]


class Rung(_case.Rung[Bench]):
    """The scripts of one subject about locks, in the order of their file."""
