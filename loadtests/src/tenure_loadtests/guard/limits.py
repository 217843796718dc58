"""What the guard holds a run against: ratios of CPU time, in bands that noise stays in and a doubling leaves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tenure_loadtests.figures import ratio_of_least
from tenure_loadtests.records import RecordError, RunRecord

__all__ = ["Limit", "Verdict", "judge", "read_limits", "recorded", "write_limits"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Limit:
    """
    One ratio.

    Attributes:
        contender: Whose CPU time.
        floor: Whose it is divided by: the least of the rounds by the least of its rounds in the same run, for what
            else a machine does only ever adds to CPU time.
        setting: In which setting of the cycle.
        figure: `client_us` or `server_us`, of a cycle.
        expected: The ratio when it was recorded.
        band: How many times the expected ratio is still a pass; less than two, or a doubling would be.
    """

    contender: str
    floor: str
    setting: str
    figure: str
    expected: float
    band: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    How a run stands to a limit.

    Attributes:
        limit: The limit.
        ratio: What was measured, or None where the contender or the floor did not take part.
    """

    limit: Limit
    ratio: float | None

    @property
    def passed(self) -> bool:
        """Whether it was measured, and lies within the band."""
        return self.ratio is not None and self.ratio <= self.limit.expected * self.limit.band

    @property
    def outdated(self) -> bool:
        """Whether it is so much better that the band holds nothing any more: to be recorded again."""
        return self.ratio is not None and self.ratio * self.limit.band < self.limit.expected


def judge(record: RunRecord, limits: Sequence[Limit]) -> list[Verdict]:
    """Hold a run against *limits*."""
    return [Verdict(limit, _ratio(record, limit)) for limit in limits]


def recorded(record: RunRecord, limits: Sequence[Limit]) -> list[Limit]:
    """
    The same limits with what a run measured.

    Raises:
        RecordError: One of them was not measured.
    """
    verdicts = judge(record, limits)
    missing = sorted({verdict.limit.contender for verdict in verdicts if verdict.ratio is None})
    if missing:
        raise RecordError(f"Nothing was recorded: {', '.join(missing)} or its floor did not take part.")
    return [replace(one.limit, expected=round(one.ratio, 3)) for one in verdicts if one.ratio is not None]


def read_limits(path: Path) -> list[Limit]:
    """
    Read the committed file.

    Raises:
        RecordError: It is missing, of another format, or has a band that a doubling would pass.
    """
    try:
        fields: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if fields["format"] != FORMAT:
            raise RecordError(f"{path} is of another format than {FORMAT}: write it again with bench guard --record.")
        limits = [Limit(**one) for one in fields["limits"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} cannot be read as limits of the guard: {error!r}.") from error
    wide = [limit for limit in limits if not 1 < limit.band < 2]
    if wide:
        raise RecordError(
            f"{path} has the band {wide[0].band:g} for {wide[0].contender}: it has to lie between 1 and 2, "
            "or a doubling would pass."
        )
    return limits


def write_limits(path: Path, limits: Sequence[Limit]) -> None:
    """Write the file anew."""
    fields = {"format": FORMAT, "limits": [asdict(limit) for limit in limits]}
    path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def _ratio(record: RunRecord, limit: Limit) -> float | None:
    own, floor = (
        record.by_round("cycle", limit.setting, name, limit.figure) for name in (limit.contender, limit.floor)
    )
    return ratio_of_least(own, floor)
