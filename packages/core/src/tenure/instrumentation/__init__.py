"""
Instrumentation: who hears of events.

A hook is a callable that takes one event of `tenure.events`. By default events go to the log:

    Locks(store, hooks=[LoggingHook(), PrometheusHook()])

No hook puts a key into a metric's label: keys are unbounded, and a label for each order would be a leak.
"""

from tenure.instrumentation._hooks import Hook, PassesOver, default_hooks, hears_of, tell
from tenure.instrumentation._logging import LoggingHook
from tenure.instrumentation._otel import OpenTelemetryHook
from tenure.instrumentation._prometheus import PrometheusHook
from tenure.instrumentation._structlog import StructlogHook

__all__ = [
    "Hook",
    "LoggingHook",
    "OpenTelemetryHook",
    "PassesOver",
    "PrometheusHook",
    "StructlogHook",
    "default_hooks",
    "hears_of",
    "tell",
]
