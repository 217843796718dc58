"""What every holder program is: one instance with its history, on a store by its URL, until SIGTERM."""

import argparse
import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tenure import Locks, open_store
from tenure.testing.history import HistoryRecorder


def say(what: str, **fields: Any) -> None:
    """Write a line for the scenario."""
    print(json.dumps({"what": what, "at": time.monotonic(), **fields}), flush=True)


def parser_of(program: str) -> argparse.ArgumentParser:
    """Make a parser of what every holder is told: its store, its name, its history and its ttl."""
    parser = argparse.ArgumentParser(prog=f"chaos.programs.{program}")
    parser.add_argument("--url", required=True)
    parser.add_argument("--process", required=True, help="its name in histories, and as an instance")
    parser.add_argument("--history", required=True, type=Path)
    parser.add_argument("--ttl", type=float, default=1.0, help="seconds")
    return parser


@final
@dataclass(frozen=True, slots=True)
class Instance:
    """
    An instance at work.

    Attributes:
        locks: Its locks.
        recorder: Its history.
    """

    locks: Locks
    recorder: HistoryRecorder

    async def work(self, *tasks: "asyncio.Task[None]") -> None:
        """Say that it is ready, let *tasks* run until SIGTERM, and end them."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        say("ready")
        await stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def instance(options: argparse.Namespace, **more: Any) -> AsyncIterator[Instance]:
    """Open the store and its `Locks`, with *more* of their arguments, and say so when both are closed."""
    recorder = HistoryRecorder(options.history, process=options.process)
    async with open_store(options.url) as opened:
        # The first call connects, and loads the driver: not what the limits on calls are about.
        await opened.release("nothing", "nobody")
        async with Locks(
            recorder.around(opened),
            ttl=options.ttl,
            instance=options.process,
            hooks=[recorder],
            drain=0.05,
            startup_check=False,
            **more,
        ) as locks:
            yield Instance(locks, recorder)
    say("closed")
