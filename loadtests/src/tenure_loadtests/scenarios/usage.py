"""What the processes of a cell used, put together."""

from collections.abc import Mapping, Sequence

__all__ = ["client_s", "foreign_cores", "server_s"]


def client_s(usages: Sequence[Mapping[str, float]]) -> float:
    """The CPU time of all the contender's processes, in seconds."""
    return sum(usage["client_s"] for usage in usages)


def server_s(usages: Sequence[Mapping[str, float]]) -> float:
    """The CPU time of the servers, in seconds: every process looked at the same ones."""
    return max(usage["server_s"] for usage in usages)


def foreign_cores(usages: Sequence[Mapping[str, float]]) -> float:
    """How many processors were busy with what was neither the contender nor its servers."""
    longest = max(usages, key=lambda usage: usage["wall_s"])
    foreign_s = longest["machine_s"] - client_s(usages) - server_s(usages)
    # The machine's own count comes in hundredths of a second.
    return max(0.0, foreign_s) / longest["wall_s"]
