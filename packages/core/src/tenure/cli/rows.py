"""Locks as they are shown: as JSON, of which the shape is stable, and as rows of a table."""

import sys
import time
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenure.cli.endings import printable
from tenure.store import LockRecord

__all__ = ["age_s", "console", "lock_shape", "lock_table", "plain_span"]

_OLDEST_CLOCK_US: Final = 1_577_836_800_000_000
"""The year 2020 in microseconds: a token below it is no reading of a clock, but a count."""

_SKEW_S: Final = 2.0
"""How far ahead of this machine's clock the server's may be, in seconds, for a new lease to be said to be new."""

_WIDE: Final = 4096
"""Columns where nobody looks but a pipe: a key is never folded there."""

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def wall_clock_us() -> int:
    """Read this machine's wall clock, in microseconds. It is shown to a person, and decides nothing."""
    return time.time_ns() // 1000


def age_s(token: int) -> float | None:
    """
    How old the lease with *token* is, in seconds; None where that is not known.

    A token is the reading of the server's clock at the acquisition, for every store of ours that others can see. It is
    held against this machine's clock: what the two differ by is in the age. A store that counts has no age to tell.
    """
    if token < _OLDEST_CLOCK_US:
        return None
    age = (wall_clock_us() - token) / 1_000_000
    return None if age < -_SKEW_S else round(max(0.0, age), 3)


def lock_shape(record: LockRecord) -> dict[str, Any]:
    """
    One lock as JSON: key, instance, token, age_s (or null), expires_in_s.

    The owner is not in it: who knows the owner can release the lock.
    """
    return {
        "key": record.key,
        "instance": record.instance,
        "token": record.token,
        "age_s": age_s(record.token),
        "expires_in_s": record.expires_in_ms / 1000,
    }


def lock_table(records: Iterable[LockRecord], *, title: str | None = None, caption: str | None = None) -> Table:
    """Lay locks out as a table: key, instance, token, age, time left."""
    table = _table(title, caption)
    table.add_column("key", overflow="fold")
    table.add_column("instance", overflow="fold")
    table.add_column("token", justify="right", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    for record in records:
        age = age_s(record.token)
        table.add_row(
            Text(printable(record.key), style="bold"),
            Text(printable(record.instance)),
            Text(str(record.token)),
            Text("" if age is None else plain_span(age)),
            Text(plain_span(record.expires_in_ms / 1000)),
        )
    return table


def _table(title: str | None, caption: str | None) -> Table:
    return Table(
        title=None if title is None else Text(title),
        caption=None if caption is None else Text(caption),
        title_justify="left",
        caption_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )


def plain_span(seconds: float) -> str:
    """Say a span as people read it: 4.2s, 3m 07s, 2h 05m, 6d 03h."""
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{seconds:.1f}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m {whole % _MINUTE_S:02d}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h {whole % _HOUR_S // _MINUTE_S:02d}m"
    return f"{whole // _DAY_S}d {whole % _DAY_S // _HOUR_S:02d}h"


def console() -> Console:
    """Make what writes to stdout as it is now: on a terminal as wide as that is, elsewhere as wide as it takes."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _WIDE)
