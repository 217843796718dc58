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

__all__ = ["Attempt", "Kept", "Renewer"]

Watcher = Callable[["LossReason | None"], None]


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

    Reading is right at any moment and from any thread, for it compares the clock; only the keeper writes.
    """

    __slots__ = (
        "_clock",
        "_pid",
        "_watchers",
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
        self._pid = os.getpid()
        self._watchers: list[Watcher] = []
        self.attempts: tuple[Attempt, ...] = ()
        self.backoff: Backoff | None = None
        self.claim = claim
        self.entry = 0
        self.held_since = sent_at
        self.renewer = renewer
        self.term: Term = machine.begin(sent_at, self.ttl_s)
        self.token = token

    @property
    def ttl_s(self) -> float:
        """The ttl, in seconds."""
        return self.claim.ttl_ms / 1000

    @property
    def held(self) -> bool:
        """Whether the holder may believe in the lease now."""
        return machine.is_held(self.term, self._clock.now()) and self._pid == os.getpid()

    @property
    def reason(self) -> LossReason | None:
        """How the lease is lost as of now, or None."""
        # After a fork the parent still holds the lease; two processes that both believe are what it prevents.
        if self._pid != os.getpid() and self.term.state is LeaseState.HELD:
            return LossReason.FORKED
        return machine.reason_at(self.term, self._clock.now())

    @property
    def released(self) -> bool:
        """Whether the holder gave the lease back."""
        return self.term.state is LeaseState.RELEASED

    def watch(self, watcher: Watcher) -> None:
        """Call *watcher* when the lease ends: with the reason where it is lost, with None where it is released."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Call *watcher* no more."""
        with contextlib.suppress(ValueError):
            self._watchers.remove(watcher)

    def tell_watchers(self) -> None:
        """Tell everyone who watches that the lease has ended, once."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher(self.term.reason)


@final
@dataclass(slots=True, eq=False)
class Attempt:
    """One renewing call that is under way, and the leases that it carries."""

    sent_at: float
    kept: list[Kept]
    task: "asyncio.Task[Any]"
    grouped: bool
    dropped: int = 0

    def drop(self) -> None:
        """Wait for it no more, for one of its leases; it is cancelled once none of them waits."""
        self.dropped += 1
        if self.dropped == len(self.kept):
            self.task.cancel()
