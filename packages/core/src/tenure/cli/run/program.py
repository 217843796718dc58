"""The command of `tenure run`, as a process group of its own: started, told of signals, ended; and watched over."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, final

from tenure.cli.run.watchman import send
from tenure.clock import Clock, sleep_until, wait_until

__all__ = ["Program", "Watchman"]

_SIGNALLED: Final = 128
"""What a shell adds to the number of the signal that ended a program."""

_PAUSE_S: Final = 0.05
_KILLED_S: Final = 5.0
"""How long a program that was killed is waited for, in seconds. One of another user's could not be."""


@final
class Watchman:
    """
    The process of `watchman.py`: what it is told of ends with this process, or at the lease's deadline.

    Args:
        kill_after_s: How long after SIGTERM it sends SIGKILL, in seconds.
    """

    def __init__(self, kill_after_s: float) -> None:
        # Its own session: what a terminal sends to this process group does not reach it.
        self._process = subprocess.Popen(  # noqa: S603 -- this interpreter, and a file of ours
            _python("watchman.py", repr(kill_after_s)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None  # it was asked for
        self._words = self._process.stdin
        # One that was stopped reads nothing, and must not stop this process as well.
        os.set_blocking(self._words.fileno(), False)

    def tell(self, line: str) -> None:
        """Tell it something. Where it was killed, the command runs on as it would without one."""
        with contextlib.suppress(OSError):
            self._words.write(f"{line}\n".encode())

    def dismiss(self) -> None:
        """Send it home, for the command has ended."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it to end what it was told of, if it was not dismissed."""
        self._words.close()
        self._process.wait()


@final
class Program:
    """
    The command while it runs. Made by `start`.

    Attributes:
        begun: Whether it was begun at all.
    """

    def __init__(self, process: asyncio.subprocess.Process, clock: Clock, *, begun: bool) -> None:
        self._process = process
        self._clock = clock
        self.begun = begun

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        more: Mapping[str, str],
        watchman: Watchman,
        clock: Clock,
        *,
        may_begin: Callable[[], bool],
    ) -> Self:
        """
        Start *command* with *more* in its environment, once *watchman* knows of it.

        A command that is not there ends with 127, one that cannot be run with 126, each with a line on stderr.

        Prevents: on a busy machine the process takes longer to start than the lease is trusted, and the command begins
        under another one's lock. *may_begin* is asked last, and where it says no nothing is begun.
        """
        held, go = os.pipe()
        try:
            # A session of its own: the signals of the terminal come to this process alone, which passes them on.
            process = await asyncio.create_subprocess_exec(
                *_python("launch.py", str(held), *command),
                env={**os.environ, **more},
                pass_fds=(held,),
                start_new_session=True,
            )
            watchman.tell(f"group {process.pid}")
            begun = may_begin()
            if begun:
                os.write(go, b"1")
        finally:
            os.close(held)
            os.close(go)
        return cls(process, clock, begun=begun)

    @property
    def group(self) -> int:
        """The process group of the command and of what it starts."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the command to end. Returns its code, as a shell would have it."""
        code = await self._process.wait()
        return code if code >= 0 else _SIGNALLED - code

    def send(self, number: int) -> None:
        """Send a signal to the command and what it started."""
        send(self.group, number)

    async def end(self, ended: "asyncio.Task[int]", kill_after_s: float) -> int | None:
        """
        End the command and what it started: SIGTERM, and SIGKILL for what is left after *kill_after_s* seconds.

        Args:
            ended: The task of `wait`.
            kill_after_s: Seconds.

        Returns:
            The command's code, or None where it could not be ended.
        """
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # what is stopped would not hear of it
        until = self._clock.now() + kill_after_s
        await wait_until(self._clock, ended, when=until)
        while self._clock.now() < until and send(self.group, 0):
            await sleep_until(self._clock, min(until, self._clock.now() + _PAUSE_S))
        self.send(signal.SIGKILL)
        await wait_until(self._clock, ended, when=self._clock.now() + _KILLED_S)
        return ended.result() if ended.done() else None


def _python(file: str, *arguments: str) -> list[str]:
    """Make the command that runs one of our files: without site-packages, and whatever the environment says."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name(file)), *arguments]
