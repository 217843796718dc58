"""
The thread that the event loop of all synchronous `Locks` runs in: one for each process, started at the first use.

It is a daemon, so it never keeps a process from ending. It lives until the process ends: a thread that came and went
with each `Locks` could go while another thread hands it something to do.
"""

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, final

from tenure._keeper.calls import Calls
from tenure._kept import this_process
from tenure.clock import SystemClock
from tenure.errors import ConfigurationError, LeaseStateError

__all__ = ["LoopThread", "at_exit", "loop_thread", "refuse_running_loop"]

_STOPS_S: Final = 1.0
"""How long the end of the process waits for the thread, in seconds; it has nothing to do any more by then."""

_GREEN: Final = {
    "gevent.monkey": ("is_module_patched", "threading"),
    "eventlet.patcher": ("is_monkey_patched", "thread"),
}
"""Who replaces threads by something that needs a loop of its own to run, and how to ask whether it did."""


@final
class LoopThread:
    """A daemon thread with an event loop."""

    def __init__(self) -> None:
        _refuse_green_threads()
        self.pid = this_process()
        self.calls = Calls(SystemClock())
        """Keeps the tasks of the loop thread."""
        self.closes: dict[Callable[[], None], None] = {}
        """What is to be done with what is open, in this order, before the process ends."""
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure", daemon=True)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        # No asyncio.Runner: as the process ends it would start a thread to wait for those of to_thread(), and none can
        # be started then (Python 3.12). Closing the loop lets go of them.
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._started.set()
        await self._stopped.wait()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """
        Call *callback* in the loop thread, soon; it sees the context variables of the caller.

        Raises:
            LeaseStateError: The process ends, and the loop is closed.
        """
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError as error:
            raise LeaseStateError("This process ends: its leases were given back, and nothing is taken now.") from error

    def stop(self) -> None:
        """End the thread, and wait a moment for its end."""
        self.post(self._stopped.set)
        self._thread.join(_STOPS_S)


def _refuse_green_threads() -> None:
    """Refuse to start where a thread would be none: its loop would run only when everything else happens to wait."""
    for module, (asks, threads) in _GREEN.items():
        patcher = sys.modules.get(module)
        if patcher is not None and getattr(patcher, asks)(threads):
            library = module.partition(".")[0]
            raise ConfigurationError(
                f"{library} has replaced the threads of this process: renewals need a real one, which runs while other "
                f"code does not wait. Use workers that are threads or processes, or patch with {library} without its "
                "threads (thread=False)."
            )


def refuse_running_loop() -> None:
    """
    Refuse to wait in a thread whose event loop would stand still for as long.

    Raises:
        LeaseStateError: An event loop runs in the calling thread.
    """
    running = asyncio._get_running_loop()  # noqa: SLF001 -- get_running_loop() raises where there is none: 20 times the cost
    if running is None:
        return
    if _running is not None and running is _running.loop:
        raise LeaseStateError(
            "A hook called its Locks: hooks run in the thread that renews the leases, which must not wait for itself. "
            "Hand the event to a thread of your own (queue.SimpleQueue), and act there."
        )
    raise LeaseStateError(
        "tenure.sync was called in a thread whose event loop is running: the loop would stand still meanwhile. Use "
        "tenure.Locks there, or call this in a thread (asyncio.to_thread)."
    )


_starting = threading.Lock()
_running: LoopThread | None = None

_inherited: list[LoopThread] = []
"""Loops of the parent, in a child. Closed or collected there, they would unregister what the parent's selector has."""


def loop_thread() -> LoopThread:
    """
    Return this process's loop thread, started at the first call.

    Raises:
        ConfigurationError: gevent or eventlet has replaced threads.
    """
    global _running  # noqa: PLW0603 -- there is one a process
    with _starting:
        if _running is None:
            _running = LoopThread()
        return _running


def _forget_parent() -> None:
    global _running, _starting  # noqa: PLW0603 -- another thread of the parent may have had the lock
    _starting = threading.Lock()
    if _running is not None:
        _inherited.append(_running)
        _running = None


if hasattr(os, "register_at_fork"):  # pragma: no branch -- where there is none, nothing forks
    os.register_at_fork(after_in_child=_forget_parent)


@atexit.register
def at_exit() -> None:
    """Close what is open, each within its bound, and end the thread; called when the process ends."""
    thread = _running
    if thread is None:
        return
    for close in list(thread.closes):
        close()
    thread.stop()
