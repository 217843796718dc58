"""
A process that carries out orders, and stops where it is told to: `python -m chaos.programs.idempotent_worker`.

It is a mould: it imports everything once, and forks a worker for each kill, for an interpreter's start takes longer
than all that is looked at. A worker runs `Idempotency.run` on the real store. At the mark of an order it says so and
sends itself a SIGSTOP, so that the SIGKILL of the scenario finds it exactly there.
"""

import argparse
import asyncio
import contextlib
import enum
import importlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any, final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure import open_idempotency_store
from tenure.idempotency import (
    Acquired,
    Completion,
    Idempotency,
    IdempotencyContext,
    IdempotencyStore,
    InFlightError,
    OutcomeUnknownError,
    RecordsEffects,
    ResponseNotStoredError,
)
from tenure.testing.history import HistoryRecorder

LIMIT = 1 << 20
"""The longest line between a worker and the desk, in bytes."""

PLANTED = os.environ.get("CHAOS_PLANTED", "")
"""A mistake to make on purpose, which the scenario has to see: "no assert" or "untold"."""

ORDERS = "CREATE TABLE orders (name text NOT NULL, attempt integer NOT NULL, receipt text NOT NULL)"


@final
class Mark(enum.StrEnum):
    """Where a worker dies."""

    BEFORE_THE_HANDLER = "before the handler"
    INSIDE_THE_TRANSACTION = "inside the transaction"
    AFTER_THE_COMMIT = "after the commit"
    DURING_COMPLETE = "during complete"
    """The completion was sent, and has not reached the server."""
    COMPLETE_UNHEARD = "complete unheard"
    """The server has completed, and the worker has not read that."""
    AFTER_COMPLETE = "after complete"


@final
class MarkedStore:
    """An idempotency store whose completions can be stopped at; everything else passes through."""

    def __init__(self, inner: Any, worker: "Worker") -> None:
        self._inner = inner
        self._worker = worker
        self.reach = inner.reach

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def acquire(self, *arguments: Any, **options: Any) -> Any:
        """Acquire, and say of a repeat that it is the first attempt, where that mistake is planted."""
        reply = await self._inner.acquire(*arguments, **options)
        return Acquired(1) if PLANTED == "untold" and isinstance(reply, Acquired) else reply

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """Complete, unless the order of this key ends here."""
        order = key.removeprefix("order:")
        if self._worker.marks.get(order) == Mark.DURING_COMPLETE:
            await self._worker.await_go(order)
        completed: Completion = await self._inner.complete(key, owner, response, retention_ms)
        await self._worker.reach(order, Mark.COMPLETE_UNHEARD)
        return completed


@final
class MarkedEffectsStore:
    """The same around a store that records effects: a class of its own, for `isinstance` asks the class."""

    def __init__(self, inner: Any, worker: "Worker") -> None:
        self._marked = MarkedStore(inner, worker)
        self._inner = inner
        self.reach = inner.reach
        self.acquire = self._marked.acquire
        self.complete = self._marked.complete

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def assert_owner(self, connection: Any, key: str, owner: str) -> None:
        """Prove the effect."""
        await self._inner.assert_owner(connection, key, owner)

    async def effect_committed(self, key: str, owner: str) -> bool:
        """Ask for the proof."""
        committed: bool = await self._inner.effect_committed(key, owner)
        return committed


@final
class Worker:
    """
    One forked worker: reads orders from the desk, carries them out, and answers.

    Attributes:
        marks: Where the orders that are under way end, if they do.
    """

    def __init__(self, name: str, options: argparse.Namespace, recorder: HistoryRecorder) -> None:
        self._name = name
        self._options = options
        self._recorder = recorder
        self._engine: AsyncEngine | None = None
        self._idempotency: Idempotency | None = None
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter
        self.marks: dict[str, str] = {}

    async def run(self, url: str) -> None:
        """Work until the desk closes the connection."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._options.desk, limit=LIMIT)
        if self._options.effects:
            self._engine = create_async_engine(self._options.effects)
        async with open_idempotency_store(url) as opened:
            marked = MarkedEffectsStore if isinstance(opened, RecordsEffects) else MarkedStore
            store: IdempotencyStore = marked(opened, self)
            async with Idempotency(
                store,
                lock_ttl=self._options.lock_ttl,
                store_timeout=self._options.lock_ttl,
                drain=0.05,
                instance=self._name,
                startup_check=False,
                hooks=[],
            ) as self._idempotency:
                self._say(hello=self._name, pid=os.getpid())
                while line := await reader.readline():
                    self._hear(json.loads(line))

    def _hear(self, told: dict[str, Any]) -> None:
        if "go" in told:
            waiting = self._waiting.pop(told["go"], None)
            if waiting is not None and not waiting.done():  # a call that took too long was given up
                waiting.set_result(None)
            return
        task = asyncio.create_task(self._serve(told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, **fields: Any) -> None:
        self._writer.write(json.dumps(fields).encode() + b"\n")

    async def _ask(self, name: str, **fields: Any) -> None:
        """Say it, and wait for a `go` of that name."""
        self._waiting[name] = asyncio.get_running_loop().create_future()
        self._say(**fields)
        await self._waiting[name]

    async def await_go(self, order: str) -> None:
        """Stand at the mark until the network is as the scenario wants it."""
        await self._ask(order, mark=self.marks[order], order=order)

    async def reach(self, order: str, mark: Mark) -> None:
        """Stop the whole process if this is the mark at which *order* ends."""
        if self.marks.get(order) != mark:
            return
        self._say(mark=mark, order=order)
        await self._writer.drain()
        os.kill(os.getpid(), signal.SIGSTOP)

    async def _serve(self, told: dict[str, Any]) -> None:
        order: str = told["order"]
        if told.get("mark"):
            self.marks[order] = told["mark"]
        status, body, executed = 200, b"", False

        async def handler(context: IdempotencyContext) -> str:
            nonlocal executed
            executed = True
            return await self._carry_out(order, context)

        try:
            if told["guarded"]:
                assert self._idempotency is not None
                body = (await self._idempotency.run(f"order:{order}", "an order", handler)).encode()
            else:
                executed = True
                body = (await self._carry_out(order, None)).encode()
            await self.reach(order, Mark.AFTER_COMPLETE)
        except InFlightError:
            status, body = 409, b"in-flight"
        except (ResponseNotStoredError, OutcomeUnknownError) as error:
            status, body = 409, type(error).__name__.encode()
        except Exception as error:  # noqa: BLE001 -- what a server would turn into a 503
            status, body = 503, type(error).__name__.encode()
        self._say(answer=told["request"], status=status, body=body.decode(), replayed=status == 200 and not executed)

    async def _carry_out(self, order: str, context: IdempotencyContext | None) -> str:
        attempt, receipt = context.attempt if context else 1, secrets.token_hex(8)
        await self.reach(order, Mark.BEFORE_THE_HANDLER)
        async with self._transaction() as connection:
            if connection is None:
                await self.reach(order, Mark.INSIDE_THE_TRANSACTION)
                await self._ask(receipt, effect=order, attempt=attempt, go=receipt)
            else:
                if context is not None and PLANTED != "no assert":
                    await context.assert_owner(connection)
                insert = text("INSERT INTO orders VALUES (:name, :attempt, :receipt)")
                await connection.execute(insert, {"name": order, "attempt": attempt, "receipt": receipt})
                await self.reach(order, Mark.INSIDE_THE_TRANSACTION)
        if context is not None and self._engine is not None:
            self._recorder.note("effect", record=order, attempt=attempt, committed=True)
        await self.reach(order, Mark.AFTER_THE_COMMIT)
        return json.dumps({"order": order, "receipt": receipt, "attempt": attempt})

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        """The transaction of an effect in the database; None where effects go to the desk, as to a provider."""
        if self._engine is None:
            yield None
        else:
            async with self._engine.begin() as connection:
                yield connection


def learn_modules(options: argparse.Namespace) -> None:
    """
    Import what a worker will have imported once it is at work, so that none has to after its fork.

    A client may start threads, and a process with threads is not to be forked: so a child opens the store, carries an
    order out, and tells the names.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        try:
            asyncio.run(_order_once(options))
            os.write(writing, "\n".join(list(sys.modules)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        for name in told.read().split():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


async def _order_once(options: argparse.Namespace) -> None:
    async def handler() -> str:
        return ""

    async with (
        open_idempotency_store(options.url) as store,
        Idempotency(store, startup_check=False, hooks=[], drain=0.05) as idempotency,
    ):
        await idempotency.run("order:of the mould", "an order", handler)
    if options.effects:
        engine = create_async_engine(options.effects)
        async with engine.begin() as connection:
            await connection.execute(text("SELECT 1"))
        await engine.dispose()


def serve_forks(options: argparse.Namespace) -> None:
    """Fork a worker for each line of the desk's."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker
    learn_modules(options)
    with socket.create_connection(("127.0.0.1", options.desk)) as desk:
        desk.sendall(json.dumps({"hello": options.process, "pid": os.getpid()}).encode() + b"\n")
        print('{"what": "ready"}', flush=True)
        for line in desk.makefile():
            told = json.loads(line)
            if os.fork() == 0:
                desk.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                recorder = HistoryRecorder(options.history, process=told["fork"])
                try:
                    asyncio.run(Worker(told["fork"], options, recorder).run(told["url"]))
                finally:
                    os._exit(0)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos.programs.idempotent_worker")
    parser.add_argument("--process", required=True)
    parser.add_argument("--history", required=True)
    parser.add_argument("--desk", required=True, type=int, help="port of the scenario's desk")
    parser.add_argument("--url", required=True, help="of the store; a worker is told its own way to it")
    parser.add_argument("--effects", default="", help="URL of the database of the orders; else the desk has them")
    parser.add_argument("--lock-ttl", type=float, default=1.0, help="seconds")
    return parser.parse_args()


if __name__ == "__main__":
    logging.getLogger("tenure").setLevel(logging.CRITICAL)
    serve_forks(parse())
