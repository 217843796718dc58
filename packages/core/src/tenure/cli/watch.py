"""`tenure watch`: who holds what, as it changes."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tenure._durations import to_ms
from tenure.cli.addresses import Address, from_words, refuse_more
from tenure.cli.endings import Stop
from tenure.cli.json_lines import print_json
from tenure.cli.looking import Look, look_at
from tenure.cli.rows import console, lock_shape, lock_table
from tenure.cli.spans import read_span
from tenure.clock import Clock, wait_until
from tenure.errors import TenureError
from tenure.store import LockRecord

__all__ = ["watch"]


@final
@dataclass(frozen=True, slots=True)
class _Look:
    """One refresh: the locks, or why they could not be seen."""

    address: Address
    records: list[LockRecord]
    error: str | None


def watch(
    words: Annotated[list[str] | None, typer.Argument(metavar="[URL]", show_default=False)] = None,
    *,
    prefix: Annotated[str, typer.Option("--prefix", help="Only keys that begin so.", show_default=False)] = "",
    interval: Annotated[str, typer.Option("--interval", "-n", help="How long between two looks.")] = "1s",
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many looks.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each look.")] = False,
) -> None:
    """
    Watch the locks that are held, on a live table; q or Ctrl-C ends it.

    Where the output is no terminal, one table is printed after the other. A store that fails while it is watched is
    looked at again; one that fails at the first look ends the command with 2.

    JSON, a line a look: {"store", "locks": as in `ls`, "error": null or a text}
    """
    usage = "tenure watch [URL]"
    address, rest = from_words(words or [], usage)
    refuse_more(rest, [], usage)
    interval_s = to_ms(read_span(interval), name="interval") / 1000
    try:
        asyncio.run(_watch(address, prefix, interval_s, count, json=json))
    except KeyboardInterrupt:
        return


async def _watch(address: Address, prefix: str, interval_s: float, count: int | None, *, json: bool) -> None:
    asked_to_end = asyncio.Event()
    async with look_at(address) as look:
        with ExitStack() as at_end:
            show = at_end.enter_context(_screen(json=json))
            at_end.enter_context(_keys(asked_to_end.set))
            left = count
            async for seen in _looks(look, prefix):
                show(seen)
                left = None if left is None else left - 1
                if left == 0 or await _ends_within(interval_s, asked_to_end, look.keeper.spawn, look.clock):
                    return


async def _looks(look: Look, prefix: str) -> AsyncIterator[_Look]:
    first = True
    while True:
        try:
            seen = _Look(look.address, list(await look.list_locks(prefix)), None)
        except (Stop, TenureError) as error:
            if first:
                raise
            seen = _Look(look.address, [], str(error))
        first = False
        yield seen


async def _ends_within(
    interval_s: float, asked_to_end: asyncio.Event, spawn: Callable[[Any], "asyncio.Task[Any]"], clock: Clock
) -> bool:
    asked = spawn(asked_to_end.wait())
    try:
        return await wait_until(clock, asked, when=clock.now() + interval_s)
    finally:
        asked.cancel()


@contextmanager
def _screen(*, json: bool) -> Iterator[Callable[[_Look], None]]:
    """Give what shows a look: a line of JSON, a table below the last one, or the live table."""
    if json:
        yield lambda seen: print_json(_shape(seen))
        return
    shown = console()
    if not shown.is_terminal:
        yield lambda seen: _print(shown, seen)
        return
    with Live(console=shown, auto_refresh=False, screen=True) as live:
        yield lambda seen: live.update(_table(seen, "q ends"), refresh=True)


def _shape(seen: _Look) -> dict[str, Any]:
    locks = [lock_shape(record) for record in seen.records]
    return {"store": seen.address.shown, "locks": locks, "error": seen.error}


def _print(shown: Console, seen: _Look) -> None:
    shown.print(_table(seen, None))
    shown.print()
    sys.stdout.flush()


def _table(seen: _Look, ends: str | None) -> Table:
    held = f"{len(seen.records)} held" if seen.records else "nobody holds a lock"
    caption = seen.error or held
    return lock_table(seen.records, title=seen.address.shown, caption=f"{caption}; {ends}" if ends else caption)


@contextmanager
def _keys(end: Callable[[], None]) -> Iterator[None]:
    """Call *end* when somebody presses q, where there is a keyboard; Ctrl-C works everywhere."""
    try:
        import termios
        import tty
    except ImportError:  # no POSIX terminal
        yield
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)  # a key at a time, without an echo

    def pressed() -> None:
        if os.read(keyboard, 1) in (b"q", b"Q", b""):
            end()

    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
