"""An order that is posted: with the idempotency middleware and without."""

from collections.abc import Sequence

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.scenarios.contract import Column, Comparison, Measured, Plan, Setting, Stage
from tenure_loadtests.scenarios.usage import foreign_cores

__all__ = ["RequestScenario"]


class RequestScenario:
    """What a request takes longer because it is carried out once."""

    name = "request"
    title = "An idempotent POST"
    note = (
        "A Starlette application in the measured process, called without a socket. Its handler writes one row of "
        "PostgreSQL and commits. The floor is the same application without the middleware, so 1 / “× floor” is how "
        "many times as long a request takes; a replay is the answer to a repeat, which writes no row."
    )
    columns: Sequence[Column] = (
        Column("cycles_per_s", "requests/s"),
        Column("p50_us", "p50 µs"),
        Column("p99_us", "p99 µs"),
        Column("client_us", "CPU µs client"),
        Column("server_us", "CPU µs server"),
    )

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """The latency, and what it costs."""
        del setting
        return (Comparison("p50_us", "p50"), Comparison("client_us", "client CPU"))

    def rounds(self, plan: Plan) -> int:
        """As many as the run has."""
        return plan.rounds

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """One client, and sixteen at once."""
        del plan
        return [Setting("1 client", 1), Setting("16 clients", 16)]

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """The applications."""
        del setting
        return self.name in entry.takes_part

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """One process, one cell."""
        with stage.worker(entry, setting.tasks) as worker:
            answer = worker.ask(
                "cycles", 60 + plan.cell_s, tasks=setting.tasks, seconds=plan.cell_s, prefix=f"bench:{self.name}"
            )
        usage = answer.pop("usage")
        return Measured(answer, foreign_cores([usage]))
