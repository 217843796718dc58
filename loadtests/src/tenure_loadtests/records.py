"""What a run leaves behind: its cells, and what is needed to read them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

__all__ = ["FORMAT", "Absence", "Cell", "RecordError", "RunRecord"]

FORMAT = 1
"""Raised with every change that an older reader would misread."""


class RecordError(Exception):
    """A file is no record of a run; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Cell:
    """
    One contender in one setting of a scenario in one round.

    Attributes:
        scenario: The scenario's name.
        setting: The setting's label, such as `32 tasks`.
        contender: The contender's name.
        round: The round, from 0.
        figures: What was measured, by name; names end in their units.
        foreign_cores: How many processors were busy with other things meanwhile.
        tries: How often the cell was run, for noise.
    """

    scenario: str
    setting: str
    contender: str
    round: int
    figures: Mapping[str, float]
    foreign_cores: float
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Absence:
    """
    A contender that was to take part and did not.

    Attributes:
        contender: Its name.
        scenario: Where.
        setting: In which setting; empty for all of them.
        reason: Why, in a line.
    """

    contender: str
    scenario: str
    setting: str
    reason: str


@dataclass(slots=True)
class RunRecord:
    """
    A run.

    Attributes:
        machine: What it ran on, and when.
        versions: The versions of each contender's distributions, and of the servers.
        plan: How long and how often.
        cells: All cells.
        absences: Who did not take part, and why.
    """

    machine: Mapping[str, Any]
    plan: Mapping[str, Any]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)

    def by_round(self, scenario: str, setting: str, contender: str, figure: str) -> dict[int, float]:
        """One figure of one contender in one setting, by round."""
        return {
            cell.round: cell.figures[figure]
            for cell in self.cells
            if (cell.scenario, cell.setting, cell.contender) == (scenario, setting, contender)
            and figure in cell.figures
        }

    def settings(self, scenario: str) -> list[str]:
        """The settings of a scenario that were run, in their order."""
        return _once(cell.setting for cell in self.cells if cell.scenario == scenario)

    def contenders(self, scenario: str, setting: str) -> list[str]:
        """Who took part in a setting, in the order of the first round."""
        return _once(cell.contender for cell in self.cells if (cell.scenario, cell.setting) == (scenario, setting))

    def scenarios(self) -> list[str]:
        """The scenarios that were run, in their order."""
        return _once(cell.scenario for cell in self.cells)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """
        Read what `write` wrote.

        Raises:
            RecordError: The file is missing, no record, or another format's.
        """
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordError(f"{path} cannot be read as a record: {error}.") from error
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise RecordError(f"{path} is no record of format {FORMAT}: run the benchmark again.")
        return cls(
            machine=fields["machine"],
            plan=fields["plan"],
            versions=fields["versions"],
            cells=[Cell(**one) for one in fields["cells"]],
            absences=[Absence(**one) for one in fields["absences"]],
        )


def _once(names: Iterable[str]) -> list[str]:
    found: Sequence[str] = list(dict.fromkeys(names))
    return list(found)
