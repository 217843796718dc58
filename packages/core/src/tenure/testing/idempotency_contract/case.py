"""The cases of this contract: those of every contract, on its own bench."""

from tenure.testing import _case
from tenure.testing._case import Case, run_all
from tenure.testing.idempotency_contract.bench import RecordBench

__all__ = ["Case", "Rung", "Script", "run_all"]

Script = _case.Script[RecordBench]


class Rung(_case.Rung[RecordBench]):
    """The scripts of one subject about records, in the order of their file."""
