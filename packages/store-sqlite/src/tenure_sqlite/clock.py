"""
The clock of the processes of one host: what a lock's expiry is read on, and what tokens are drawn from.

Expiry is read on `CLOCK_BOOTTIME`, which all processes and containers of a Linux kernel share, runs through a suspend
and is never set. It begins anew at each boot, so the file names the boot that its expiries belong to. A lock of an
earlier boot is over: its holder ended with it.

Two kernels that use one file at the same time would each read the other's expiries on a clock of their own. Neither
goes unnoticed: a file has one clock at a time, and `FileClock` refuses to read another.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

__all__ = ["FileClock", "HostClock", "host_clock"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")


@final
@dataclass(frozen=True, slots=True)
class HostClock:
    """
    The host's clocks, in microseconds.

    Attributes:
        identity: Tells this clock from every other, and from itself after a reboot.
        now_us: What expiry is read on.
        wall_us: What tokens are drawn from: microseconds since 1970.
        can_be_set: Whether somebody may set `now_us`, as a wall clock is.
    """

    identity: str
    now_us: Callable[[], int]
    wall_us: Callable[[], int]
    can_be_set: bool = False


@final
class FileClock:
    """
    A host's clock as a file's statements read it: only where the file says that it is this one.

    Attributes:
        refused: Whether a statement asked for another clock. It got null, for which every comparison is false.
    """

    def __init__(self, clock: HostClock) -> None:
        self._clock = clock
        self.refused = False

    def now(self, identity: str) -> int | None:
        """Read the clock for a file whose expiries are on *identity*; `tenure_now()` in SQL."""
        if identity != self._clock.identity:
            self.refused = True
            return None
        return self._clock.now_us()


def host_clock() -> HostClock:
    """
    Return this host's clock: `CLOCK_BOOTTIME` on Linux, the wall clock elsewhere.

    Elsewhere Python has no clock that all processes share, runs through a suspend, and comes with a name for the boot.
    """
    identity = _boot_identity()
    if identity is None:
        return HostClock("wall", _wall_us, _wall_us, can_be_set=True)
    return HostClock(identity, _boot_us, _wall_us)


def _boot_identity() -> str | None:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None
    # A container may have a time namespace of its own, with another zero: then its clock is another one.
    try:
        namespace = f"{os.stat(_TIME_NAMESPACE).st_ino}"  # noqa: PTH116 -- beside read_text, one more error type
    except OSError:
        namespace = "0"
    return f"boot:{boot}:{namespace}"


def _boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _wall_us() -> int:
    return time.time_ns() // 1000
