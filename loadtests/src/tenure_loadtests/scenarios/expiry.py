"""Mass expiry: holders of many leases die at once, and others wait for every one of them."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.driver.workers import Worker
from tenure_loadtests.figures import quantile
from tenure_loadtests.scenarios.contract import Column, Comparison, Measured, Plan, Setting, Stage
from tenure_loadtests.worker.meter import Meter

__all__ = ["ExpiryScenario", "calls_per_s"]

_HOLDERS = 4
_TTL_S = 10.0
_QUICK_TTL_S = 4.0
_SAMPLE_S = 1.0
"""PostgreSQL's own counters lag by up to a second: rates are taken over no less."""
_SLACK_S = 30.0


class ExpiryScenario:
    """SIGKILL to every holder at the same moment."""

    name = "expiry"
    title = "Mass expiry"
    note = (
        "Four processes hold the leases, and one process has a waiter for each key. The holders are killed at once; "
        "“latest” is when the last key was taken over, after the kill. Calls a second are the scripts or "
        "transactions of the server: while everybody waits, and in the busiest second of the takeover."
    )
    columns: Sequence[Column] = (
        Column("keys", "keys"),
        Column("taken", "taken over"),
        Column("ttl_s", "ttl s", 1),
        Column("first_s", "first s", 2),
        Column("p50_s", "p50 s", 2),
        Column("latest_s", "latest s", 2),
        Column("waiting_calls_per_s", "calls/s waiting"),
        Column("peak_calls_per_s", "calls/s at the peak"),
    )

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """When all is taken over."""
        del setting
        return (Comparison("latest_s", "latest"),)

    def rounds(self, plan: Plan) -> int:
        """One: a thousand takeovers are enough to tell."""
        del plan
        return 1

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """A thousand keys, or a hundred for a look."""
        keys, ttl_s = (200, _QUICK_TTL_S) if plan.quick else (1000, _TTL_S)
        return [Setting(f"{keys:,} holders".replace(",", " "), 256, {"keys": keys, "ttl_s": ttl_s})]

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """Who keeps leases and waits for them."""
        del setting
        return self.name in entry.takes_part

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """Holders, waiters, and a kill."""
        del plan
        keys, ttl_s = setting.values["keys"], setting.values["ttl_s"]
        names = [f"bench:held:{number}" for number in range(keys)]
        with ExitStack() as exits:
            waiter = exits.enter_context(stage.worker(entry, setting.tasks))
            holders = [exits.enter_context(stage.worker(entry, setting.tasks)) for _ in range(_HOLDERS)]
            meter = Meter([])
            for number, holder in enumerate(holders):
                holder.ask("keep", 120, keys=names[number::_HOLDERS], ttl_s=ttl_s)
            waiter.ask("await", 120, keys=names)
            samples = self._watch(stage, entry, waiter, 2 * _SAMPLE_S)
            for holder in holders:
                holder.kill()
            killed = time.perf_counter()
            waiter.send("taken", within_s=ttl_s + _SLACK_S)
            peak = self._watch(stage, entry, waiter, ttl_s + _SLACK_S)
            answer = waiter.read(ttl_s + 2 * _SLACK_S)
            usage = meter.read()
        after = sorted(at - killed for at in answer["taken"])
        figures = {"keys": float(keys), "taken": float(len(after)), "missing": float(keys - len(after)), "ttl_s": ttl_s}
        if after:
            figures |= {"first_s": after[0], "p50_s": quantile(after, 0.5), "latest_s": after[-1]}
            figures["beyond_ttl_s"] = after[-1] - ttl_s
        if rates := calls_per_s(samples):
            figures["waiting_calls_per_s"] = quantile(sorted(rates), 0.5)
        if rates := calls_per_s(peak):
            figures["peak_calls_per_s"] = max(rates)
        # The processes were killed, and what they used with them: all that can be told is the machine's load less ours.
        return Measured(figures, max(0.0, usage.machine_s - answer["usage"]["client_s"]) / usage.wall_s)

    def _watch(self, stage: Stage, entry: Entry, waiter: Worker, seconds: float) -> list[tuple[float, float]]:
        """The server's count of calls, once a second, until the time is over or the waiter has answered."""
        until = time.perf_counter() + seconds
        samples = []
        while True:
            calls = stage.calls(entry)
            now = time.perf_counter()
            if calls is not None:
                samples.append((now, calls))
            if now >= until or waiter.has_answered(min(_SAMPLE_S, max(0.0, until - now))):
                return samples


def calls_per_s(samples: Sequence[tuple[float, float]]) -> list[float]:
    """The rates between samples of a count, each with its moment."""
    return [(count - before) / (at - since) for (since, before), (at, count) in pairwise(samples) if at > since]
