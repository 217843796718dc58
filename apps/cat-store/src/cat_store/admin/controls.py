"""What administrators told the jobs, in the shop's database: every replica reads it, and any may write it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import DateTime, String, func, literal, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Mapped, mapped_column

from cat_store.database.registry import Model

__all__ = ["NOTHING_TOLD", "Control", "JobControlRow", "JobControls"]

_ASKED_FOR: Final = timedelta(seconds=15)
"""
How long a step-down may wait for the holder to hear of it. Every replica looks once a second; a holder that is paused
for longer must not step down out of the blue when it wakes up, nor a later one in its place.
"""


class JobControlRow(Model):
    """
    What one job was told; a job without a row was told nothing.

    Attributes:
        job: Its name.
        paused_at: When it was paused; null where it is not.
        step_down_until: Until when its holder is asked to give the job's lease back; null where it is not, or has.
    """

    __tablename__ = "job_controls"

    job: Mapped[str] = mapped_column(String(100), primary_key=True)
    paused_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    step_down_until: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


@dataclass(frozen=True, slots=True)
class Control:
    """
    What one job was told.

    Attributes:
        paused_at: When it was paused; None where it is not.
        step_down_asked: Whether its holder is asked to give the job's lease back, and has not yet.
    """

    paused_at: datetime | None = None
    step_down_asked: bool = False

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.paused_at is not None


NOTHING_TOLD: Final = Control()


class JobControls:
    """
    The table. Each call is one statement; times are the database's.

    Args:
        engine: The shop's database.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine: Final = engine

    async def read(self) -> Mapping[str, Control]:
        """Read what every job was told, by its name."""
        asked = JobControlRow.step_down_until > func.clock_timestamp()
        rows = await self._all(select(JobControlRow.job, JobControlRow.paused_at, asked.label("asked")))
        return {row.job: Control(row.paused_at, bool(row.asked)) for row in rows}

    async def is_paused(self, job: str) -> bool:
        """Ask for one job, before a tick of it: no tick begins on any replica once `pause` has returned."""
        paused = select(JobControlRow.job).where(JobControlRow.job == job, JobControlRow.paused_at.is_not(None))
        return bool(await self._all(paused))

    async def pause(self, job: str) -> None:
        """Pause a job; one that is paused already stays so since then."""
        now = func.clock_timestamp()
        await self._tell(job, {"paused_at": now}, {"paused_at": func.coalesce(JobControlRow.paused_at, now)})

    async def resume(self, job: str) -> None:
        """Let a job go on."""
        await self._tell(job, {"paused_at": None})

    async def ask_to_step_down(self, job: str) -> None:
        """Ask whoever holds a job to give its lease back."""
        await self._tell(job, {"step_down_until": func.clock_timestamp() + literal(_ASKED_FOR)})

    async def claim_step_down(self, job: str) -> bool:
        """
        Take the request to step down, as the job's holder, before giving its lease back.

        Atomic: one caller gets it. Taken first and obeyed then: the other way round, the next holder would find it
        and step down too.
        """
        wanted = update(JobControlRow).where(
            JobControlRow.job == job, JobControlRow.step_down_until > func.clock_timestamp()
        )
        return bool(await self._all(wanted.values(step_down_until=None).returning(JobControlRow.job)))

    async def _tell(self, job: str, first: dict[str, Any], again: dict[str, Any] | None = None) -> None:
        row = insert(JobControlRow).values(job=job, **first)
        told = row.on_conflict_do_update(index_elements=[JobControlRow.job], set_=again or first)
        await self._all(told.returning(JobControlRow.job))

    async def _all(self, statement: Any) -> list[Any]:
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            return list((await connection.execute(statement)).all())
