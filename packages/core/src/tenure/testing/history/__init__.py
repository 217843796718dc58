"""
The history of a run, and whether it was right.

Every process writes down what it asked the store, what it was told and what it believed (`HistoryRecorder`); whoever
makes trouble writes down what happened to whom. `check_history` reads all of it, from a simulation, a test on real
servers or a demo alike, and holds it against the rules H1 to H10. `python -m tenure.testing.history FILE...` does so
for files.

The fencing token of a grant is its place in the order of the key's grants. So no order has to be searched for, which is
what makes checkers of other histories slow (Knossos, porcupine): a million events take seconds.
"""

from tenure.testing.history.around import RecordingStore
from tenure.testing.history.checking import check_history
from tenure.testing.history.reading import HistorySource
from tenure.testing.history.recorder import HistoryRecorder, Sink
from tenure.testing.history.report import RULES, Assumption, HistoryReport, Violation
from tenure.testing.history.vocabulary import EVENTS, EventKind, HistoryError, check_event

__all__ = [
    "EVENTS",
    "RULES",
    "Assumption",
    "EventKind",
    "HistoryError",
    "HistoryRecorder",
    "HistoryReport",
    "HistorySource",
    "RecordingStore",
    "Sink",
    "Violation",
    "check_event",
    "check_history",
]
