"""A lease as the keeper keeps it: what its holder may believe, and who wants to hear of its end."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from tenure import _lease_machine as machine
from tenure._backoff import Backoff
from tenure._lease_machine import LeaseState, Term
from tenure.clock import Clock
from tenure.errors import LossReason
from tenure.store import Claim

__all__ = ["Attempt", "Kept", "Renewer", "this_process"]

Watcher = Callable[["LossReason | None"], None]

_pid = os.getpid()


def this_process() -> int:
    """Return the id of this process, without asking the kernel: it is compared several times a lease."""
    return _pid


def _be_another_process() -> None:
    global _pid  # noqa: PLW0603 -- there is one id a process
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):  # pragma: no branch -- where there is none, nothing forks
    os.register_at_fork(after_in_child=_be_another_process)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Renewer:
    """How leases are renewed: a callable for one, and one for many where there is one. Grouped by identity."""

    one: Callable[[str, str, int], Awaitable[bool]]
    many: Callable[[Sequence[Claim]], Awaitable[Sequence[bool | None]]] | None = None


@final
class Kept:
    """
    A lease as the keeper keeps it: the machine's term, and who wants to hear of its end.

    Reading is right at any moment and from any thread, for it compares the clock; only the keeper writes. There may be
    ten thousand of them: what few leases need (watchers, a back-off) is made when it is needed.
    """

    __slots__ = (
        "_clock",
        "_pid",
        "_watchers",
        "at_end",
        "attempts",
        "backoff",
        "claim",
        "entry",
        "held_since",
        "renewer",
        "term",
        "token",
    )

    def __init__(self, clock: Clock, claim: Claim, token: int, sent_at: float, renewer: Renewer) -> None:
        self._clock = clock
        self._pid = _pid
        self._watchers: list[Watcher] | None = None
        self.at_end: Callable[[Kept], None] | None = None
        """Called with it before anybody else hears of its end: one function for all leases of an owner of theirs."""
        self.attempts: tuple[Attempt, ...] = ()
        self.backoff: Backoff | None = None
        self.claim = claim
        self.entry = 0
        self.held_since = sent_at
        self.renewer = renewer
        self.term: Term = machine.begin(sent_at, claim.ttl_ms / 1000)
        self.token = token

    @property
    def ttl_s(self) -> float:
        """The ttl, in seconds."""
        return self.claim.ttl_ms / 1000

    @property
    def held(self) -> bool:
        """Whether the holder may believe in the lease now."""
        return self._pid == _pid and machine.is_held(self.term, self._clock.now())

    @property
    def reason(self) -> LossReason | None:
        """How the lease is lost as of now, or None."""
        # After a fork the parent still holds the lease; two processes that both believe are what it prevents.
        if self._pid != _pid and self.term.state is LeaseState.HELD:
            return LossReason.FORKED
        return machine.reason_at(self.term, self._clock.now())

    @property
    def released(self) -> bool:
        """Whether the holder gave the lease back."""
        return self.term.state is LeaseState.RELEASED

    def watch(self, watcher: Watcher) -> None:
        """Call *watcher* when the lease ends: with the reason where it is lost, with None where it is released."""
        if self._watchers is None:
            self._watchers = []
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Call *watcher* no more."""
        if self._watchers is not None:
            with contextlib.suppress(ValueError):
                self._watchers.remove(watcher)

    def tell_watchers(self) -> None:
        """Tell everyone who watches that the lease has ended, once."""
        at_end, self.at_end = self.at_end, None
        if at_end is not None:
            at_end(self)
        watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            watcher(self.term.reason)


@final
@dataclass(slots=True, eq=False)
class Attempt:
    """One renewing call that is under way, and the leases that it carries."""

    sent_at: float
    kept: list[Kept]
    task: "asyncio.Task[Any]"
    grouped: bool
    patient_until: float
    dropped: int = 0

    def drop(self) -> None:
        """Wait for it no more, for one of its leases; it is cancelled once none of them waits."""
        self.dropped += 1
        if self.dropped == len(self.kept):
            self.task.cancel()
