"""What a run of the demo was asked for, checked before anything is started."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["STORES", "DemoOptions"]

STORES: Final[Mapping[str, str]] = {
    "postgres": "a table of the shop's own PostgreSQL",
    "valkey": "a Valkey server",
    "valkey-cluster": "a Valkey cluster of three primaries and three replicas",
}
"""Where the demo's locks can be, and what the story calls it."""

# Below a second a busy machine's pauses would be taken for deaths; beyond a minute nobody would watch.
_TTL_S = (1.0, 60.0)
# A job's lease is kept for the second after a run began, and a handover is to take at most a tick and a second: with
# ticks a second apart both would be the same second.
_TICK_S = (2, 30)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """
    Options of `cat-store demo`.

    Attributes:
        ttl_s: How long a lease lives without a renewal, in seconds.
        tick_s: How often both jobs fire, in whole seconds that divide a minute, 2 to 30.
        store: A name in `STORES`.
        headless: One line a scene instead of the live view.
        report: Where the facts are written.
        open_page: Open the live page in a browser, and keep the shop running after the story, until Ctrl-C.

    Raises:
        ValueError: A value is out of range; the message says what would do.
    """

    ttl_s: float = 3.0
    tick_s: int = 2
    store: str = "postgres"
    headless: bool = False
    report: Path | None = None
    open_page: bool = False

    def __post_init__(self) -> None:
        least, most = _TTL_S
        if not math.isfinite(self.ttl_s) or not least <= self.ttl_s <= most:
            raise ValueError(f"--ttl is {self.ttl_s:g}: give {least:g} to {most:g} seconds.")
        least, most = _TICK_S
        if not least <= self.tick_s <= most or 60 % self.tick_s:
            raise ValueError(
                f"--tick is {self.tick_s}: give {least} to {most} seconds that divide a minute, such as 2 or 5."
            )
        if self.store not in STORES:
            raise ValueError(f"--store is {self.store!r}: the demo knows {', '.join(STORES)}.")
        if self.open_page and self.headless:
            raise ValueError(
                "--open and --headless are given together: a headless run ends with its report, and nobody looks at a "
                "page. Leave one of them out."
            )
        if self.report is not None and not self.report.parent.is_dir():
            raise ValueError(f"--report names a file in {self.report.parent}, which is no directory.")

    @property
    def cron(self) -> str:
        """The jobs' schedule: six fields, the seconds last."""
        return f"* * * * * */{self.tick_s}"
