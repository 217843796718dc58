"""
Leases for threads: Django, Flask, Celery, scripts.

    from tenure.sync import Locks, without_overlapping

    locks = Locks("valkey://cache:6379", ttl="30s")

    with locks.hold("invoices", wait=2) as lease:
        for invoice in due():
            lease.raise_unless_held()
            send(invoice, fence=lease.token)

    @without_overlapping("reports:weekly", locks=locks)
    def report() -> None: ...

The same leases as those of `tenure`, in the same store, with the same rules: the asynchronous library runs in one
daemon thread of the process, and the calling thread waits for it. What differs is what a thread can be made to do:

- **A thread cannot be stopped.** When a lease is lost its body runs on. `hold()`, `@locked` and the job decorators
  raise `LeaseLostError` at its end. At each point of use, call `lease.raise_unless_held()`, which compares the clock;
  and let what is written carry `lease.token`, so that a late write is refused. `lease.lost.wait()` is for a thread that
  stops another one's work.
- **Renewals go on while a thread is blocked**, for they are sent by another one: by a query of ten minutes, by
  `time.sleep`, by a computation in Python. Not while something holds the interpreter's own lock (GIL) without a pause,
  as an extension that forgets to release it does: past the deadline the lease is lost, and the next line knows.
- **A fork holds nothing.** In a child every lease of its parent reads as lost, and a `Locks` opens a store of its own
  at its first use. The parent's goes on. Pools of forked workers end without the interpreter's end (`os._exit`): call
  `locks.close()` in their shutdown hook (Celery: `worker_process_shutdown`), or what a worker holds expires.
- **Hooks are called in the loop thread**: one that blocks delays renewals, and one that calls back is refused.
- **A thread that asks for a key which it holds is refused**; two threads contend as two processes do, and wait first
  come, first served.
- **gevent and eventlet are refused** where they have replaced threads: renewals need a real one.
- In a thread whose event loop is running (an asynchronous view) everything here is refused: use `tenure` there.

A cycle of acquire and release costs about twice the CPU time of an asynchronous one, measured on a store in memory:
some 60 microseconds more, for the switches of threads.
"""

from tenure.sync.election import LeaderElection
from tenure.sync.jobs import job_lease, locked, on_one_instance, step_down, without_overlapping
from tenure.sync.lease import Lease, LostSignal, current_lease
from tenure.sync.locks import Hold, Locks, StoreFactory

__all__ = [
    "Hold",
    "LeaderElection",
    "Lease",
    "Locks",
    "LostSignal",
    "StoreFactory",
    "current_lease",
    "job_lease",
    "locked",
    "on_one_instance",
    "step_down",
    "without_overlapping",
]
