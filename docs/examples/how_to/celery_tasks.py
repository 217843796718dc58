"""Celery tasks that do not overlap, over all workers; each forked worker opens a store of its own."""

from celery import Celery
from celery.signals import worker_process_shutdown

from tenure.sync import Locks, current_lease, without_overlapping

app = Celery("shop", broker="memory://", backend="cache+memory://")
locks = Locks("memory://", allow_in_memory=True)  # the store's URL: opened at the first use, in each process


@worker_process_shutdown.connect
def give_back(**_: object) -> None:
    # A prefork worker ends without the interpreter's end: what it holds would live on for a ttl.
    locks.close()


@app.task(name="shop.count")
@without_overlapping("guide:count", locks=locks)
def count() -> str | None:
    lease = current_lease()
    assert lease is not None
    for _ in range(3):
        lease.raise_unless_held()  # at each step that only the holder may take
    return "counted"


if __name__ == "__main__":
    app.conf.task_always_eager = True
    assert count.delay().get() == "counted"
    locks.close()
