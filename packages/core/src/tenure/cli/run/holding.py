"""Take the lock, run the command under it, end the command when the lease is lost, give the lock back."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, final

from tenure._durations import Duration
from tenure.cli.addresses import Address
from tenure.cli.endings import Stop, say
from tenure.cli.looking import Look, refuse_alone, unreachable
from tenure.cli.run.ownership import Ownership
from tenure.cli.run.program import Program, Watchman
from tenure.cli.run.signals import Relay
from tenure.clock import sleep_until
from tenure.config import open_store
from tenure.errors import LockNotAcquiredError, LossReason, StoreError, TenureError
from tenure.lease import Lease
from tenure.locks import Locks

__all__ = ["LOST", "UNAVAILABLE", "Ending", "Order", "run_under_lock"]

_T = TypeVar("_T")

UNAVAILABLE: Final = 69
"""The store did not answer: EX_UNAVAILABLE of sysexits.h."""

LOST: Final = 70
"""The lease was lost under the command: EX_SOFTWARE of sysexits.h."""

_SIGNALLED: Final = 128

_DEADLINES_PER_TTL: Final = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What `tenure run` was asked to do."""

    address: Address
    key: str
    command: Sequence[str]
    ttl: Duration
    wait: Duration
    kill_after_s: float
    instance: str | None
    on_one_instance: bool
    conflict_code: int


@final
@dataclass(frozen=True, slots=True)
class Ending:
    """
    How it ended.

    Attributes:
        outcome: "ran": the command ended by itself, "held": the lock is another's, "lost": the lease was lost while it
            ran, "interrupted": a signal came while the lock was waited for.
        code: The exit code.
        told: What a person is to know, if anything.
        token: The fencing token, where there was a lease.
        command_code: The command's own code, where it ran and ended.
    """

    outcome: Literal["ran", "held", "lost", "interrupted"]
    code: int
    told: str | None = None
    token: int | None = None
    command_code: int | None = None


async def run_under_lock(order: Order) -> Ending:
    """
    Run a command under a lock.

    Raises:
        ConfigurationError: A value is wrong, or the store is not safe to lock in.
        Stop: The store failed.
    """
    waiting: Any = asyncio.current_task()
    relay = Relay(waiting)
    try:
        with relay:
            return await _open_and_run(order, relay)
    except asyncio.CancelledError:
        if relay.ended_by is None:
            raise
        return Ending("interrupted", _SIGNALLED + relay.ended_by)
    except StoreError as error:
        raise Stop(str(error), UNAVAILABLE) from error


async def _open_and_run(order: Order, relay: Relay) -> Ending:
    async with open_store(order.address.url) as store:
        refuse_alone(store)
        async with Locks(store, ttl=order.ttl, instance=order.instance, hooks=()) as locks:
            if not order.on_one_instance:
                return await _take_and_run(order, locks, relay)
            look = Look(order.address, store)
            ownership = Ownership(look, order.key, locks.instance, locks.ttl_ms)
            if not await _answered(order, ownership.take()):
                return Ending("held", order.conflict_code, f"The job {order.key!r} runs on another instance.")
            keeping = locks.spawn(ownership.keep())
            try:
                return await _take_and_run(order, locks, relay, ownership)
            finally:
                keeping.cancel()


async def _answered(order: Order, asking: Awaitable[_T]) -> _T:
    try:
        return await asking
    except TenureError:
        raise
    except Exception as error:
        raise unreachable(order.address, error, UNAVAILABLE) from error


async def _take_and_run(order: Order, locks: Locks, relay: Relay, ownership: Ownership | None = None) -> Ending:
    try:
        lease = await _answered(order, locks.acquire(order.key, wait=order.wait))
    except LockNotAcquiredError:
        held = f"{order.key!r} is held by another owner."
        return Ending("held", order.conflict_code, held if ownership is None else f"{held} A run is still in progress.")
    with Watchman(order.kill_after_s) as watchman:
        relay.starts()
        more = {"TENURE_KEY": order.key, "TENURE_TOKEN": str(lease.token)}
        # Before the command begins: a tenure that is stopped as soon as it has begun tells nothing any more.
        _tell_deadline(watchman, lease)
        program = await Program.start(order.command, more, watchman, locks.clock, may_begin=lambda: lease.held)
        relay.started(program, lease)
        feeding = locks.spawn(_feed(watchman, lease, locks))
        try:
            code = await _see_through(order, program, lease, locks)
        finally:
            feeding.cancel()
        relay.over()
        watchman.dismiss()
    if ownership is not None:
        # Before the run lock is free: whoever takes that next is to find the job owned.
        await ownership.leave()
    return await _ending(order, lease, code, begun=program.begun)


async def _feed(watchman: Watchman, lease: Lease, locks: Locks) -> None:
    """Tell the watchman of each new deadline: he ends the command at the last one he heard of."""
    while lease.held:
        _tell_deadline(watchman, lease)
        await sleep_until(locks.clock, locks.clock.now() + locks.ttl_s / _DEADLINES_PER_TTL)


def _tell_deadline(watchman: Watchman, lease: Lease) -> None:
    watchman.tell(f"until {lease._kept.term.trusted_until!r}")  # noqa: SLF001 -- the holder's own end of trust


async def _see_through(order: Order, program: Program, lease: Lease, locks: Locks) -> int | None:
    """Wait until the command has ended, or end it with its lease. Returns its code, where it has one."""
    ended, lost = locks.spawn(program.wait()), locks.spawn(lease.lost.wait())
    await asyncio.wait([ended, lost], return_when=asyncio.FIRST_COMPLETED)
    if not lost.done():
        lost.cancel()
        return ended.result() if lease.held else await program.end(ended, order.kill_after_s)
    return await program.end(ended, order.kill_after_s)


async def _ending(order: Order, lease: Lease, code: int | None, *, begun: bool) -> Ending:
    reason = lease.lost.reason
    if reason is None:
        try:
            if not await lease.release():
                reason = LossReason.REFUSED
        except Exception as error:  # noqa: BLE001 -- the command has ended under its lease, and that is what counts
            say(f"The lock {order.key!r} could not be given back and ends with its ttl: {order.address.tell(error)}")
    if reason is not None or code is None:
        how = "was not begun" if not begun else "was ended" if code is not None else "could not be ended"
        told = (
            f"The lease on {order.key!r} (fencing token {lease.token}) was lost "
            f"({(reason or LossReason.EXPIRED).value}), and the command {how}: another instance may hold the lock now."
        )
        return Ending("lost", LOST, told, lease.token, code if begun else None)
    return Ending("ran", code, None, lease.token, code)
