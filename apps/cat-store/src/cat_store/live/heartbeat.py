"""The part of a replica that tells every live page of it: once a second, and once more when it leaves."""

import asyncio
import logging
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self, final

from sqlalchemy import Column, DateTime, Integer, Interval, bindparam, delete, func, insert, select, table
from sqlalchemy import update as update_rows
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from cat_store.database.engine import create_engine
from cat_store.live.log import LiveLog, Noted
from cat_store.live.models import LONGEST_ADDRESS, EventRow, ReplicaRow

__all__ = ["BEAT_EVERY_S", "KEPT_EVENTS", "SESSIONS", "Heartbeat"]

logger = logging.getLogger(__name__)

BEAT_EVERY_S: Final = 1.0
KEPT_EVENTS: Final = 400
"""The page shows a hundred; the rest is for a batch or two that come late."""

_BATCH: Final = 200
_PRUNE_EVERY: Final = 20
"""A prune every so many beats."""

_FORGET_AFTER: Final = timedelta(days=1)
_LEAVE_WITHIN_S: Final = 3.0
"""What a replica that leaves spends on telling so, where the database hangs, in seconds."""

_AWAY: Final = (SQLAlchemyError, OSError)

SESSIONS: Final = table("pg_stat_activity", Column("pid", Integer), Column("backend_start", DateTime(timezone=True)))
"""The server's list of sessions, in which a replica's own is looked for."""

_AGE: Final = bindparam("age", type_=Interval)


@final
class Heartbeat:
    """
    Writes down, while it is entered, that a replica is up, what it leads, and what happens on it.

    Entered before the locks and left after them, so that the last thing it tells is that they were handed back. It
    never fails a replica: a database that is away is tried again a beat later, and events wait for it.

    It keeps one connection of its own: the session of a replica that was killed ends at once, and that of a paused one
    goes on, which is how the page tells one from the other.

    Args:
        database_url: The shop's database.
        log: What to write.
        instance: The replica's name.
        address: Where browsers and other replicas reach it, such as `http://127.0.0.1:3001`.
        locks: Whether its jobs run under locks.
        every_s: The seconds between two beats.
    """

    def __init__(  # noqa: PLR0913 -- what a replica tells of itself, by name
        self,
        database_url: str,
        log: LiveLog,
        *,
        instance: str,
        address: str,
        locks: bool,
        every_s: float = BEAT_EVERY_S,
    ) -> None:
        if len(address) > LONGEST_ADDRESS:
            raise ValueError(f"The address of a replica has at most {LONGEST_ADDRESS} characters.")
        self._engine: Final = create_engine(database_url).execution_options(isolation_level="AUTOCOMMIT")
        self._log: Final = log
        self._instance: Final = instance
        self._address: Final = address
        self._locks: Final = locks
        self._every_s: Final = every_s
        self._began_at: Final = log.now
        self._stop: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._beats = 0
        self._told = False

    async def __aenter__(self) -> Self:
        logging.getLogger("cat_store").addHandler(self._log.handler)
        self._task = asyncio.create_task(self._run(), name="heartbeat")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        assert self._task is not None
        try:
            await asyncio.wait({self._task}, timeout=_LEAVE_WITHIN_S)
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=_LEAVE_WITHIN_S)
        finally:
            logging.getLogger("cat_store").removeHandler(self._log.handler)
            await self._engine.dispose()
        if self._task.done() and not self._task.cancelled():
            self._task.result()  # what was not foreseen is a mistake to be told

    async def _run(self) -> None:
        while True:
            try:
                async with self._engine.connect() as connection:
                    await self._beat_until_left(connection)
            except _AWAY as error:
                if not self._told:
                    logger.warning(
                        "The live page hears nothing of this replica: the database failed (%s)",
                        type(error).__name__,
                        extra={"event": "live.away", "error": type(error).__name__},
                    )
                self._told = True
            if self._stop.is_set():
                return
            await self._pause()

    async def _beat_until_left(self, connection: AsyncConnection) -> None:
        while True:
            last = self._stop.is_set()
            await self._write_events(connection)
            await self._beat(connection)
            self._told = False
            if last:
                await self._say_goodbye(connection)
                return
            if self._beats % _PRUNE_EVERY == 0:
                await _prune(connection)
            self._beats += 1
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._every_s):
                await self._stop.wait()
        except TimeoutError:
            return

    async def _beat(self, connection: AsyncConnection) -> None:
        now = func.clock_timestamp()
        session = select(SESSIONS.c.backend_start).where(SESSIONS.c.pid == func.pg_backend_pid()).scalar_subquery()
        told = {
            "address": self._address,
            "locks": self._locks,
            "leads": self._log.leads,
            "tokens": self._log.tokens,
            "backend_pid": func.pg_backend_pid(),
            "backend_start": session,
            "started_at": now - _AGE,
            "seen_at": now,
            "stopped_at": None,
        }
        statement = (
            upsert(ReplicaRow)
            .values(instance=self._instance, **told)
            .on_conflict_do_update(index_elements=[ReplicaRow.instance], set_=told)
        )
        await connection.execute(statement, {"age": timedelta(seconds=self._log.now - self._began_at)})

    async def _write_events(self, connection: AsyncConnection) -> None:
        zero: datetime | None = None
        while taken := self._log.take(_BATCH):
            try:
                # Once for all of them: a machine that stalls between two would put the later ones first.
                zero = zero or await self._zero(connection)
                await connection.execute(insert(EventRow), [self._row(noted, zero) for noted in taken])
            except BaseException:
                # Whether they were written is unknown where no answer came: better told twice than never.
                self._log.put_back(taken)
                raise

    async def _zero(self, connection: AsyncConnection) -> datetime:
        """When the log's clock read zero, on the server's."""
        now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
        return now - timedelta(seconds=self._log.now)

    def _row(self, noted: Noted, zero: datetime) -> dict[str, object]:
        return {
            "at": zero + timedelta(seconds=noted.at),
            "instance": self._instance,
            "level": noted.level,
            "kind": noted.kind,
            "message": noted.message,
            "times": noted.times,
        }

    async def _say_goodbye(self, connection: AsyncConnection) -> None:
        # Only where the row is still this process's: a successor of the same name may have begun to write it, and must
        # not be declared gone by the one that it replaces.
        own = select(SESSIONS.c.backend_start).where(SESSIONS.c.pid == func.pg_backend_pid()).scalar_subquery()
        await connection.execute(
            update_rows(ReplicaRow)
            .where(
                ReplicaRow.instance == self._instance,
                ReplicaRow.backend_pid == func.pg_backend_pid(),
                ReplicaRow.backend_start == own,
            )
            .values(stopped_at=func.clock_timestamp(), leads={})
        )


async def _prune(connection: AsyncConnection) -> None:
    """Keep the last few hundred events, and the replicas of the last day."""
    newest = select(func.max(EventRow.id)).scalar_subquery()
    # Rows that another replica is deleting are its to delete: waiting for them in another order would be a deadlock.
    old = select(EventRow.id).where(EventRow.id <= newest - KEPT_EVENTS).with_for_update(skip_locked=True)
    await connection.execute(delete(EventRow).where(EventRow.id.in_(old)))
    await connection.execute(delete(ReplicaRow).where(ReplicaRow.seen_at < func.clock_timestamp() - _FORGET_AFTER))
