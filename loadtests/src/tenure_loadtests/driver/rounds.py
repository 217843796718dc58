"""The order of a run: cell by cell, round by round, the contenders in turn and each round from another one on."""

from collections.abc import Callable, Sequence

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.driver.environments import Environments, EnvironmentUnusableError
from tenure_loadtests.driver.servers import Servers, ServerUnusableError
from tenure_loadtests.driver.workers import Worker
from tenure_loadtests.records import Absence, Cell, RunRecord
from tenure_loadtests.scenarios.contract import Measured, Plan, Scenario, Setting
from tenure_loadtests.worker.protocol import ProtocolError
from tenure_testbed import ServerError

__all__ = ["Rounds", "calmest", "rotated"]


def rotated(entries: Sequence[Entry], round_number: int) -> list[Entry]:
    """The contenders of a round: each begins one of the rounds, so that none is always the one after the heaviest."""
    begin = round_number % len(entries) if entries else 0
    return [*entries[begin:], *entries[:begin]]


def calmest(measure: Callable[[], Measured], plan: Plan) -> tuple[Measured, int]:
    """
    Run a cell until it was quiet, a few times at most, and keep the calmest.

    Returns:
        What was measured, and how often it was tried.
    """
    best = measure()
    tries = 1
    while best.foreign_cores > plan.quiet_cores and tries < plan.tries:
        again = measure()
        tries += 1
        best = min(best, again, key=lambda one: one.foreign_cores)
    return best, tries


class Rounds:
    """
    Runs scenarios.

    Args:
        servers: The servers.
        environments: The peers' environments.
        plan: How long and how often.
        record: Where the cells go.
        tell: Who is told of the progress, line by line.
    """

    def __init__(
        self,
        servers: Servers,
        environments: Environments,
        plan: Plan,
        record: RunRecord,
        tell: Callable[[str], None],
    ) -> None:
        self._stage = _Stage(servers, environments, record)
        self._servers = servers
        self._plan = plan
        self._record = record
        self._tell = tell

    def run(self, scenario: Scenario, entries: Sequence[Entry], only: Sequence[str] | None = None) -> None:
        """Run one scenario with all of *entries* that it includes, in the settings that *only* names, or in all."""
        for setting in scenario.settings(self._plan):
            if only is not None and setting.label not in only:
                continue
            taking_part = [entry for entry in entries if scenario.includes(entry, setting)]
            out: set[str] = set()
            for number in range(scenario.rounds(self._plan)):
                for entry in rotated(taking_part, number):
                    if entry.name not in out and not self._cell(scenario, setting, entry, number):
                        out.add(entry.name)

    def _cell(self, scenario: Scenario, setting: Setting, entry: Entry, number: int) -> bool:
        def measure() -> Measured:
            for server in entry.servers:
                self._servers.empty(server)
            return scenario.measure(self._stage, entry, setting, self._plan)

        try:
            self._servers.address_of(entry)
            measured, tries = calmest(measure, self._plan)
        except (ProtocolError, EnvironmentUnusableError, ServerUnusableError, ServerError, OSError) as error:
            reason = " ".join(str(error).split())
            self._record.absences.append(Absence(entry.name, scenario.name, setting.label, reason))
            self._tell(f"{scenario.name} / {setting.label} / {entry.name}: absent: {reason}")
            return False
        self._record.cells.append(
            Cell(
                scenario.name,
                setting.label,
                entry.name,
                number,
                dict(measured.figures),
                round(measured.foreign_cores, 3),
                tries,
            )
        )
        figures = [one.figure for one in scenario.comparisons(setting.label)][:1] or list(measured.figures)[:1]
        told = "".join(f"{name} {measured.figures[name]:.4g}, " for name in figures if name in measured.figures)
        self._tell(
            f"{scenario.name} / {setting.label} / round {number + 1} / {entry.name}: {told}"
            f"others {measured.foreign_cores:.2f} cores" + (f", {tries} tries" if tries > 1 else "")
        )
        return True


class _Stage:
    """What one cell has of the run."""

    def __init__(self, servers: Servers, environments: Environments, record: RunRecord) -> None:
        self._servers = servers
        self._environments = environments
        self._record = record

    def worker(self, entry: Entry, tasks: int) -> Worker:
        pids = [pid for server in entry.servers for pid in self._servers.processes(server)]
        return Worker(entry, self._servers.address_of(entry), pids, tasks, self._environments, self._note)

    def calls(self, entry: Entry) -> float | None:
        return self._servers.calls(entry.server)

    def ports(self, entry: Entry) -> Sequence[int]:
        return self._servers.ports(entry.server)

    def _note(self, entry: Entry, versions: dict[str, str]) -> None:
        self._record.versions.setdefault(entry.name, versions)
