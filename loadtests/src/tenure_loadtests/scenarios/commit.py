"""What locks do to the others on the same database: the latency of commits that have nothing to do with them."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tenure_loadtests.contenders.catalogue import TRANSACTIONS, Entry
from tenure_loadtests.scenarios.contract import Column, Comparison, Measured, Plan, Setting, Stage
from tenure_loadtests.scenarios.usage import foreign_cores

__all__ = ["CommitScenario"]

_CLIENTS = 4
_KEYS = 12
_HOLD_S = 0.05
"""Twelve keys, each held for 50 ms and a little: two hundred releases a second and some."""


class CommitScenario:
    """Transactions beside two hundred releases a second, with and without waiters to be woken."""

    name = "commit"
    title = "Commits of others beside 200 releases a second"
    note = (
        "Four clients write a row and commit, with pauses, on the server that the locks are on; in the same cell twice "
        "beside about 200 releases a second, once of keys that nobody waits for and once of keys that are waited for. "
        "The ratio is how many times as long the others' commits take while releases wake waiters."
    )
    columns: Sequence[Column] = (
        Column("idle_p50_us", "p50 µs without locks"),
        Column("unwaited_p50_us", "p50 µs, nobody waits"),
        Column("waited_p50_us", "p50 µs, waited for"),
        Column("unwaited_p99_us", "p99 µs, nobody waits"),
        Column("waited_p99_us", "p99 µs, waited for"),
        Column("unwaited_releases_per_s", "releases/s, nobody waits"),
        Column("waited_releases_per_s", "releases/s, waited for"),
        Column("waited_ratio", "× as long, waited for", 2),
    )

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """None: the ratio is within the cell."""
        del setting
        return ()

    def rounds(self, plan: Plan) -> int:
        """As many as the run has."""
        return plan.rounds

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """One."""
        return [Setting("4 clients", _KEYS * 2, {"seconds": 1.5 if plan.quick else 5.0})]

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """Locks on PostgreSQL."""
        del setting
        return self.name in entry.takes_part and entry.name.startswith("tenure.locks")

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """Two processes; the phases follow each other closely."""
        del plan
        seconds: float = setting.values["seconds"]
        with ExitStack() as exits:
            locks = exits.enter_context(stage.worker(entry, setting.tasks))
            others = exits.enter_context(stage.worker(TRANSACTIONS, _CLIENTS))
            figures: dict[str, float] = {}
            noise = []
            for phase, waiters in (("idle", None), ("unwaited", 0), ("waited", 1)):
                if waiters is not None:
                    # It begins before the others' clock does, and goes on after it.
                    locks.send("turnover", keys=_KEYS, waiters=waiters, hold_s=_HOLD_S, seconds=seconds + 0.5)
                answer = others.ask("cycles", 60 + seconds, tasks=_CLIENTS, seconds=seconds, prefix="bench:commit")
                usages: list[Mapping[str, Any]] = [answer["usage"]]
                if waiters is not None:
                    turnover = locks.read(60 + seconds)
                    usages.append(turnover["usage"])
                    figures[f"{phase}_releases_per_s"] = turnover["releases_per_s"]
                figures |= {f"{phase}_p50_us": answer["p50_us"], f"{phase}_p99_us": answer["p99_us"]}
                noise.append(foreign_cores(usages))
        figures["waited_ratio"] = figures["waited_p50_us"] / figures["unwaited_p50_us"]
        return Measured(figures, max(noise))
