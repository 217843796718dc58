"""
Waking who waits for a key: a release notifies, where somebody waits, and one connection a process listens.

Nothing here decides who holds a key. A waiter that is woken asks the store again, and one that is not woken asks all
the same at its next poll; so whatever breaks (the connection, the server, a pooler between) costs a poll.

What a waiter may count on:

- Its key is *known* while it waits: the listening connection holds the shared advisory lock that a release looks for
  (`sql/locks/release.sql`). It becomes known after the waiter came, and then the waiter is woken once: the release
  that came in between is not missed. It stays known for a moment after the last waiter left, so that polls, between
  which nobody waits, do not cost a statement each.
- A release that is heard while nobody waits is kept for the next who comes: it came while that one asked the store.
- While a key cannot be made known (no connection, too many keys), its waiters are let go about once a second.

One task a store speaks on the connection: what comes to be known or let go while it waits for an answer travels
together in the next statement. It ends with the connection: when nobody has waited for a minute, when the engine is
disposed, or when the store is closed.
"""

import asyncio
import contextlib
import itertools
import os
import random
from typing import Final, final

from sqlalchemy.ext.asyncio import AsyncEngine

from tenure._backoff import Backoff
from tenure_postgres.connection import Connections
from tenure_postgres.listening import Listening, PoolerBetweenError
from tenure_postgres.statements import TableName

__all__ = ["Wakeups"]

_LINGER_S: Final = 1.0
"""How long a key stays known when nobody waits for it, in seconds: far longer than the call between two polls."""

_IDLE_S: Final = 60.0
"""How long the connection stays open when nobody waits for anything, in seconds."""

_LOOK_S: Final = 10.0
"""How often the connection is looked at while somebody waits, in seconds: a way that is gone tells nobody."""

_UNKNOWN_S: Final = 1.0
"""How long a waiter stays at most while its key is not known, in seconds: as long as its own longest pause."""

_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
"""Pauses between two tries to open the connection, in seconds."""

_FIRST_AGAIN_S: Final = 0.001
_LONGEST_AGAIN_S: Final = 1.0
"""Pauses before a key is made known again that was being released just then, in seconds: about a commit at first."""


class _Mark:
    """
    A key that somebody in this process waits for, or did a moment ago.

    Attributes:
        key: The key.
        of_key: Its hash, while it is known to the server.
        waiters: Who waits, in the order in which they came.
        missed: Whether a release was heard while nobody waited.
        left_at: When the last waiter left, in seconds on the loop's clock.
    """

    __slots__ = ("key", "left_at", "missed", "of_key", "waiters")

    def __init__(self, key: str) -> None:
        self.key = key
        self.of_key: str | None = None
        self.waiters: dict[asyncio.Future[None], None] = {}
        self.missed = False
        self.left_at = 0.0

    def wake(self) -> None:
        """Wake all who wait; each asks the store, which lets one have the key."""
        for waiter in self.waiters:
            _end(waiter)

    def become_known(self, of_key: str) -> None:
        """Take note that releases notify from now on; who waits asks again, for one may have come before."""
        self.of_key = of_key
        self.wake()

    def heard(self) -> None:
        """Take note of a release."""
        # A waiter that was cancelled is here until its task has run; it asks nobody.
        self.missed = all(waiter.cancelled() for waiter in self.waiters)
        self.wake()


@final
class Wakeups:
    """
    One store's waiters, and the connection that wakes them.

    Args:
        engine: The store's engine.
        connections: What is known of its connections.
        table: The locks table.
    """

    def __init__(self, engine: AsyncEngine, connections: Connections, table: TableName) -> None:
        self._engine = engine
        self._connections = connections
        self._table = table
        self._rng = random.Random()  # noqa: S311 -- it spreads polls, and keeps no secret
        self._backoff = Backoff(_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S, self._rng)
        self._again = Backoff(_FIRST_AGAIN_S, _LONGEST_AGAIN_S, self._rng)
        self._not_before = 0.0
        self._closed = False
        self._impossible = False
        self._home: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._of_parent: object = None
        self._stirred = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._marks: dict[str, _Mark] = {}
        self._wanted: dict[str, _Mark] = {}
        self._known: dict[str, list[_Mark]] = {}

    async def released(self, key: str) -> None:
        """Return at the next release of *key*, or before; cancelled, it leaves no trace."""
        loop = asyncio.get_running_loop()
        if self._home != (loop, os.getpid()):
            self._move_to(loop)
        if self._closed or self._impossible:
            await asyncio.sleep(self._patience_s())
            return
        mark = self._marks.get(key) or self._new_mark(key)
        if mark.missed:
            mark.missed = False
            return
        waiter = loop.create_future()
        mark.waiters[waiter] = None
        unknown = None
        if mark.of_key is None:
            unknown = loop.call_later(self._patience_s(), _end, waiter)
            self._stir()
        try:
            await waiter
        except asyncio.CancelledError:
            # Woken and cancelled at once: the wake-up is for the next who comes.
            if not waiter.cancelled():
                mark.missed = True
            raise
        finally:
            if unknown is not None:
                unknown.cancel()
            del mark.waiters[waiter]
            if not mark.waiters:
                self._left(mark, loop.time())

    async def aclose(self) -> None:
        """Let every waiter go, and close the connection. Nobody is woken after it; waiters poll."""
        self._closed = True
        if self._home != (asyncio.get_running_loop(), os.getpid()):
            return  # what there may be belongs to another loop, and ends with it
        for mark in self._marks.values():
            mark.wake()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    # ------------------------------------------------------------------------------------------- marks

    def _new_mark(self, key: str) -> _Mark:
        mark = self._marks[key] = self._wanted[key] = _Mark(key)
        return mark

    def _left(self, mark: _Mark, now: float) -> None:
        """Take note that nobody waits for *mark* any more."""
        mark.left_at = now
        if self._wanted.get(mark.key) is mark:
            self._drop(mark)
        elif self._wanted:
            self._stirred.set()  # it may make room

    def _drop(self, mark: _Mark) -> None:
        for marks in (self._marks, self._wanted):
            if marks.get(mark.key) is mark:
                del marks[mark.key]

    def _heard(self, of_key: str) -> None:
        for mark in self._known.get(of_key, ()):
            mark.heard()

    def _forget_known(self) -> None:
        """Take note that the server knows of no key any more."""
        marks, self._known = list(self._marks.values()), {}
        for mark in marks:
            mark.of_key, mark.missed = None, False
            if not mark.waiters:
                self._drop(mark)
                continue
            self._wanted[mark.key] = mark
            for waiter in mark.waiters:
                waiter.get_loop().call_later(self._patience_s(), _end, waiter)

    def _patience_s(self) -> float:
        return _UNKNOWN_S * (0.5 + self._rng.random() / 2)

    # ---------------------------------------------------------------------------------------- the task

    def _stir(self) -> None:
        """Have the task look at what is wanted; begin one where there is none, unless the last one failed just now."""
        self._stirred.set()
        assert self._home is not None
        loop, _ = self._home
        if self._worker is None and loop.time() >= self._not_before:
            self._worker = loop.create_task(self._work(), name="tenure_postgres wake-ups")

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew in *loop*: futures and connections of another loop, or of the parent process, cannot be used."""
        worker, self._worker = self._worker, None
        if worker is not None and self._home is not None:
            if self._home[1] != os.getpid():
                self._of_parent = worker  # kept as it is: collected, it would close what the parent uses
            else:
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    worker.get_loop().call_soon_threadsafe(worker.cancel)
        self._marks, self._wanted, self._known = {}, {}, {}
        self._stirred = asyncio.Event()
        self._not_before = 0.0
        self._home = (loop, os.getpid())

    async def _work(self) -> None:
        """Open the connection, keep the server's knowledge as the waiters need it, close the connection."""
        loop, me, listening = asyncio.get_running_loop(), asyncio.current_task(), None
        try:
            listening = await Listening.opened(
                self._engine, self._connections, self._table, heard=self._heard, ended=self._stirred.set
            )
            await self._serve(listening, loop)
        except PoolerBetweenError:
            self._impossible = True
        except Exception:  # noqa: BLE001 -- whatever broke, waiters poll, and the next one tries again
            self._not_before = loop.time() + self._backoff.next_s()
        finally:
            if self._worker is me:
                self._worker = None
                self._forget_known()
            if listening is not None:
                await listening.aclose()

    async def _serve(self, listening: Listening, loop: asyncio.AbstractEventLoop) -> None:
        """Make keys known and let them go, until nobody has waited for a minute."""
        looked_at = needed_at = loop.time()
        while True:
            self._stirred.clear()
            listening.refuse_ended()
            await self._let_go_of_idle(listening, loop.time())
            refused = await self._make_known(listening)
            now = loop.time()
            if now - looked_at >= _LOOK_S:
                await listening.look()
                looked_at = now
            if self._marks:
                needed_at = now
            elif now - needed_at >= _IDLE_S:
                return
            due = looked_at + _LOOK_S if self._marks else needed_at + _IDLE_S
            if self._known:
                # Who leaves does not stir, for most come back: that would be a turn for each poll.
                due = min([due, now + _LINGER_S, *(mark.left_at + _LINGER_S for mark in self._idle())])
            if refused:
                due = min(due, now + self._again.next_s())
            timer = loop.call_at(due, self._stirred.set)
            try:
                await self._stirred.wait()
            finally:
                timer.cancel()

    def _idle(self) -> list[_Mark]:
        return [mark for marks in self._known.values() for mark in marks if not mark.waiters]

    async def _let_go_of_idle(self, listening: Listening, now: float) -> None:
        """Let go of what nobody has waited for lately, and of as much more as those who wait need the room for."""
        idle = sorted(self._idle(), key=lambda mark: mark.left_at)
        short_of = len(self._wanted) - self._room(listening)
        old = [mark for place, mark in enumerate(idle) if place < short_of or now - mark.left_at >= _LINGER_S]
        if not old:
            return
        hashes = []
        for mark in old:
            # Before the statement: who comes meanwhile has the key made known anew, after it.
            assert mark.of_key is not None
            hashes.append(mark.of_key)
            self._known[mark.of_key].remove(mark)
            if not self._known[mark.of_key]:
                del self._known[mark.of_key]
            self._drop(mark)
        await listening.let_go(hashes)

    async def _make_known(self, listening: Listening) -> bool:
        """Make known what is wanted, as far as there is room. Returns whether any was refused for the moment."""
        batch = list(itertools.islice(self._wanted.values(), max(0, self._room(listening))))
        if not batch:
            return False
        for mark in batch:
            del self._wanted[mark.key]
        answers = await listening.make_known([mark.key for mark in batch])
        self._backoff.reset()
        refused = False
        for mark, of_key in zip(batch, answers, strict=True):
            if of_key is not None:
                self._known.setdefault(of_key, []).append(mark)
                mark.become_known(of_key)
            elif mark.waiters:
                refused = True
                self._wanted[mark.key] = mark
            else:
                self._drop(mark)
        if not refused:
            self._again.reset()
        return refused

    def _room(self, listening: Listening) -> int:
        return listening.most - sum(map(len, self._known.values()))


def _end(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
