"""Where a store's file is, and on which host's clock: what both stores are given, checked."""

import os
from pathlib import Path
from typing import Final, final

from tenure._durations import Duration, to_ms
from tenure.errors import ConfigurationError
from tenure_sqlite.clock import HostClock, host_clock
from tenure_sqlite.store_file import StoreFile, Synchronous

__all__ = ["Place"]

_LONGEST_BUSY_MS: Final = 30_000
"""Whatever waits longer for the file has a lease that ended meanwhile."""


@final
class Place:
    """
    The path of a file that processes share.

    Attributes:
        path: Absolute, from the working directory at the time.
        relative: Whether it was given as a relative one.
        clock: The host's clock.

    Raises:
        ConfigurationError: The path is none of such a file.
    """

    def __init__(self, path: str | os.PathLike[str], clock: HostClock | None = None) -> None:
        given = Path(_check_path(path))
        self.relative = not given.is_absolute()
        self.path = given.absolute()
        self.clock = clock or host_clock()

    def file(self, busy_timeout: Duration, synchronous: Synchronous) -> StoreFile:
        """
        Make the file that is there, or will be; it is opened by its first call.

        Raises:
            ConfigurationError: An option is out of range.
        """
        busy_timeout_ms = to_ms(busy_timeout, name="busy_timeout")
        if busy_timeout_ms > _LONGEST_BUSY_MS:
            raise ConfigurationError(
                f"busy_timeout is {busy_timeout_ms / 1000:g} s: it is at most 30 s, for whatever waits longer has a "
                "lease that ended meanwhile."
            )
        if synchronous not in ("full", "normal"):
            raise ConfigurationError(f'synchronous is {synchronous!r}: it is "full" or "normal".')
        return StoreFile(self.path, self.clock, busy_timeout_ms=busy_timeout_ms, synchronous=synchronous)


def _check_path(path: str | os.PathLike[str]) -> str:
    text: object = os.fspath(path) if hasattr(path, "__fspath__") else path
    if not isinstance(text, str):
        raise ConfigurationError(f"The path of the store's file is a {type(text).__name__}: give a str or a Path.")
    if not text or "\0" in text or text == ":memory:" or text.startswith("file:"):
        raise ConfigurationError(
            f"{text!r} is no file that processes share: give the path of one on a local disk, such as "
            '"/var/lib/shop/locks.db". For one process there is a store in memory, "memory://".'
        )
    return text
