"""
The recorder: what a process asked the store, what it was told, and what it believed, written down as it happens.

A history of a run with crashes is worth something only if nothing is written too late: an `invoke` stands in the file
before its call is sent, and a `return` before the caller goes on. So each event is one `os.write` to a file that is
open for appending, without a buffer that a `kill -9` would take along.
"""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, final

from tenure.events import Event, LeaseLost, LeaseReleased
from tenure.store import Acquired, Claim, LockStore
from tenure.testing.history.around import recording_store
from tenure.testing.history.vocabulary import HistoryError, check_event

__all__ = ["TORN", "HistoryRecorder", "Sink"]

Sink = Path | str | list[dict[str, Any]] | Callable[[dict[str, Any]], None]
"""Where events go: to a file, to a list, or to a callable."""

TORN: Final = b"\x18"
"""
What ends a line that a killed process did not finish, put there by the process that goes on in its file: CANCEL, as a
teleprinter sent it to void a line. No JSON holds it.
"""


class ReadsTime(Protocol):
    """What the recorder needs of a clock: the same origin for every process of a history."""

    def now(self) -> float:
        """Read the clock, in seconds."""
        ...


@final
class _HostClock:
    """`CLOCK_MONOTONIC`: one origin for all processes of a host, and no step."""

    def now(self) -> float:
        """Read the clock, in seconds."""
        return time.monotonic()


@final
class HistoryRecorder:
    """
    Writes the history of one process.

        recorder = HistoryRecorder(Path("holder-1.jsonl"), process="holder-1")
        locks = Locks(recorder.around(store), ttl=3, hooks=[recorder])
        ...
        if lease.held:
            recorder.note("believes", key=lease.key, token=lease.token)

    It is a hook of `Locks` too, and hears there of losses. Any number of tasks and threads may use it, and any number
    of processes may append to one file, each with a recorder of its own.

    Args:
        sink: A path (the file is made where there is none, and appended to), a list, or a callable that takes an event.
        process: The name of this process in the history. A process that is started again keeps it.
        clock: What `at` is read from; by default `CLOCK_MONOTONIC`.

    Raises:
        HistoryError: The process has no name.
        OSError: The file cannot be opened.
    """

    def __init__(self, sink: Sink, *, process: str, clock: ReadsTime | None = None) -> None:
        self.process = process
        self._clock: ReadsTime = clock or _HostClock()
        check_event({"what": "started", "at": 0.0, "process": process})
        self._calls = itertools.count(1)
        self._held: dict[tuple[str, str], tuple[int, int]] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._fd: int | None = None
        self._closed = False
        if isinstance(sink, Path | str):
            self._fd = _open(Path(sink))
            self._put: Callable[[dict[str, Any]], None] = self._write
        elif isinstance(sink, list):
            self._put = sink.append
        else:
            self._put = sink

    def now(self) -> float:
        """Read the history's clock, in seconds; for the `sent_at` of a `write`."""
        return float(self._clock.now())

    def note(self, what: str, /, **fields: Any) -> None:
        """
        Write an event down, and return once it is written.

        Args:
            what: Its name in the table.
            **fields: Its fields. `at` is now, and `process` this one, unless they are given.

        Raises:
            HistoryError: It is no event of the table, or the recorder is closed.
            OSError: The file did not take it.
        """
        if self._closed:
            raise HistoryError(f"The recorder of {self.process!r} is closed: close it after what it records.")
        # A key may be of a class of its own, such as a StrEnum; what is written is its text.
        plain = {name: str.__str__(value) if isinstance(value, str) else value for name, value in fields.items()}
        event = {"what": what, "at": self.now(), "process": self.process, **plain}
        check_event(event)
        self._put(event)

    def __call__(self, event: Event, /) -> None:
        """Hear of an event of `Locks`: a loss is written down, and a lease that was given back without a release."""
        if isinstance(event, LeaseLost):
            self._forget(event.key, event.token)
            self.note("lost", key=event.key, token=event.token, reason=event.reason.value)
        elif isinstance(event, LeaseReleased) and (event.key, event.token) in self._owners:
            self._forget(event.key, event.token)
            self.note("gave_back", key=event.key, token=event.token)

    def around(self, store: LockStore) -> LockStore:
        """
        Wrap *store* so that each of its calls is recorded.

        The result has the capabilities of *store*, and no others. Put it directly under `Locks`, around whatever makes
        faults: an answer counts as heard where it is recorded. Closing *store* stays with its owner.
        """
        return recording_store(store, self)

    def close(self) -> None:
        """Close the file. A recorder that is closed refuses events; closing twice does nothing."""
        self._closed = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    def __repr__(self) -> str:
        return f"<HistoryRecorder of {self.process!r}{', closed' if self._closed else ''}>"

    # ---------------------------------------------------------------------------- for recorded stores

    def invoked(self, op: str, key: str, owner: str, ttl_ms: int | None, place_ms: int | None = None) -> int:
        """Write down that a call is about to be sent, and return its number. For recorded stores."""
        name = _name(owner)
        token, granted_ttl_ms = self._held.get((key, name), (0, 0))
        # A lease that is renewed for a shorter time than it was taken for is left to its end.
        if token and (ttl_ms is None or ttl_ms < granted_ttl_ms):
            self._forget(key, token)
            self.note("gave_back", key=key, token=token)
        call = next(self._calls)
        spans = {"ttl_ms": ttl_ms, "place_ms": place_ms}
        told = {span: length for span, length in spans.items() if length is not None}
        self.note("invoke", call=call, op=op, key=key, owner=name, **told)
        return call

    def granted(self, call: int, claim: Claim, reply: Acquired) -> None:
        """Write down that an acquire was granted. For recorded stores."""
        name = _name(claim.owner)
        self._held[claim.key, name] = (reply.token, claim.ttl_ms)
        self._owners[claim.key, reply.token] = name
        after = reply.after if reply.after in ("released", "expired") else None
        self.note("return", call=call, result="ok", token=reply.token, after=after)

    def returned(self, call: int, result: Literal["ok", "no", "unknown"], error: str | None = None) -> None:
        """Write down how a call ended; *error* is the type of what went wrong. For recorded stores."""
        failed = {} if error is None else {"error": error}
        self.note("return", call=call, result=result, **failed)

    def _forget(self, key: str, token: int) -> None:
        owner = self._owners.pop((key, token), None)
        if owner is not None:
            self._held.pop((key, owner), None)

    def _write(self, event: dict[str, Any]) -> None:
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
        if self._fd is None:
            raise HistoryError(f"The recorder of {self.process!r} is closed: close it after what it records.")
        if os.write(self._fd, line) != len(line):
            raise OSError(f"The history of {self.process!r} could not be written whole: is the disk full?")


def _name(owner: str) -> str:
    """Name an owner without telling it: whoever knows an owner can release its lock."""
    return hashlib.sha256(owner.encode()).hexdigest()[:12]


def _open(path: Path) -> int:
    """Open a history for appending, and end the line that a killed process left in it."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, TORN + b"\n")
    except BaseException:
        os.close(fd)
        raise
    return fd
