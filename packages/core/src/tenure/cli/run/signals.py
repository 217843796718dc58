"""What this process is sent while it runs a command: passed on, or the end of a wait."""

import asyncio
import os
import signal
from typing import Final, Self, final

from tenure.cli.run.program import Program
from tenure.lease import Lease

__all__ = ["Relay"]

_PASSED_ON: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


@final
class Relay:
    """
    Passes signals on to the command; before there is one, they end the wait for the lock.

    Args:
        waiting: The task that waits for the lock.
    """

    def __init__(self, waiting: "asyncio.Task[object]") -> None:
        self._waiting = waiting
        self._starting = False
        self._over = False
        self._early: list[int] = []
        self._program: Program | None = None
        self._lease: Lease | None = None
        self.ended_by: int | None = None
        """The signal that ended the wait."""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _PASSED_ON:
            loop.add_signal_handler(number, self._hear, number)
        loop.add_signal_handler(signal.SIGTSTP, self._pause)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (*_PASSED_ON, signal.SIGTSTP):
            loop.remove_signal_handler(number)

    def starts(self) -> None:
        """Keep what comes from now on for the command that is being started."""
        self._starting = True

    def started(self, program: Program, lease: Lease) -> None:
        """Pass signals on to *program* from now on, which runs under *lease*."""
        self._program, self._lease = program, lease
        for number in self._early:
            program.send(number)

    def over(self) -> None:
        """Pass nothing on any more: the command has ended, and its lock is given back in a moment."""
        self._program, self._over = None, True

    def _hear(self, number: int) -> None:
        if self._over:
            return
        if self._program is not None:
            self._program.send(number)
        elif self._starting:
            self._early.append(number)
        elif self.ended_by is None:
            self.ended_by = number
            self._waiting.cancel()

    def _pause(self) -> None:
        """Stop, as Ctrl-Z asks, and the command first: it must not run while nobody renews its lease."""
        if self._program is not None:
            self._program.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        # Here it goes on again. A command whose lease is lost meanwhile stays stopped until it is ended.
        if self._program is not None and self._lease is not None and self._lease.held:
            self._program.send(signal.SIGCONT)
