"""Many leases held at once: what they cost while nothing happens."""

from collections.abc import Sequence

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.scenarios.contract import Column, Comparison, Measured, Plan, Setting, Stage
from tenure_loadtests.scenarios.usage import foreign_cores

__all__ = ["HeldScenario"]

_TTL_S = 30.0
_QUICK_TTL_S = 6.0
_TASKS = 256


class HeldScenario:
    """One process keeps leases alive."""

    name = "held"
    title = "Held leases"
    note = (
        "One process holds the leases for as long as the run was told, each renewed every third of its ttl: by itself "
        "where the library does that (tenure, mithril-locks), by a task a lease that its user writes elsewhere. CPU "
        "time is for a minute. “Latest” is the renewal that was sent furthest behind its due time; memory is what the "
        "process grew by, for each lease; the event loop's lag is looked at twenty times a second."
    )
    columns: Sequence[Column] = (
        Column("client_s_per_min", "CPU s/min client", 2),
        Column("server_s_per_min", "CPU s/min server", 2),
        Column("connections", "connections"),
        Column("renewals", "renewals"),
        Column("late_p99_ms", "late p99 ms", 1),
        Column("latest_ms", "latest ms", 1),
        Column("lag_p99_ms", "loop lag p99 ms", 1),
        Column("memory_bytes", "bytes a lease"),
        Column("lost", "lost"),
        Column("take_s", "s to take all", 2),
    )

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """What the holding process works."""
        del setting
        return (Comparison("client_s_per_min", "client CPU"),)

    def rounds(self, plan: Plan) -> int:
        """One: a cell takes minutes, and has thousands of renewals."""
        del plan
        return 1

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """A thousand and ten thousand."""
        if plan.quick:
            return [
                Setting("1 000 leases, a short ttl", _TASKS, {"leases": 1000, "ttl_s": _QUICK_TTL_S, "seconds": 6.0})
            ]
        seconds = plan.minutes * 60
        return [
            Setting(label, _TASKS, {"leases": leases, "ttl_s": _TTL_S, "seconds": seconds})
            for label, leases in (("1 000 leases", 1000), ("10 000 leases", 10_000))
        ]

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """Everybody who keeps leases."""
        del setting
        return self.name in entry.takes_part

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """One process."""
        del plan
        with stage.worker(entry, setting.tasks) as worker:
            # Taking them one by one may be slow; that is a figure too.
            timeout_s = setting.values["seconds"] + 180
            answer = worker.ask("hold", timeout_s, ports=list(stage.ports(entry)), **setting.values)
        usage = answer.pop("usage")
        return Measured(answer, foreign_cores([usage]))
