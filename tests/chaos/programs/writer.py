"""
A process that works under one key and writes everywhere at each beat: `python -m chaos.programs.writer`.

It is stopped in the middle (SIGSTOP by the scenario, or its own event loop blocked by SIGUSR1), and says what it finds
afterwards, in lines of JSON: `unblocked` (what the next line of the code that blocked the loop reads), `body` (how a
body of `hold()` ended), `lost`, and `stale`: what became of the writes that were on their way.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import time
from typing import Any, final

from sqlalchemy import Update, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from chaos.ledger import LedgerClient
from chaos.programs.instance import instance, parser_of, say
from chaos.programs.stock import STOCK, UNFENCED_STATEMENT
from tenure import Lease, LeaseLostError, Locks
from tenure.testing.history import HistoryRecorder
from tenure_postgres import fence

_BODY_BEAT_S = 0.005
_BODY_WAIT_S = 10


@final
class Table:
    """Two tables of an application: one written with `fence()`, and one without, as the control."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def fenced(self, lease: Lease) -> Update:
        """Build a fenced write; raises where the lease is lost."""
        return fence(STOCK.c.token, lease).guard(update(STOCK).values(level=STOCK.c.level + 1))

    async def write(self, prepared: Update) -> int:
        """Carry a fenced write out; how many rows it changed."""
        async with self._engine.connect() as connection:
            rows: int = (await connection.execute(prepared)).rowcount
            return rows

    async def write_unfenced(self, token: int) -> bool:
        """Write without a fence; whether it wrote over what a greater token had written."""
        async with self._engine.connect() as connection:
            before = (await connection.execute(text(UNFENCED_STATEMENT), {"token": token})).scalar_one()
            return bool(before > token)


@final
class Writer:
    """
    Campaigns for the key, and writes under it.

    Args:
        locks: Where the key is taken.
        recorder: The process's history.
        table: The application's tables, where the store is PostgreSQL.
        options: The command line's.
    """

    def __init__(
        self, locks: Locks, recorder: HistoryRecorder, table: Table | None, options: argparse.Namespace
    ) -> None:
        self._locks = locks
        self._recorder = recorder
        self._table = table
        self._options = options
        self._ledger = LedgerClient(options.ledger)
        self._unfenced = LedgerClient(options.unfenced)
        self._lease: Lease | None = None
        self._body: Lease | None = None
        self._flag = False
        """What a naive program goes by: set with the grant, and taken back by whoever hears of the loss."""
        self._blocked = False
        self._in_its_turn = False
        self._lines_in_turn = 0
        self._lines_late = 0

    async def campaign(self) -> None:
        """Take the key whenever it can be had, and keep it until it is lost."""
        while True:
            try:
                lease = await self._locks.acquire(self._options.key, wait=3600)
            except Exception:  # noqa: BLE001 -- whatever a driver raises after a stop; the history holds its type
                await asyncio.sleep(0.02)
                continue
            self._lease, self._flag = lease, True
            watcher = asyncio.create_task(self._lower_flag(lease))
            try:
                await self._work(lease)
            finally:
                watcher.cancel()

    async def _lower_flag(self, lease: Lease) -> None:
        await lease.lost.wait()
        self._flag = False

    async def _work(self, lease: Lease) -> None:
        say("granted", key=lease.key, token=lease.token)
        prepared = self._table and self._table.fenced(lease)
        while True:
            # Read before the question: a stop between the two belongs to the time before the stop.
            asked_at = self._recorder.now()
            if not lease.held:
                break
            self._recorder.note("believes", at=asked_at, key=lease.key, token=lease.token)
            await self._ledger.write("ledger", lease.key, lease.token)
            await self._unfenced.write("ledger", lease.key, lease.token)
            if self._table is not None and lease.held:
                with contextlib.suppress(LeaseLostError):
                    prepared = self._table.fenced(lease)
                    await self._table.write(prepared)
                    await self._table.write_unfenced(lease.token)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.beat):  # around an event of our own, no store call
                    await lease.lost.wait()
        say("lost", key=lease.key, token=lease.token, reason=lease.lost.reason and lease.lost.reason.name)
        await self._send_what_was_on_its_way(lease, prepared)
        with contextlib.suppress(Exception):
            await lease.release()

    async def _send_what_was_on_its_way(self, lease: Lease, prepared: Update | None) -> None:
        """Send the writes that were made before the loss: the library cannot stop them, and a fence has to."""
        ledger = await self._ledger.write("ledger", lease.key, lease.token)
        await self._unfenced.write("ledger", lease.key, lease.token)
        found: dict[str, Any] = {}
        if self._table is not None and prepared is not None:
            found["rows"] = await self._table.write(prepared)
            found["unfenced"] = await self._table.write_unfenced(lease.token)
            try:
                self._table.fenced(lease)
                found["built"] = True
            except LeaseLostError:
                found["built"] = False
        say("stale", key=lease.key, token=lease.token, ledger=ledger, **found)

    # ---------------------------------------------------------------------------- a blocked event loop

    async def bodies(self) -> None:
        """Run a body of `hold()` on a key of this process alone: one that never asks, and has to be stopped."""
        while True:
            try:
                async with self._locks.hold(f"body:{self._options.process}", wait=_BODY_WAIT_S) as lease:
                    self._body = lease
                    while True:
                        await asyncio.sleep(_BODY_BEAT_S)
                        self._run_a_line(lease)
            except LeaseLostError as error:
                say("body", reason=error.reason.name, late=self._lines_late, in_turn=self._lines_in_turn)
                self._blocked, self._lines_late, self._lines_in_turn = False, 0, 0
            except Exception:  # noqa: BLE001 -- as in `campaign`
                await asyncio.sleep(0.02)

    def _run_a_line(self, lease: Lease) -> None:
        """Do the body's work, which goes by the cancellation alone: count it where the lease was over."""
        if self._blocked and not lease.held:
            self._lines_in_turn += self._in_its_turn
            self._lines_late += not self._in_its_turn

    def block(self) -> None:
        """Block the event loop, as a library that is not asynchronous does, and look at the lease on the next line."""
        lease, body = self._lease, self._body
        if lease is None or body is None or not (lease.held and body.held):
            say("unblocked", token=0)  # nothing to lose just now
            return
        self._blocked = self._in_its_turn = True
        # What was ready to run beside this runs in the same turn of the loop, before anything can be cancelled.
        asyncio.get_running_loop().call_soon(self._next_turn)
        # Who judges the history has to know that no signal can come while nothing runs.
        self._recorder.note("paused", by=self._options.process)
        time.sleep(self._options.block)
        self._recorder.note("resumed", by=self._options.process)
        naive = self._flag
        asked_at = self._recorder.now()
        held = lease.held
        reason = lease.lost.reason
        if held:
            self._recorder.note("believes", at=asked_at, key=lease.key, token=lease.token)
        say("unblocked", token=lease.token, held=held, naive=naive, reason=reason and reason.name)

    def _next_turn(self) -> None:
        self._in_its_turn = False


async def block_in_a_task(writer: Writer) -> None:
    """Block from inside a task, where user code runs."""
    writer.block()


async def main(options: argparse.Namespace) -> None:
    """Work until SIGTERM."""
    async with contextlib.AsyncExitStack() as stack:
        table = None
        if options.table:
            engine = create_async_engine(options.table, isolation_level="AUTOCOMMIT", pool_size=2)
            stack.push_async_callback(engine.dispose)
            table = Table(engine)
        one = await stack.enter_async_context(instance(options))
        writer = Writer(one.locks, one.recorder, table, options)
        blocking: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGUSR1, lambda: blocking.append(asyncio.create_task(block_in_a_task(writer)))
        )
        await one.work(asyncio.create_task(writer.campaign()), asyncio.create_task(writer.bodies()))
        await asyncio.gather(*blocking, return_exceptions=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of("writer")
    parser.add_argument("--key", default="job")
    parser.add_argument("--beat", type=float, default=0.02, help="seconds between two writes")
    parser.add_argument("--block", type=float, default=0.0, help="seconds that SIGUSR1 blocks the event loop for")
    parser.add_argument("--ledger", type=int, required=True, help="port of the ledger that fences")
    parser.add_argument("--unfenced", type=int, required=True, help="port of the one that does not")
    parser.add_argument("--table", default="", help="URL of a PostgreSQL with the two tables, to be written too")
    return parser.parse_args()


if __name__ == "__main__":
    logging.getLogger("tenure").setLevel(logging.ERROR)
    asyncio.run(main(parse()))
