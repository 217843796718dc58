"""Events to Prometheus: counters and histograms without a key in any label."""

from typing import Any, final

from tenure.errors import LossReason
from tenure.events import (
    AcquireRefused,
    Event,
    ExecutionLost,
    ExtensionFailed,
    IdempotencyOutcome,
    JobSkipped,
    JobStarted,
    LeadershipAcquired,
    LeadershipLost,
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    LeaseRenewedLate,
    RecordOutcome,
    ReleaseFailed,
    RenewalFailed,
)

__all__ = ["PrometheusHook"]

_HOLD_BUCKETS_S = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 1800, 7200, 86400)
"""From a guarded write to a leadership of a day."""

_SIZE_BUCKETS = (100, 1_000, 10_000, 100_000, 1_000_000)


@final
class PrometheusHook:
    """
    Counts events.

    Jobs are few and named in code, so they may be labels; keys may not. `tenure_leading` is the number of elections
    that the instance leads: summed over the instances it is the number of elections, and more is a split brain.
    Needs prometheus-client (`pip install tenure[prometheus]`). Make one hook a registry.

    Args:
        registry: Where to; by default the library's own.
    """

    def __init__(self, registry: Any = None) -> None:
        import prometheus_client as prometheus

        registry = registry or prometheus.REGISTRY

        def counter(name: str, text: str, *labels: str) -> Any:
            return prometheus.Counter(f"tenure_{name}", text, labels, registry=registry)

        self._acquired = counter("leases_acquired", "Leases granted.", "after")
        self._refused = counter("acquires_refused", "Acquires that found the key held by another owner.")
        self._released = counter("leases_released", "Leases given back.")
        self._lost = counter("leases_lost", "Leases that ended under their holder. Alert on it.", "reason")
        self._failed = counter("store_calls_failed", "Renewals and releases that had no answer.", "operation")
        self._late = counter("renewals_late", "Renewals sent late: a blocked event loop.")
        self._runs = counter("jobs_taken", "Jobs that this instance took over.", "job")
        self._skips = counter("job_ticks_skipped", "Ticks of a job that did not run here.", "job", "reason")
        self._wait = prometheus.Histogram("tenure_wait_seconds", "Time until a lease was granted.", registry=registry)
        self._hold = prometheus.Histogram(
            "tenure_hold_seconds", "Time that a lease was held.", buckets=_HOLD_BUCKETS_S, registry=registry
        )
        self._outcomes = counter("requests", "Requests under an idempotency key, by outcome.", "outcome")
        self._executions_lost = counter("executions_lost", "Executions whose lock ended under them.", "reason")
        self._execution = prometheus.Histogram(
            "tenure_execution_seconds", "Time that an execution took.", buckets=_HOLD_BUCKETS_S, registry=registry
        )
        self._response = prometheus.Histogram(
            "tenure_response_bytes", "Size of stored responses.", buckets=_SIZE_BUCKETS, registry=registry
        )
        # At 0 from the start: an increase is told of counters that were there before it.
        for reason in LossReason:
            self._lost.labels(reason.value)
            self._executions_lost.labels(reason.value)
        for operation in ("renew", "release", "extend"):
            self._failed.labels(operation)
        for outcome in IdempotencyOutcome:
            self._outcomes.labels(outcome.name.lower())
        for after in ("released", "expired", "unknown"):
            self._acquired.labels(after)
        self._leading = prometheus.Gauge("tenure_leading", "Elections that this instance leads.", registry=registry)

    def __call__(self, event: Event, /) -> None:  # noqa: C901, PLR0912 -- one case an event
        """Count *event*."""
        match event:
            case LeaseAcquired(waited_s=waited_s, after=after):
                self._acquired.labels(after or "unknown").inc()
                self._wait.observe(waited_s)
            case AcquireRefused():
                self._refused.inc()
            case LeaseReleased(held_s=held_s):
                self._released.inc()
                self._hold.observe(held_s)
            case LeaseLost(reason=reason, held_s=held_s):
                self._lost.labels(reason.value).inc()
                self._hold.observe(held_s)
            case RenewalFailed():
                self._failed.labels("renew").inc()
            case ReleaseFailed():
                self._failed.labels("release").inc()
            case LeaseRenewedLate():
                self._late.inc()
            case JobStarted(job=job):
                self._runs.labels(job).inc()
            case JobSkipped(job=job, reason=reason):
                self._skips.labels(job, reason.name.lower()).inc()
            case LeadershipAcquired():
                self._leading.inc()
            case LeadershipLost():
                self._leading.dec()
            case RecordOutcome():
                self._count_outcome(event)
            case ExtensionFailed():
                self._failed.labels("extend").inc()
            case ExecutionLost(reason=reason):
                self._executions_lost.labels(reason.value).inc()
            case _:
                pass

    def _count_outcome(self, event: RecordOutcome) -> None:
        self._outcomes.labels(event.outcome.name.lower()).inc()
        if event.elapsed_s is not None:
            self._execution.observe(event.elapsed_s)
            if event.size is not None:
                self._response.observe(event.size)
