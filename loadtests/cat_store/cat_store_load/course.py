"""
What happens when: the shop is started, the control, calm blocks in pairs, the storm with its troubles, the books.

    control   everybody, without keys: repeats place orders twice, or the load proves nothing
    calm      the same load without keys and with them, in turn, the order of a pair changing from one to the next
    storm     everybody, with keys, while replicas are killed and paused
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cat_store.admin.token import ADMIN_TOKEN
from cat_store.demo.options import DemoOptions
from cat_store.demo.stage import Stage, open_stage
from cat_store.settings import PREFIX
from cat_store_load.answers import Answer, AnswerBook, read_answers
from cat_store_load.books import audit, duplicates_without_keys
from cat_store_load.crowd import CALM, EVERYBODY, load
from cat_store_load.figures import BlockFigures, cpu_seconds, figures_of
from cat_store_load.ledger import announced_by, booked_by, orders_in
from cat_store_load.outcome import Outcome, Trouble, Wanted
from cat_store_load.plan import Plan
from cat_store_load.settling import Settling
from cat_store_load.troubles import make_trouble

__all__ = ["run"]

_TICK_S: Final = 5
"""How often the schedule exports and counts, in seconds: often enough to be met by the exports by hand."""


class _Course:
    """One run on a stage that stands."""

    def __init__(self, stage: Stage, wanted: Wanted, directory: Path, say: Callable[[BlockFigures], None]) -> None:
        self._stage: Final = stage
        self._wanted: Final = wanted
        self._directory: Final = directory
        self._say: Final = say
        self._admin_headers: Final = {ADMIN_TOKEN: stage.admin_token}
        self._files: Final[list[Path]] = []

    def answers(self) -> list[Answer]:
        """Read everything that was heard until now."""
        return list(read_answers(self._files))

    async def block(
        self, name: str, *, keys: bool, seconds: int, classes: tuple[str, ...], troubled: bool = False
    ) -> tuple[BlockFigures, list[Trouble]]:
        """Let users come for a block, and say what its figures are."""
        file = self._file(name)
        plan = Plan(
            block=name,
            urls=self._stage.urls(),
            admin_headers=self._admin_headers,
            keys=keys,
            storm=self._wanted.storm_size,
            think_s=self._wanted.think_s,
            answers=str(file),
            seed=self._wanted.seed,
        )
        before = None if troubled else self._cpu()
        async with asyncio.TaskGroup() as both:
            troubles = both.create_task(make_trouble(self._stage, seconds)) if troubled else None
            both.create_task(load(plan, users=self._wanted.users, seconds=seconds, classes=classes))
        after = None if troubled else self._cpu()
        spent = None if before is None or after is None else after - before
        figures = figures_of(name, list(read_answers([file])), keys=keys, seconds=seconds, cpu_s=spent)
        self._say(figures)
        return figures, [] if troubles is None else troubles.result()

    async def pairs(self) -> list[tuple[BlockFigures, BlockFigures]]:
        """Let the same load come without keys and with them, in turn."""
        pairs = []
        for number in range(1, self._wanted.pairs + 1):
            found: dict[bool, BlockFigures] = {}
            for keys in (False, True) if number % 2 else (True, False):
                name = f"calm {number}{'b' if keys else 'a'}"
                found[keys], _ = await self.block(name, keys=keys, seconds=self._wanted.calm_s, classes=CALM)
            pairs.append((found[False], found[True]))
        return pairs

    async def settle(self) -> int:
        """Find out what became of everything, and export what is left."""
        file = self._file("end")
        book = AnswerBook(file)
        try:
            settling = Settling(self._stage.urls(), self._admin_headers, book)
            unknown = await settling.settle(self.answers())
            await settling.export_the_rest()
        finally:
            book.close()
        return unknown

    def _file(self, name: str) -> Path:
        file = self._directory / f"{name.replace(' ', '-')}.jsonl"
        file.touch()
        self._files.append(file)
        return file

    def _cpu(self) -> float | None:
        return cpu_seconds(replica.pid for replica in self._stage.replicas.values())


async def run(wanted: Wanted, directory: Path, say: Callable[[BlockFigures], None]) -> Outcome:
    """
    Start the shop, load it, and look at its books. Everything that was started is ended.

    Args:
        wanted: What was asked for.
        directory: Where the answers are written.
        say: Told of each block when it has ended.

    Raises:
        ServerError: Something did not start.
        CrowdError: The users' process failed.
        NotSettledError: The shop did not come to rest.
    """
    async with open_stage(DemoOptions(store=wanted.store, tick_s=_TICK_S, headless=True)) as stage:
        _set(stage, wanted)
        await stage.start(locks=True)
        course = _Course(stage, wanted, directory, say)
        control, _ = await course.block("control", keys=False, seconds=wanted.control_s, classes=EVERYBODY)
        pairs = await course.pairs()
        storm, troubles = await course.block(
            "storm", keys=True, seconds=wanted.seconds, classes=EVERYBODY, troubled=True
        )
        await stage.wait_until_up()
        settled = await course.settle()
        orders = await orders_in(stage.environment[f"{PREFIX}DATABASE_URL"])
        answers = course.answers()
        books = audit(
            answers,
            orders,
            await booked_by(stage.partners),
            announced=announced_by(stage.journal) if wanted.records != "database" else frozenset(),
        )
        history = await stage.past.check()
        return Outcome(
            control=control,
            pairs=pairs,
            storm=storm,
            troubles=troubles,
            books=books,
            duplicates_without_keys=duplicates_without_keys(answers, orders),
            settled=settled,
            history=list(history.broken),
            alarms=_alarms(stage),
        )


def _set(stage: Stage, wanted: Wanted) -> None:
    """Have the replicas log what is looked at and no more, and keep the records where they were asked for."""
    stage.environment[f"{PREFIX}LOG_LEVEL"] = "info"
    if wanted.records == "valkey":
        stage.environment[f"{PREFIX}IDEMPOTENCY_URL"] = stage.environment[f"{PREFIX}VALKEY_URL"]


def _alarms(stage: Stage) -> dict[str, int]:
    """Count what replicas logged as errors, and the lines that are none of their log: a traceback at the end of one."""
    found: dict[str, int] = {}
    for entry in stage.journal.entries():
        if entry.level in ("ERROR", "CRITICAL", "?"):
            told = entry.event or entry.message[:120]
            found[told] = found.get(told, 0) + 1
    return found
