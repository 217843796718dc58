"""
Durations: what a caller may say, and the whole milliseconds that a store is told.

A duration is refused, never rounded: `0.0004` seconds is not "about nothing", it is a mistake that
would become a lock without a lifetime.
"""

import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING

from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from fractions import Fraction

Duration = int | float | timedelta | str
"""Seconds as a number, a `timedelta`, or a string such as `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"7d"`."""

MAX_MS = 100 * 366 * 24 * 3600 * 1000
"""A hundred years. Longer is a mistake in units, and a timestamp that far away leaves PostgreSQL's range."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"(\d{1,15}(?:\.\d{1,40})?)(ms|s|m|h|d)", re.ASCII)
"""Digits enough for a hundred years in milliseconds; a number of a megabyte is not read at all."""

_SHOWN = 40
"""Characters of a value that an error shows."""
_FIX = 'Give seconds as a number, a timedelta, or a string such as "30s" or "5m".'


def to_ms(value: Duration, *, name: str = "duration", at_least_ms: int = 1) -> int:
    """
    Turn what a caller said into whole milliseconds.

    Args:
        value: Seconds (`int` or `float`), a `timedelta`, or a string with one unit.
        name: What the value is, for the error: `"ttl"`, `"wait"`.
        at_least_ms: The smallest value allowed, in milliseconds.

    Returns:
        Whole milliseconds, `at_least_ms` to a hundred years.

    Raises:
        ConfigurationError: The value is a bool, not a number, not finite, negative, too small, too
            large, or not a whole number of milliseconds.
    """
    milliseconds = _exact_ms(value, name)
    if milliseconds.denominator != 1:
        raise ConfigurationError(f"{name} is {_shown(value)}: it must be a whole number of milliseconds. {_FIX}")
    if milliseconds < at_least_ms:
        raise ConfigurationError(f"{name} is {_shown(value)}: it must be at least {at_least_ms} ms. {_FIX}")
    if milliseconds > MAX_MS:
        raise ConfigurationError(f"{name} is {_shown(value)}: it must be at most a hundred years. {_FIX}")
    return milliseconds.numerator


def to_seconds(value: Duration, *, name: str) -> float:
    """
    Turn a span that this process waits into seconds; zero and infinity are allowed.

    Raises:
        ConfigurationError: As `to_ms`, for anything but infinity.
    """
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return to_ms(value, name=name, at_least_ms=0) / 1000


def check_ttl_ms(ttl_ms: int, name: str = "ttl_ms") -> int:
    """
    Refuse a ttl that no store may be asked for. Stores call it first, before anything is sent.

    Args:
        ttl_ms: Whole milliseconds, 1 to a hundred years; it may exceed 32 bits.
        name: What it is called, for the error.

    Raises:
        ConfigurationError: It is not an `int` (a bool is none) or out of range.
    """
    if type(ttl_ms) is not int:
        kind = type(ttl_ms).__name__
        raise ConfigurationError(f"{name} is a {kind}: a store is told whole milliseconds as an int.")
    if not 1 <= ttl_ms <= MAX_MS:
        raise ConfigurationError(f"{name} is {_shown(ttl_ms)}: it must be from 1 to {MAX_MS} (a hundred years).")
    return ttl_ms


def _exact_ms(value: Duration, name: str) -> "int | Fraction":
    if type(value) is int:
        return value * 1000
    # It brings decimal with it, which is more than all of this module: what most programs say needs neither.
    from fractions import Fraction

    if isinstance(value, timedelta):
        microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        return Fraction(microseconds, 1000)
    if isinstance(value, str):
        match = _TEXT.fullmatch(value.strip())
        if match is None:
            raise ConfigurationError(f"{name} is {_shown(value)}: it is no duration. {_FIX}")
        return Fraction(match[1]) * _UNITS_MS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type(value).__name__
        raise ConfigurationError(f"{name} is of type {kind}: it is no duration. {_FIX}")
    if isinstance(value, int):
        return Fraction(int(value)) * 1000
    if not math.isfinite(value):
        raise ConfigurationError(f"{name} is {_shown(value)}: it must be finite. {_FIX}")
    # float's repr is the shortest decimal that reads back as the same float, which is what the caller typed: 0.1 is
    # 100 ms, although the float itself lies beside it. A subclass may print itself in another way.
    return Fraction(float.__repr__(value)) * 1000


def _shown(value: Duration) -> str:
    """Show *value* in an error, within bounds: Python itself refuses to print an int of thousands of digits."""
    if isinstance(value, int) and abs(value) > 10**_SHOWN:
        return f"a number of {value.bit_length()} bits"
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return f"{text}…" if isinstance(value, str) and len(value) > _SHOWN else text
