"""Events to OpenTelemetry metrics, and to the span that is current."""

from typing import Any, final

from tenure.events import AcquireRefused, Event, ExecutionLost, LeaseAcquired, LeaseLost, LeaseReleased, RecordOutcome
from tenure.instrumentation._wording import kind_of

__all__ = ["OpenTelemetryHook"]


@final
class OpenTelemetryHook:
    """
    Counts events as `tenure.events`, and measures waits and holds as histograms in seconds.

    A loss is added to the current span as an event too, with its token but without its key: a trace shows where in
    the work it struck. Needs opentelemetry-api (`pip install tenure[otel]`).

    Args:
        meter: Where to; by default the global provider's meter `tenure`.
    """

    def __init__(self, meter: Any = None) -> None:
        from opentelemetry import metrics, trace

        meter = meter or metrics.get_meter("tenure")
        self._current_span = trace.get_current_span
        self._events = meter.create_counter("tenure.events", unit="{event}", description="What happened, by kind.")
        self._wait = meter.create_histogram(
            "tenure.wait", unit="s", description="Time until a lease was granted or refused."
        )
        self._hold = meter.create_histogram("tenure.hold", unit="s", description="Time that a lease was held.")
        self._execution = meter.create_histogram("tenure.execution", unit="s", description="Time that a request took.")

    def __call__(self, event: Event, /) -> None:
        """Count *event*."""
        attributes = {"tenure.event": kind_of(event)}
        match event:
            case LeaseAcquired(waited_s=waited_s) | AcquireRefused(waited_s=waited_s):
                self._wait.record(waited_s, attributes)
            case LeaseReleased(held_s=held_s):
                self._hold.record(held_s, attributes)
            case LeaseLost(token=token, reason=reason, held_s=held_s):
                attributes["tenure.reason"] = reason.value
                self._hold.record(held_s, attributes)
                self._current_span().add_event("tenure.lease_lost", {**attributes, "tenure.token": token})
            case RecordOutcome(outcome=outcome, elapsed_s=elapsed_s):
                attributes["tenure.outcome"] = outcome.name.lower()
                if elapsed_s is not None:
                    self._execution.record(elapsed_s, attributes)
            case ExecutionLost(reason=reason):
                attributes["tenure.reason"] = reason.value
            case _:
                pass
        self._events.add(1, attributes)
