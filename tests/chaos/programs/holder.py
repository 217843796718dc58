"""
A process that holds leases: `python -m chaos.programs.holder`, started and ended by the scenarios.

It takes keys, believes in them for as long as the library says so, and writes to the ledger under their tokens. What
happens to it (kill -9, SIGSTOP, a network that swallows its calls) it does not know. It says what it does in lines of
JSON on standard output: `ready`, `granted`, `lost`, `stale` (what became of the write that was on its way when it lost
the lease), `closed`.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import time
from typing import final

from chaos.ledger import LedgerClient
from chaos.programs.instance import instance, parser_of, say
from tenure import Lease, LeaseLostError, Locks
from tenure.testing.history import HistoryRecorder

_AGAIN_S = 0.02


@final
class Holder:
    """
    Campaigns for keys and works under them.

    Args:
        locks: Where the keys are taken.
        recorder: The process's history.
        ledger: The resource, or None.
        options: The command line's.
    """

    def __init__(
        self, locks: Locks, recorder: HistoryRecorder, ledger: LedgerClient | None, options: argparse.Namespace
    ) -> None:
        self._locks = locks
        self._recorder = recorder
        self._ledger = ledger
        self._options = options
        self._chance = random.Random(options.seed)

    async def campaign(self, key: str) -> None:
        """Take *key* whenever it can be had, and keep it until it is lost."""
        while True:
            try:
                lease = await self._locks.acquire(key, wait=3600)
            except Exception:  # noqa: BLE001 -- whatever a driver raises under a fault; the history holds its type
                await asyncio.sleep(_AGAIN_S)
                continue
            await self._work(lease, until=None)

    async def churn(self) -> None:
        """Take some key, work for a moment, give it back, and again."""
        while True:
            key = f"key-{self._chance.randrange(self._options.keys)}"
            try:
                lease = await self._locks.acquire(key, wait=self._options.ttl)
            except Exception:  # noqa: BLE001 -- whatever a driver raises under a fault; the history holds its type
                await asyncio.sleep(_AGAIN_S)
                continue
            await self._work(lease, until=time.monotonic() + self._chance.uniform(0, 2 * self._options.hold))
            with contextlib.suppress(Exception):
                await lease.release()

    async def _work(self, lease: Lease, *, until: float | None) -> None:
        say("granted", key=lease.key, token=lease.token, after=lease.after)
        while until is None or time.monotonic() < until:
            if not lease.held:
                await self._after_a_loss(lease)
                return
            self._recorder.note("believes", key=lease.key, token=lease.token)
            await self._write(lease)
            with contextlib.suppress(LeaseLostError, TimeoutError):
                async with asyncio.timeout(self._options.beat):  # around an event of our own, no store call
                    await lease.lost.wait()

    async def _after_a_loss(self, lease: Lease) -> None:
        """Send the write that was on its way: what the library cannot stop, and a fence has to refuse."""
        say("lost", key=lease.key, token=lease.token, reason=lease.lost.reason and lease.lost.reason.name)
        say("stale", key=lease.key, token=lease.token, accepted=await self._write(lease))
        with contextlib.suppress(Exception):
            await lease.release()

    async def _write(self, lease: Lease) -> bool | None:
        if self._ledger is None:
            return None
        return await self._ledger.write(f"resource:{lease.key}", lease.key, lease.token)


async def main(options: argparse.Namespace) -> None:
    """Hold until SIGTERM."""
    ledger = LedgerClient(options.ledger) if options.ledger else None
    async with instance(options, store_timeout=options.store_timeout) as one:
        holder = Holder(one.locks, one.recorder, ledger, options)
        works = [holder.campaign(key) for key in options.key] + [holder.churn() for _ in range(options.churn)]
        await one.work(*(asyncio.create_task(work) for work in works))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of("holder")
    parser.add_argument("--store-timeout", type=float, default=None, help="seconds; by default the library's: the ttl")
    parser.add_argument("--key", action="append", default=[], help="a key to keep; may be given again")
    parser.add_argument("--churn", type=int, default=0, help="workers that take and give back")
    parser.add_argument("--keys", type=int, default=24, help="keys that they take")
    parser.add_argument("--hold", type=float, default=0.05, help="seconds that they hold, on average")
    parser.add_argument("--beat", type=float, default=0.02, help="seconds between two writes")
    parser.add_argument("--ledger", type=int, default=0, help="port of the ledger")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    logging.getLogger("tenure").setLevel(logging.ERROR)
    asyncio.run(main(parse()))
