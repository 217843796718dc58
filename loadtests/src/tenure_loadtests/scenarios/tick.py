"""A job on three instances: every tick comes to each of them, and runs on one."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.figures import quantile
from tenure_loadtests.scenarios.contract import Column, Comparison, Measured, Plan, Setting, Stage
from tenure_loadtests.scenarios.usage import client_s, foreign_cores, server_s

__all__ = ["TickScenario"]

_INSTANCES = 3
_PERIOD_S = 0.05
_GATHER_S = 0.5


class TickScenario:
    """What a tick costs the one that runs it, and those that do not."""

    name = "tick"
    title = "A job's tick on three instances"
    note = (
        "Three processes call the same job under `on_one_instance` at the same moments, twenty times a second. A tick "
        "ran once where exactly one of them ran it. CPU time is that of all three together, for one tick."
    )
    columns: Sequence[Column] = (
        Column("ticks", "ticks"),
        Column("once", "ran once"),
        Column("owner_p50_us", "p50 µs where it runs"),
        Column("other_p50_us", "p50 µs elsewhere"),
        Column("client_us", "CPU µs client"),
        Column("server_us", "CPU µs server"),
    )

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """None: nobody else does this."""
        del setting
        return ()

    def rounds(self, plan: Plan) -> int:
        """As many as the run has."""
        return plan.rounds

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """One."""
        return [Setting(f"{_INSTANCES} instances", 1, {"ticks": 30 if plan.quick else 200})]

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """Who runs jobs."""
        del setting
        return self.name in entry.takes_part and entry.name.startswith("tenure.locks")

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """Three processes."""
        del plan
        ticks = setting.values["ticks"]
        with ExitStack() as exits:
            workers = [exits.enter_context(stage.worker(entry, setting.tasks)) for _ in range(_INSTANCES)]
            start_at = time.perf_counter() + _GATHER_S
            for worker in workers:
                worker.send("ticks", key="bench:job", start_at=start_at, period_s=_PERIOD_S, ticks=ticks)
            answers = [worker.read(60 + ticks * _PERIOD_S) for worker in workers]
        ran = Counter(number for answer in answers for number in answer["ran"])
        usages = [answer["usage"] for answer in answers]
        owner = sorted(answer["took_s"][number] for answer in answers for number in answer["ran"])
        other = sorted(
            took for answer in answers for number, took in enumerate(answer["took_s"]) if number not in answer["ran"]
        )
        figures = {
            "ticks": float(ticks),
            "once": float(sum(ran[number] == 1 for number in range(ticks))),
            "not_once": float(sum(ran[number] != 1 for number in range(ticks))),
            "client_us": client_s(usages) / ticks * 1e6,
            "server_us": server_s(usages) / ticks * 1e6,
        }
        figures |= {
            name: quantile(took, 0.5) * 1e6 for name, took in (("owner_p50_us", owner), ("other_p50_us", other)) if took
        }
        return Measured(figures, foreign_cores(usages))
