"""
A process of the soak: `python -m chaos.soak.worker`. It does everything that the library is for, all the time.

SIGUSR1 ends a window: it gives back what it has, says `paged`, and goes on with the next window at the next SIGUSR1.
SIGTERM ends it in order. It says `sample` with its tasks and timers every few seconds.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import os
import random
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, final

from chaos.ledger import LedgerClient
from chaos.soak.pages import Pages
from chaos.soak.stalls import Stalls
from tenure import (
    LeaderElection,
    Lease,
    Locks,
    current_lease,
    on_one_instance,
    open_idempotency_store,
    open_store,
    without_overlapping,
)
from tenure.idempotency import Execution, Idempotency, Settled
from tenure.testing.history import HistoryRecorder

_BEAT_S = 0.05
_KEYS = 16
_QUIET_S = 10.0
"""How long store calls may take to end once nobody makes new ones; each has a limit of its own far below."""

_NEW_REQUESTS_PER_S = 4
_REPEATED_FOR = 8
"""Of how many requests one is drawn, so each is repeated by every process within two seconds."""


@final
class Work:
    """What a process does within one window."""

    def __init__(self, options: argparse.Namespace, recorder: HistoryRecorder, ledger: LedgerClient) -> None:
        self._options = options
        self._recorder = recorder
        self._ledger = ledger
        self._chance = random.Random(options.seed)

    async def campaign(self, locks: Locks, key: str) -> None:
        """Take *key* whenever it can be had, and keep it for some seconds."""
        while True:
            async with self._given_back(await locks.acquire(key, wait=3600)) as lease:
                await self._under(lease, self._chance.uniform(1, 8))

    async def churn(self, locks: Locks) -> None:
        """Take some key, work for a moment, give it back."""
        while True:
            key = f"key-{self._chance.randrange(_KEYS)}"
            async with self._given_back(await locks.acquire(key, wait=self._options.ttl)) as lease:
                await self._under(lease, self._chance.uniform(0, 0.2))

    @contextlib.asynccontextmanager
    async def _given_back(self, lease: Lease) -> AsyncIterator[Lease]:
        try:
            yield lease
        finally:
            with contextlib.suppress(Exception):
                await lease.release()

    async def tick(self, jobs: Locks) -> None:
        """Run a job on one instance at a time, ten times a second."""

        @on_one_instance("soak:job", locks=jobs)
        @without_overlapping()
        async def job() -> None:
            lease = current_lease()
            assert lease is not None
            await self._under(lease, _BEAT_S)

        while True:
            with contextlib.suppress(Exception):
                await job()
            await asyncio.sleep(2 * _BEAT_S)

    async def stand(self, locks: Locks) -> None:
        """Stand for an election, and step down now and then."""

        async def lead(lease: Lease) -> None:
            await self._under(lease, self._chance.uniform(2, 10))

        async with LeaderElection(locks, "soak:leader", lead):
            await asyncio.Event().wait()

    async def request(self, idempotency: Idempotency, window: int) -> None:
        """Answer requests that every process is sent at about the same time."""
        while True:
            await asyncio.sleep(self._chance.uniform(0, 0.2))
            newest = int(time.monotonic() * _NEW_REQUESTS_PER_S)
            record = f"request-{window}-{newest - self._chance.randrange(_REPEATED_FOR)}"
            begun = await idempotency.begin(record, "a request")
            if isinstance(begun, Execution):
                await self._execute(begun, record)
            else:
                self._answered(record, begun.payload, replayed=True)

    async def _execute(self, execution: Execution, record: str) -> None:
        try:
            await asyncio.sleep(self._chance.uniform(0, 0.1))
            self._recorder.note("effect", record=record, attempt=execution.context.attempt, committed=True)
            payload = json.dumps({"record": record, "receipt": secrets.token_hex(8)}).encode()
            if await execution.complete(payload) is Settled.STORED:
                self._answered(record, payload, replayed=False)
        finally:
            execution.abandon()  # does nothing where it was settled

    def _answered(self, record: str, payload: bytes, *, replayed: bool) -> None:
        body = hashlib.sha256(payload).hexdigest()[:16]
        self._recorder.note("answer", record=record, principal="alice", status=201, body=body, replayed=replayed)

    async def _under(self, lease: Lease, seconds: float) -> None:
        """Write under *lease* for so long, or until it is lost; then send the write that was on its way."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and lease.held:
            self._recorder.note("believes", key=lease.key, token=lease.token)
            await self._ledger.write(f"resource:{lease.key}", lease.key, lease.token)
            await asyncio.sleep(_BEAT_S)
        if not lease.held:
            await self._ledger.write(f"resource:{lease.key}", lease.key, lease.token)


async def _again(make: Callable[[], Awaitable[None]]) -> None:
    """Do it again whatever a fault made of it; the history holds what it was."""
    while True:
        with contextlib.suppress(Exception):
            await make()
        await asyncio.sleep(_BEAT_S)


async def _leak() -> None:
    """Lose memory, descriptors, tasks and timers: the control of what is measured."""
    lost: list[Any] = []
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(0.25)
        lost += [bytearray(1 << 18), os.open(os.devnull, os.O_RDONLY)]
        lost += [asyncio.create_task(asyncio.Event().wait()), loop.call_later(1e6, print)]


async def _samples(every_s: float) -> None:
    loop: Any = asyncio.get_running_loop()
    while True:
        timers = sum(not handle.cancelled() for handle in loop._scheduled)
        _say("sample", tasks=len(asyncio.all_tasks()), timers=timers)
        await asyncio.sleep(every_s)


def _say(what: str, **fields: Any) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), **fields}), flush=True)


async def main(options: argparse.Namespace) -> None:
    """Work until SIGTERM."""
    loop = asyncio.get_running_loop()
    turn, stop = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, turn.set)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    pages = Pages(options.histories, options.process)
    recorder = HistoryRecorder(pages, process=options.process)
    work = Work(options, recorder, LedgerClient(options.ledger))
    beside = [asyncio.create_task(_samples(options.sample))] + ([asyncio.create_task(_leak())] if options.leak else [])
    stalls = Stalls()
    window = options.window
    pages.open(window)
    named: dict[str, Any] = {"instance": options.process, "startup_check": False}
    leases = named | {"ttl": options.ttl, "hooks": [recorder], "drain": 0.5, "store_timeout": round(options.ttl / 3, 3)}
    async with (
        open_store(options.url) as opened,
        open_idempotency_store(options.url) as records,
        Idempotency(records, lock_ttl=2 * options.ttl, retention="60s", drain=0.5, hooks=[], **named) as idempotency,
    ):
        store = recorder.around(opened)
        async with Locks(store, **leases) as locks:
            _say("ready")
            while not stop.is_set():
                # A job's owner keeps its lease from tick to tick, and gives it back at the end of its `Locks`.
                async with Locks(store, **leases) as jobs:
                    doing = [
                        partial(work.campaign, locks, "soak:campaign"),
                        *[partial(work.churn, locks)] * 2,
                        partial(work.tick, jobs),
                        partial(work.stand, locks),
                        *[partial(work.request, idempotency, window)] * 2,
                    ]
                    await _until_either(turn, stop, [_again(make) for make in doing])
                if stop.is_set():
                    break
                turn.clear()
                quiet_by = time.monotonic() + _QUIET_S
                while pages.open_calls and time.monotonic() < quiet_by:
                    await asyncio.sleep(0.01)
                pages.close()
                _say("paged", window=window, open=pages.open_calls, strays=pages.strays, stalls=stalls.take())
                await _until_either(turn, stop, [])
                if stop.is_set():
                    break
                turn.clear()
                window += 1
                pages.open(window)
                _say("turned", window=window)
    for task in beside:
        task.cancel()
    _say("closed")


async def _until_either(one: asyncio.Event, other: asyncio.Event, work: list[Coroutine[Any, Any, None]]) -> None:
    """Do *work* until one of the events is set; returns when all of it has ended."""
    doing = [asyncio.create_task(each) for each in work]
    waits = [asyncio.create_task(each.wait()) for each in (one, other)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in (*waits, *doing):
        task.cancel()
    await asyncio.gather(*waits, *doing, return_exceptions=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos.soak.worker")
    parser.add_argument("--process", required=True)
    parser.add_argument("--histories", required=True, type=Path)
    parser.add_argument("--window", required=True, type=int, help="the window to begin in")
    parser.add_argument("--url", required=True, help="of both stores")
    parser.add_argument("--ledger", required=True, type=int, help="port of the ledger")
    parser.add_argument("--ttl", type=float, required=True, help="seconds")
    parser.add_argument("--sample", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--leak", action="store_true", help="lose something every moment: the control")
    return parser.parse_args()


if __name__ == "__main__":
    logging.getLogger("tenure").setLevel(logging.CRITICAL)
    asyncio.run(main(parse()))
