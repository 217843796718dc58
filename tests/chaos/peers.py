"""Peers: instances in the nemesis's own process, for what is measured of single calls and tasks."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

from chaos.ledger import Ledger
from chaos.scenario import Run
from tenure import ConfigurationError, Lease, Locks, LockStore, open_store
from tenure.testing.history import HistoryRecorder

T = TypeVar("T")

TTL_S: Final = 1.5
CALL_S: Final = 1.0
"""
How long a store call may take: well below the ttl, and longer than a new connection takes on a machine that is busy. A
call that is given up takes its half-opened connection along, and the next one begins anew.
"""
BEAT_S: Final = 0.02
PATIENCE_S: Final = 30.0
"""A bound for what has to happen in the end; no claim."""


@final
class Peer:
    """
    An instance in the nemesis's own process, where its calls can be timed and its tasks counted.

    Args:
        run: The run that it belongs to.
        process: Its name in histories.
        url: Its store; or *store*, which stays open.
        store: A store that somebody else opened.
        ttl_s: Its ttl, and how long a call may take, in seconds.
    """

    def __init__(
        self,
        run: Run,
        process: str,
        url: str = "",
        *,
        store: LockStore | None = None,
        ttl_s: float = TTL_S,
        call_s: float = CALL_S,
    ) -> None:
        self.history = run.history_file(process)
        self.recorder = HistoryRecorder(self.history, process=process)
        self._process, self._url, self._ttl_s, self._call_s = process, url, ttl_s, call_s
        self._store = store
        self._stack = contextlib.AsyncExitStack()
        self._works: list[asyncio.Task[None]] = []
        self.raw: Any = None
        """The store itself, for what is not to be in the history: probes and controls."""
        self.locks: Locks

    async def __aenter__(self) -> Self:
        self._stack.callback(self.recorder.close)
        try:
            self.raw = self._store or await self._stack.enter_async_context(open_store(self._url))
            # The first call of all, which loads a driver and connects, is not one whose time is of interest.
            await timed(self.raw.release("nobody", f"nobody:{0:032x}"))
            locks = Locks(
                self.recorder.around(self.raw),
                ttl=self._ttl_s,
                instance=self._process,
                store_timeout=self._call_s,
                drain=0.05,
                startup_check=False,
                hooks=[self.recorder],
            )
            self.locks = await self._stack.enter_async_context(locks)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        await self._stack.__aexit__(kind, error, trace)

    def work(self, lease: Lease, ledger: Ledger | None = None) -> "asyncio.Task[None]":
        """Believe in *lease* for as long as it is held, and write under it."""
        work = asyncio.get_running_loop().create_task(self._work(lease, ledger))
        self._works.append(work)
        return work

    async def _work(self, lease: Lease, ledger: Ledger | None) -> None:
        while lease.held:
            self.recorder.note("believes", key=lease.key, token=lease.token)
            if ledger is not None:
                ledger.take(f"resource:{lease.key}", lease.key, lease.token)
            await asyncio.sleep(BEAT_S)

    async def take(self, key: str, *, wait: float = PATIENCE_S) -> Lease:
        """Take *key* as soon as it can be had, whatever fails meanwhile, for at most *wait* seconds."""
        until = time.monotonic() + wait
        while True:
            try:
                return await self.locks.acquire(key, wait=max(0, round(until - time.monotonic())))
            except ConfigurationError:
                raise
            except Exception:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(BEAT_S)


def hush_glide() -> None:
    """Keep what glide says of each lost connection out of the output: hundreds of lines of what is done on purpose."""
    with contextlib.suppress(ImportError):
        from glide import Logger, LogLevel

        Logger.init(LogLevel.OFF)


@contextlib.asynccontextmanager
async def conducted(
    run: Run,
    *,
    ttl_s: float = TTL_S,
    call_s: float = CALL_S,
    overlap_s: float = 0.0,
) -> AsyncIterator[None]:
    """Say what the run promises, and check its history on leaving."""
    run.promise(ttl_s=ttl_s, call_s=call_s, overlap_s=overlap_s)
    yield
    run.check_history()


async def timed(call: Awaitable[T]) -> tuple[float, T | Exception]:
    """Wait for *call*; returns how long it took, in seconds, and what it returned or raised."""
    started_at = time.monotonic()
    try:
        answer: T | Exception = await call
    except Exception as error:  # noqa: BLE001 -- whatever a driver raises under a fault
        answer = error
    return time.monotonic() - started_at, answer


async def side_by_side(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run *works* at the same time, see all of them to their ends, and raise the first error there was."""
    ends = await asyncio.gather(*works, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ends if not isinstance(end, BaseException)]


async def tasks_left(before: "set[asyncio.Task[Any]]", within: float = 5.0) -> int:
    """Count the tasks that are there and were not *before*, after what is about to end has ended."""
    until = time.monotonic() + within
    while True:
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left or time.monotonic() >= until:
            return len(left)
        await asyncio.sleep(BEAT_S)
