"""The live view: who holds what until when, on one page of a terminal."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Self

import httpx
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from cat_store.demo.journal import Entry
from cat_store.demo.page import page_url
from cat_store.demo.stage import INSTANCES, Stage
from cat_store.partners.wire import AccountingStatement, WarehouseStatement
from tenure.store import LockRecord

__all__ = ["LiveView"]

_LOOK_EVERY_S: Final = 0.25
# Long enough to read what was measured before the next scene begins.
_BREATH_S: Final = 4.0
# What the log panel may have: the rest of the page needs about 32 rows, and a page that does not fit flickers.
_REST_ROWS: Final = 32
_LOG_ROWS: Final = (3, 10)
_COLOURS: Final = dict(zip(INSTANCES, ("cyan", "magenta", "yellow"), strict=True))
_STATES: Final = {"up": "[green]up[/]", "paused": "[yellow]paused[/]", "gone": "[red]gone[/]"}


class LiveView:
    """
    Draws the stage again and again while it is entered; a narrator whose scenes stand at its top.

    Args:
        stage: What to look at.
        console: Where to draw; None for the terminal.
    """

    def __init__(self, stage: Stage, console: Console | None = None) -> None:
        self._stage = stage
        self._live = Live(console=console, auto_refresh=False)
        self._drawing: asyncio.Task[None] | None = None
        self._scene = ("The cat store", "Three replicas start.")
        self._step = ""
        self._results: list[tuple[str, str]] = []

    async def __aenter__(self) -> Self:
        self._live.start()
        self._drawing = asyncio.create_task(self._draw(), name="live view")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            await asyncio.wait({self._drawing})
        self._live.stop()
        if self._drawing is not None and not self._drawing.cancelled():
            self._drawing.result()  # a picture that could not be drawn is a mistake to be told

    def scene(self, title: str, explanation: str) -> None:
        """Put a scene's name and explanation at the top."""
        self._scene, self._step = (title, explanation), ""

    def step(self, text: str) -> None:
        """Put a line below the explanation."""
        self._step = text

    def result(self, text: str) -> None:
        """Keep what was measured at the bottom."""
        self._results.append((self._scene[0], text))

    async def breathe(self) -> None:
        """Give a person the time to look."""
        await asyncio.sleep(_BREATH_S)

    async def _draw(self) -> None:
        while True:
            # A server that does not answer for a moment leaves the last picture standing.
            with contextlib.suppress(httpx.HTTPError, SQLAlchemyError, OSError):
                await self._draw_once()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _draw_once(self) -> None:
        locks = await self._stage.locks()
        accounting = await self._stage.partners.accounting()
        warehouse = await self._stage.partners.warehouse()
        picture = Group(
            self._header(),
            self._leases(locks),
            _partners(accounting, warehouse),
            self._log(),
            *self._footer(),
        )
        self._live.update(picture, refresh=True)

    def _header(self) -> RenderableType:
        title, explanation = self._scene
        body = Text.assemble(explanation, "\n", (self._step, "bold"))
        page = f"The live page: {page_url(self._stage)}" if self._stage.options.open_page else None
        return Panel(body, title=f"[bold]{title}[/]", title_align="left", border_style="blue", subtitle=page)

    def _leases(self, locks: Sequence[LockRecord]) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
        table.add_column("replica", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("holds", ratio=1, overflow="fold")
        table.add_column("token", no_wrap=True)
        table.add_column("until (store's clock)", no_wrap=True)
        for name in INSTANCES:
            state = _STATES[self._stage.state_of(name)]
            held = [lock for lock in locks if lock.instance == name]
            if not held:
                table.add_row(_name(name), state, "[dim]nothing[/]")
            for number, lock in enumerate(held):
                first = number == 0
                table.add_row(
                    _name(name) if first else "", state if first else "", lock.key, str(lock.token), self._left(lock)
                )
        return table

    def _left(self, lock: LockRecord) -> RenderableType:
        left_s = lock.expires_in_ms / 1000
        row = Table.grid(padding=(0, 1))
        row.add_row(ProgressBar(total=self._stage.options.ttl_s, completed=left_s, width=12), f"{left_s:.1f} s")
        return row

    def _log(self) -> RenderableType:
        least, most = _LOG_ROWS
        rows = max(least, min(most, self._live.console.height - _REST_ROWS))
        told = [entry for entry in self._stage.journal.entries() if _is_news(entry)][-rows:]
        lines = [Text.assemble((entry.instance, _colour(entry.instance)), "  ", entry.message) for entry in told]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Panel(Group(*lines), title="What they log", title_align="left", height=rows + 2)

    def _footer(self) -> Iterator[RenderableType]:
        for title, text in self._results:
            yield Text.assemble(("✓ ", "green"), (f"{title}: ", "bold"), text)


def _partners(accounting: AccountingStatement, warehouse: WarehouseStatement) -> RenderableType:
    twice = accounting.duplicate_invoices
    return Text.assemble(
        ("accounting", "bold"),
        f"  {len(accounting.batches)} batches booked, ",
        (f"{twice} invoices booked more than once", "red" if twice else "green"),
        f", uploads that came again and were recognised: {accounting.repeated_uploads}\n",
        ("warehouse", "bold"),
        f"   {warehouse.full_counts} full counts, {warehouse.open_counts} going on, "
        f"{warehouse.most_at_once} at once at most\n"
        f"            alert feed: {warehouse.open_feeds} connected, {warehouse.most_feeds} at once at most, "
        f"{warehouse.refused_feeds} refused\n",
    )


def _is_news(entry: Entry) -> bool:
    return entry.level not in ("DEBUG", "?") and bool(entry.event)


def _name(instance: str) -> Text:
    return Text(instance, style=_colour(instance))


def _colour(instance: str) -> str:
    return _COLOURS.get(instance, "white")
