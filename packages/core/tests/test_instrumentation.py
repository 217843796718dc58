"""The hooks on the real libraries: structlog, Prometheus and OpenTelemetry; no key in a label, no owner anywhere."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args

import prometheus_client
import pytest
import structlog
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tenure import InMemoryLockStore, Locks, LossReason
from tenure.events import (
    AcquireRefused,
    Event,
    ExecutionLost,
    ExtensionFailed,
    IdempotencyClosed,
    IdempotencyOutcome,
    IdempotencyStarted,
    JobSkipped,
    JobStarted,
    LeadershipAcquired,
    LeadershipLost,
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    LeaseRenewedLate,
    LocksClosed,
    LocksStarted,
    RecordOutcome,
    ReleaseFailed,
    RenewalFailed,
    SkipReason,
    StoreFinding,
)
from tenure.instrumentation import LoggingHook, OpenTelemetryHook, PrometheusHook, StructlogHook, default_hooks

KEY = "order:canary-4711"
JOB = "shop.jobs:export"

EVENTS: list[Event] = [
    LocksStarted("shop-1", "PostgresLockStore", "cluster"),
    StoreFinding("pool-small", "The pool has 1 connection.", "Give it 5."),
    LocksClosed("shop-1"),
    LeaseAcquired(KEY, 41, 0.25, "released"),
    AcquireRefused(KEY, 2.0),
    RenewalFailed(KEY, 41, "TimeoutError"),
    LeaseRenewedLate(KEY, 41, 4.5, 30.0),
    LeaseLost(KEY, 41, LossReason.EXPIRED, 12.0),
    LeaseReleased(KEY, 41, 3.0),
    ReleaseFailed(KEY, 41, "ConnectionResetError"),
    JobStarted(JOB, f"{KEY}:owner", 41),
    JobSkipped(JOB, KEY, SkipReason.OVERLAP),
    LeadershipAcquired(KEY, 41),
    LeadershipLost(KEY, 41, None, 60.0),
    IdempotencyStarted("shop-1", "PostgresIdempotencyStore", "cluster"),
    IdempotencyClosed("shop-1", 0),
    RecordOutcome("c0ffee", IdempotencyOutcome.STORED, 1, 0.25, 64),
    ExtensionFailed("c0ffee", 1, "TimeoutError"),
    ExecutionLost("c0ffee", 1, LossReason.EXPIRED),
]


def test_every_event_is_sent_through_the_hooks_below() -> None:
    assert [type(event) for event in EVENTS] == [*get_args(Event)]


# ----------------------------------------------------------------------------------------- default


def test_the_log_is_the_hook_of_who_names_none() -> None:
    assert [type(hook) for hook in default_hooks()] == [LoggingHook]


async def test_a_hook_that_raises_does_not_stop_the_engine() -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise LookupError("a bug of the application's")

    async with Locks(InMemoryLockStore(), hooks=[broken, heard.append]) as locks, locks.hold("invoices") as lease:
        assert lease.held
    assert [type(event) for event in heard] == [LocksStarted, LeaseAcquired, LeaseReleased, LocksClosed]


# --------------------------------------------------------------------------------------- structlog


def test_structlog_gets_a_name_and_fields() -> None:
    with capture_logs() as logged:
        StructlogHook()(LeaseLost(KEY, 41, LossReason.EXPIRED, 12.000_499))
    assert logged == [
        {
            "event": "tenure.lease_lost",
            "log_level": "warning",
            "key": KEY,
            "token": 41,
            "reason": "expired",
            "held_s": 12.0,
        }
    ]


@pytest.mark.parametrize(
    ("event", "name", "level"),
    [
        (EVENTS[0], "tenure.locks_started", "info"),
        (LocksStarted("shop-1", "InMemoryLockStore", "process"), "tenure.locks_started", "warning"),
        (EVENTS[1], "tenure.store_finding", "warning"),
        (EVENTS[2], "tenure.locks_closed", "info"),
        (EVENTS[3], "tenure.lease_acquired", "debug"),
        (EVENTS[4], "tenure.acquire_refused", "debug"),
        (EVENTS[5], "tenure.renewal_failed", "warning"),
        (EVENTS[6], "tenure.lease_renewed_late", "warning"),
        (EVENTS[7], "tenure.lease_lost", "warning"),
        (EVENTS[8], "tenure.lease_released", "debug"),
        (EVENTS[9], "tenure.release_failed", "warning"),
        (EVENTS[10], "tenure.job_started", "info"),
        (EVENTS[11], "tenure.job_skipped", "debug"),
        (EVENTS[12], "tenure.leadership_acquired", "info"),
        (EVENTS[13], "tenure.leadership_lost", "info"),
        (EVENTS[14], "tenure.idempotency_started", "info"),
        (EVENTS[15], "tenure.idempotency_closed", "info"),
        (EVENTS[16], "tenure.record_outcome", "debug"),
        (EVENTS[17], "tenure.extension_failed", "warning"),
        (EVENTS[18], "tenure.execution_lost", "warning"),
    ],
)
def test_structlog_gets_every_event_at_its_level(event: Event, name: str, level: str) -> None:
    with capture_logs() as logged:
        StructlogHook()(event)
    assert [(line["event"], line["log_level"]) for line in logged] == [(name, level)]


def test_structlog_gets_plain_values() -> None:
    with capture_logs() as logged:
        for event in EVENTS:
            StructlogHook()(event)
    assert {type(value) for line in logged for value in line.values()} <= {str, int, float, type(None)}


def test_structlog_events_go_to_the_logger_that_is_given() -> None:
    with capture_logs() as logged:
        StructlogHook(structlog.get_logger("shop").bind(shop="eu"))(LocksClosed("shop-1"))
    assert logged == [{"event": "tenure.locks_closed", "log_level": "info", "instance": "shop-1", "shop": "eu"}]


# -------------------------------------------------------------------------------------- prometheus


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """What a scrape would find, but for buckets, creation times and zeros."""
    return {
        sample.name + "".join(f"[{label}={value}]" for label, value in sample.labels.items()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.value and not sample.name.endswith(("_bucket", "_created"))
    }


def test_prometheus_counts_every_event(registry: CollectorRegistry) -> None:
    hook = PrometheusHook(registry)
    for event in EVENTS:
        hook(event)
    assert samples(registry) == {
        "tenure_leases_acquired_total[after=released]": 1,
        "tenure_acquires_refused_total": 1,
        "tenure_leases_released_total": 1,
        "tenure_leases_lost_total[reason=expired]": 1,
        "tenure_store_calls_failed_total[operation=renew]": 1,
        "tenure_store_calls_failed_total[operation=release]": 1,
        "tenure_renewals_late_total": 1,
        f"tenure_jobs_taken_total[job={JOB}]": 1,
        f"tenure_job_ticks_skipped_total[job={JOB}][reason=overlap]": 1,
        "tenure_wait_seconds_count": 1,
        "tenure_wait_seconds_sum": 0.25,
        "tenure_hold_seconds_count": 2,
        "tenure_hold_seconds_sum": 15.0,
        "tenure_requests_total[outcome=stored]": 1,
        "tenure_executions_lost_total[reason=expired]": 1,
        "tenure_store_calls_failed_total[operation=extend]": 1,
        "tenure_execution_seconds_count": 1,
        "tenure_execution_seconds_sum": 0.25,
        "tenure_response_bytes_count": 1,
        "tenure_response_bytes_sum": 64,
    }


@pytest.mark.parametrize(("after", "label"), [("released", "released"), ("expired", "expired"), (None, "unknown")])
def test_prometheus_tells_a_takeover_from_a_handover(registry: CollectorRegistry, after: Any, label: str) -> None:
    PrometheusHook(registry)(LeaseAcquired(KEY, 41, 0.0, after))
    assert samples(registry)[f"tenure_leases_acquired_total[after={label}]"] == 1


@pytest.mark.parametrize("reason", LossReason)
def test_prometheus_tells_losses_apart(registry: CollectorRegistry, reason: LossReason) -> None:
    PrometheusHook(registry)(LeaseLost(KEY, 41, reason, 1.0))
    assert samples(registry)[f"tenure_leases_lost_total[reason={reason.value}]"] == 1


def test_prometheus_shows_one_for_who_leads_and_none_for_who_led(registry: CollectorRegistry) -> None:
    hook = PrometheusHook(registry)
    hook(LeadershipAcquired(KEY, 41))
    assert samples(registry) == {"tenure_leading": 1}
    hook(LeadershipLost(KEY, 41, LossReason.EXPIRED, 1.0))
    assert samples(registry) == {}


def test_no_label_of_prometheus_holds_a_key_or_an_instance(registry: CollectorRegistry) -> None:
    hook = PrometheusHook(registry)
    for event in EVENTS:
        hook(event)
    page = prometheus_client.generate_latest(registry).decode()
    assert "canary" not in page
    assert "shop-1" not in page


def test_prometheus_uses_its_own_registry_unless_it_is_given_one() -> None:
    hook = PrometheusHook()
    try:
        hook(AcquireRefused(KEY, 0.0))
        assert prometheus_client.REGISTRY.get_sample_value("tenure_acquires_refused_total") == 1
    finally:
        for collector in [one for one in vars(hook).values() if hasattr(one, "collect")]:
            prometheus_client.REGISTRY.unregister(collector)


# ----------------------------------------------------------------------------------- opentelemetry


class Telemetry:
    """A meter and a tracer of the real SDK, and what they gathered."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        self.meters = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def span_events(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            (event.name, dict(event.attributes or {}))
            for span in self._spans.get_finished_spans()
            for event in span.events
        ]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    gathered = Telemetry()
    yield gathered
    gathered.meters.shutdown()
    gathered.tracers.shutdown()


@pytest.fixture
def hook(telemetry: Telemetry) -> OpenTelemetryHook:
    return OpenTelemetryHook(telemetry.meters.get_meter("shop"))


def test_opentelemetry_counts_every_event_by_its_kind(telemetry: Telemetry, hook: OpenTelemetryHook) -> None:
    for event in EVENTS:
        hook(event)
    counted = {point.attributes["tenure.event"]: point.value for point in telemetry.points("tenure.events")}
    assert counted == dict.fromkeys(
        [
            "locks_started",
            "store_finding",
            "locks_closed",
            "lease_acquired",
            "acquire_refused",
            "renewal_failed",
            "lease_renewed_late",
            "lease_lost",
            "lease_released",
            "release_failed",
            "job_started",
            "job_skipped",
            "leadership_acquired",
            "leadership_lost",
            "idempotency_started",
            "idempotency_closed",
            "record_outcome",
            "extension_failed",
            "execution_lost",
        ],
        1,
    )


def test_opentelemetry_measures_waits_and_holds_in_seconds(telemetry: Telemetry, hook: OpenTelemetryHook) -> None:
    for event in EVENTS:
        hook(event)
    waits = {point.attributes["tenure.event"]: point.sum for point in telemetry.points("tenure.wait")}
    holds = {point.attributes["tenure.event"]: point.sum for point in telemetry.points("tenure.hold")}
    assert waits == {"lease_acquired": 0.25, "acquire_refused": 2.0}
    assert holds == {"lease_lost": 12.0, "lease_released": 3.0}


def test_no_attribute_of_a_metric_holds_a_key_or_a_token(telemetry: Telemetry, hook: OpenTelemetryHook) -> None:
    for event in EVENTS:
        hook(event)
    points = [point for name in ("tenure.events", "tenure.wait", "tenure.hold") for point in telemetry.points(name)]
    names = {name for point in points for name in point.attributes}
    assert names == {"tenure.event", "tenure.outcome", "tenure.reason"}
    assert "canary" not in str([dict(point.attributes) for point in points])


def test_a_loss_stands_in_the_span_that_it_struck_with_its_token_and_without_its_key(
    telemetry: Telemetry, hook: OpenTelemetryHook
) -> None:
    with telemetry.tracers.get_tracer("shop").start_as_current_span("upload"):
        hook(LeaseAcquired(KEY, 41, 0.0, None))
        hook(LeaseLost(KEY, 41, LossReason.STALLED, 40.0))
    assert telemetry.span_events() == [
        (
            "tenure.lease_lost",
            {"tenure.event": "lease_lost", "tenure.reason": "stalled", "tenure.token": 41},
        )
    ]


def test_a_loss_outside_of_any_span_is_counted_all_the_same(telemetry: Telemetry, hook: OpenTelemetryHook) -> None:
    hook(LeaseLost(KEY, 41, LossReason.STALLED, 40.0))
    (point,) = telemetry.points("tenure.events")
    assert dict(point.attributes) == {"tenure.event": "lease_lost", "tenure.reason": "stalled"}


def test_opentelemetry_uses_the_global_meter_unless_it_is_given_one(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The global provider can be set once a process; what asks for it is what is tested.
    monkeypatch.setattr(metrics, "get_meter", telemetry.meters.get_meter)
    OpenTelemetryHook()(LocksClosed("shop-1"))
    assert len(telemetry.points("tenure.events")) == 1


# --------------------------------------------------------------------------------- without any of it


@pytest.mark.parametrize(
    ("library", "make"),
    [("structlog", "StructlogHook"), ("prometheus_client", "PrometheusHook"), ("opentelemetry", "OpenTelemetryHook")],
)
def test_a_hook_whose_library_is_missing_names_it_and_the_package_imports_without_it(library: str, make: str) -> None:
    program = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from tenure.instrumentation import *\n"
        f"try: {make}()\n"
        "except ImportError as error: print(error.name)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == library


@pytest.mark.parametrize("size", [None, 64])
def test_prometheus_measures_only_executions_that_ended(registry: CollectorRegistry, size: int | None) -> None:
    hook = PrometheusHook(registry)
    hook(RecordOutcome("c0ffee", IdempotencyOutcome.REPLAYED, size=64))
    hook(RecordOutcome("c0ffee", IdempotencyOutcome.RELEASED, 1, 0.25, size))
    found = samples(registry)
    assert found["tenure_execution_seconds_count"] == 1
    assert found.get("tenure_response_bytes_count") == (None if size is None else 1)


def test_opentelemetry_measures_only_executions_that_ended(telemetry: Telemetry, hook: OpenTelemetryHook) -> None:
    hook(RecordOutcome("c0ffee", IdempotencyOutcome.REPLAYED, size=64))
    hook(RecordOutcome("c0ffee", IdempotencyOutcome.STORED, 1, 0.25, 64))
    assert [point.count for point in telemetry.points("tenure.execution")] == [1]
