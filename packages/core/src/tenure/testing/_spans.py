"""Spans of time, as tests say them."""

import asyncio
import math

from tenure._durations import Duration, to_seconds
from tenure.errors import ConfigurationError
from tenure.testing.virtual_time import VirtualTimeLoop

__all__ = ["PATIENCE_S", "patience_s", "span_s"]

PATIENCE_S = 30.0
"""
How long a test waits for what must come at once, in real seconds. Generous: a loaded CI machine stalls for
seconds, and the limit only has to be shorter than the patience of whoever looks at a hung run.
"""


def span_s(value: Duration, *, name: str, or_for_ever: bool = False) -> float:
    """
    Turn what a test said into seconds; zero is allowed, and with *or_for_ever* infinity.

    Unlike a ttl, a number may be any fraction of a second: a third of a ttl is not a whole number of
    milliseconds, and a test clock can stand anywhere.

    Raises:
        ConfigurationError: It is no duration, negative, or not finite without leave.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        seconds = to_seconds(value, name=name)
    else:
        seconds = float(value)
    if or_for_ever and seconds == math.inf:
        return seconds
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigurationError(f"{name} is {value!r}: it must be a finite span of time, of zero or more.")
    return seconds


def patience_s() -> float | None:
    """Return `PATIENCE_S`, or None on a loop where time is virtual: that one raises by itself when stuck."""
    return None if isinstance(asyncio.get_running_loop(), VirtualTimeLoop) else PATIENCE_S
