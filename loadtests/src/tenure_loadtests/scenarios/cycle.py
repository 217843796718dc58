"""Uncontended cycles: what an acquire and a release cost where nobody else wants the key."""

from collections.abc import Sequence

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.scenarios.contract import Column, Comparison, Measured, Plan, Setting, Stage
from tenure_loadtests.scenarios.usage import foreign_cores

__all__ = ["CycleScenario"]


class CycleScenario:
    """Every task takes and gives back a key of its own."""

    name = "cycle"
    title = "Uncontended acquire and release"
    note = (
        "A cycle is one acquire and one release on a key of the task's own. CPU time is the steadiest figure; at many "
        "tasks the latency is mostly that of the queue."
    )
    columns: Sequence[Column] = (
        Column("cycles_per_s", "cycles/s"),
        Column("p50_us", "p50 µs"),
        Column("p99_us", "p99 µs"),
        Column("client_us", "CPU µs client", 1),
        Column("server_us", "CPU µs server", 1),
        Column("faults", "page faults", 1),
    )

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """One task is a matter of latency, many are one of throughput; CPU time is what a noisy machine leaves."""
        main = Comparison("p50_us", "p50") if setting == _label(1) else Comparison("cycles_per_s", "cycles/s", True)
        return (main, Comparison("client_us", "client CPU"))

    def rounds(self, plan: Plan) -> int:
        """As many as the run has."""
        return plan.rounds

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """1, 32 and 256 tasks."""
        del plan
        return [Setting(_label(tasks), tasks) for tasks in (1, 32, 256)]

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """Everybody who can serve so many tasks."""
        return self.name in entry.takes_part and entry.can_serve(setting.tasks)

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """One process, one cell."""
        with stage.worker(entry, setting.tasks) as worker:
            answer = worker.ask(
                "cycles", 60 + plan.cell_s, tasks=setting.tasks, seconds=plan.cell_s, prefix=f"bench:{self.name}"
            )
        usage = answer.pop("usage")
        return Measured(answer, foreign_cores([usage]))


def _label(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"
