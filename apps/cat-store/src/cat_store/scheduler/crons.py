"""The crons of one replica."""

import asyncio
import contextlib
import logging
import time
import zoneinfo
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from saq.queue.redis import RedisQueue

from cat_store.scheduler.worker import start_worker, stop_worker, wipe

__all__ = ["Cron", "Scheduler"]

logger = logging.getLogger(__name__)

_CONNECT_WITHIN_S = 5.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
# Some three seconds in all: a Valkey that restarts is back by then, and one that is not there at a replica's start is
# reported while somebody still looks.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Cron:
    """
    One job and its schedule.

    Attributes:
        name: The job's name in the log.
        expression: Five fields, or six with the seconds last.
        run: The job. What it raises is logged; the next tick runs it again.
        foreseen: What it may raise without a mistake in the program, which is logged without its traceback.
    """

    name: str
    expression: str
    run: Callable[[], Awaitable[Any]]
    foreseen: tuple[type[Exception], ...] = ()


def _client(url: str) -> Redis:
    """
    Make the client of a queue.

    No socket time-out: an idle worker waits in one blocking call, and the client's default of five seconds would cut
    it off and reconnect for ever. A worker asks again at once when a call fails, so without pauses between the
    attempts it would spin for as long as Valkey is away.
    """
    return Redis.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=_CONNECT_WITHIN_S,
        retry=Retry(ExponentialBackoff(cap=_LONGEST_PAUSE_S, base=_FIRST_PAUSE_S), _ATTEMPTS),
    )


class Scheduler:
    """
    Fires each cron on this replica, at each of its ticks, for as long as it is entered.

    Each replica has a queue of its own, so that each fires every tick: with one queue for all, a tick that a dying
    replica had taken would be nobody's. Entered after the resources that its jobs use and after the locks, so that
    it is left before them.

    Leaving it, in this order: no new run begins; running jobs end, within `drain_s`; what is left is cancelled.

    Args:
        url: The Valkey with the queues.
        instance: This replica's name, stable across restarts: a queue named at random would be left behind by every
            replica that is killed.
        crons: The jobs.
        timezone: The time zone of the expressions.
        drain_s: How long leaving waits for running jobs, in seconds.
    """

    def __init__(self, url: str, instance: str, crons: Sequence[Cron], *, timezone: str, drain_s: float) -> None:
        self._crons = {cron.name: cron for cron in crons}
        self._zone = zoneinfo.ZoneInfo(timezone)
        self._drain_s = drain_s
        self._queue = RedisQueue(_client(url), name=f"cron:{instance}")
        self._runs: set[asyncio.Task[Any]] = set()
        self._draining = False
        self._left = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect and start, at the beginning of a second; raises what the client raises without a Valkey."""
        async with contextlib.AsyncExitStack() as left:
            # Not the queue's own disconnect(): it would connect once more to take back a subscription it never made.
            left.push_async_callback(self._queue.redis.aclose)
            await self._queue.connect()
            await wipe(self._queue, self._crons)
            left.push_async_callback(wipe, self._queue, self._crons)
            # SAQ looks at its crons once a second from its start on. Looking at the turn of a second fires a tick
            # when it is due, and the replicas' ticks within milliseconds of each other, as a cron daemon does.
            await asyncio.sleep(1 - time.time() % 1)  # noqa: TID251 -- a cron follows the wall clock
            worker, task = start_worker(
                self._queue,
                {name: (cron.expression, self._tick_of(cron)) for name, cron in self._crons.items()},
                self._zone,
            )
            left.push_async_callback(stop_worker, worker, task)
            left.push_async_callback(self._drain)
            self._left = left.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._left.aclose()

    def stop_firing(self) -> None:
        """Begin no new run, and leave those that are under way alone: leaving does it too, perhaps a while later."""
        self._draining = True

    def _tick_of(self, cron: Cron) -> Callable[[Any], Awaitable[None]]:
        async def tick(_: Any) -> None:
            if self._draining:
                return
            task = asyncio.current_task()
            assert task is not None
            self._runs.add(task)
            try:
                await cron.run()
            except Exception as error:
                # What was foreseen says by itself what is wrong and where; a traceback would only bury it.
                logger.log(
                    logging.ERROR,
                    "%s failed, and the next tick runs it again: %s",
                    cron.name,
                    error,
                    exc_info=not isinstance(error, cron.foreseen),
                    extra={"event": "job.failed", "job": cron.name, "error": type(error).__name__},
                )
            finally:
                self._runs.discard(task)

        return tick

    async def _drain(self) -> None:
        self._draining = True
        if self._runs:
            logger.info("Waiting for %d running jobs", len(self._runs))
            await asyncio.wait(set(self._runs), timeout=self._drain_s)
