"""
A small process that ends the command of `tenure run` where tenure itself cannot.

A command must not outlive its lease. tenure sees to that while it runs; when it is killed, or stopped, nobody would. So
it starts this file as a program of its own, and tells it of the command's process group and of the lease's deadline, a
line each: `group 4711`, `until 1234.5`. The end of the input is tenure's own end. The deadline is on the clock of
`tenure.clock.SystemClock`, which all processes of a machine share. When the command has ended, tenure kills this one.

It runs without site-packages and imports nothing of tenure, so that it is up in a moment.
"""

import contextlib
import os
import select
import signal
import sys
import time

_LOOK_S = 1.0
"""The longest sleep between two looks at the clock, in seconds: a sleep does not count a suspend."""

_PAUSE_S = 0.05

_GRACE_S = 0.5
"""How long after the deadline tenure is left to end the command itself, in seconds: one SIGTERM is enough."""

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Read the clock that tenure reads."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def send(group: int, number: int) -> bool:
    """Send a signal to a process group; says whether there was one that could be reached."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end(group: int, kill_after_s: float) -> None:
    """End a process group: SIGTERM, and SIGKILL for what is left after *kill_after_s* seconds."""
    send(group, signal.SIGTERM)
    send(group, signal.SIGCONT)  # what is stopped would not hear of it
    until = now() + kill_after_s
    while now() < until and send(group, 0):
        time.sleep(_PAUSE_S)
    send(group, signal.SIGKILL)


class Duty:
    """What the watchman was told, and what follows from it."""

    def __init__(self, kill_after_s: float) -> None:
        self.kill_after_s = kill_after_s
        self.group = 0
        self.until = float("inf")

    def told(self, line: bytes) -> None:
        """Take note of a line."""
        word, _, value = line.partition(b" ")
        if word == b"group":
            self.group = int(value)
        elif word == b"until":
            self.until = float(value)

    def act(self, *, alone: bool) -> None:
        """End the command where tenure is gone, or its deadline has passed."""
        if self.group and (alone or now() >= self.until + _GRACE_S):
            group, self.group = self.group, 0
            end(group, self.kill_after_s)


def main() -> None:
    """Listen until the input ends."""
    # What stops a whole service is to reach the command through tenure.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    duty, rest = Duty(float(sys.argv[1])), b""
    while True:
        ready, _, _ = select.select([0], [], [], _LOOK_S)
        if ready:
            heard = os.read(0, 4096)
            if not heard:
                break
            *lines, rest = (rest + heard).split(b"\n")
            for line in lines:
                duty.told(line)
        duty.act(alone=False)
    duty.act(alone=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
