"""
The scenes. Each acts on the stage, waits for what must come of it, and returns what it measured.

Nothing is staged but the moments: the partners hold a request open, a process gets a signal. What follows is done by
the replicas, at ticks of their own schedules.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from cat_store.demo.facts import Fencing, Kill, Term, WithLocks, WithoutLocks
from cat_store.demo.journal import NotSeenError
from cat_store.demo.narrator import Narrator
from cat_store.demo.stage import INSTANCES, Stage
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.inventory.reconciliation import STOCK_RECONCILIATION
from cat_store.invoices.export import INVOICE_EXPORT
from cat_store.partners.wire import AccountingSwitches, Shelf, WarehouseSwitches

__all__ = ["kill_the_owner", "pause_the_owner", "settle", "stop_the_owner", "with_locks", "without_locks"]

# What a busy machine may add to anything that is waited for; nothing that is measured depends on it.
_PATIENCE_S: Final = 20.0
# Ticks that the others must have skipped before "one" is believed.
_SKIPS: Final = 2


async def without_locks(stage: Stage, narrator: Narrator) -> WithoutLocks:
    """Three replicas, one schedule, no locks: every job runs three times."""
    narrator.scene(
        "Without locks",
        "Three replicas fire the same crons. Each reads the same three orders as due before any of them is marked, "
        "and each asks the warehouse for a full count.",
    )
    # Accounting answers no opening until three wait: whatever the skew of the ticks, all three have read by then.
    await stage.partners.switch_accounting(AccountingSwitches(openings_wait_for=len(INSTANCES)))
    await stage.partners.switch_warehouse(WarehouseSwitches(hold_counts=True))
    await stage.shop.place_orders(3)
    mark = stage.journal.mark
    await stage.start(locks=False)
    narrator.step("The warehouse holds the counts open, to see how many come.")
    await stage.journal.wait_until(
        lambda: stage.journal.count("invoices.exported", after=mark) >= len(INSTANCES),
        "an export of each replica",
        within_s=_patience(stage),
    )
    counts = await stage.partners.wait_for_warehouse(
        lambda statement: statement.open_counts >= len(INSTANCES), "three counts", within_s=_patience(stage)
    )
    books = await stage.partners.accounting()
    facts = WithoutLocks(len(books.batches), counts.full_counts, books.duplicate_invoices)
    narrator.result(f"{facts.batches} batches with the same 3 orders, {facts.full_counts} full counts at once")
    await narrator.breathe()
    await _open_everything(stage)
    await stage.stop()
    return facts


async def with_locks(stage: Stage, narrator: Narrator) -> WithLocks:
    """Three replicas with locks: the first whose tick comes runs the job, the others skip it."""
    narrator.scene(
        "With locks",
        "The same jobs under @on_one_instance and @without_overlapping. The first replica whose tick comes takes the "
        "job's lease and keeps it; the others skip their ticks, also those during a long count.",
    )
    books_before, counts_before = await stage.partners.accounting(), await stage.partners.warehouse()
    await stage.partners.switch_warehouse(WarehouseSwitches(hold_counts=True))
    await stage.shop.place_orders(3)
    mark = stage.journal.mark
    await stage.start(locks=True)
    await stage.journal.wait_for("invoices.exported", after=mark, within_s=_patience(stage))
    await stage.journal.wait_until(
        lambda: _others_skipped(stage, mark), "skipped ticks of the others", within_s=_patience(stage, ticks=_SKIPS)
    )
    books, counts = await stage.partners.accounting(), await stage.partners.warehouse()
    facts = WithLocks(
        batches=len(books.batches) - len(books_before.batches),
        full_counts=counts.full_counts - counts_before.full_counts,
        skipped_ticks=stage.journal.count("tenure.JobSkipped", after=mark),
    )
    narrator.result(
        f"{facts.batches} batch, {facts.full_counts} full count, {facts.skipped_ticks} ticks skipped meanwhile"
    )
    await _open_everything(stage)
    await narrator.breathe()
    return facts


def _others_skipped(stage: Stage, mark: int) -> bool:
    def skipped(instance: str, job: str) -> int:
        return stage.journal.count("tenure.JobSkipped", after=mark, instance=instance, key=job)

    return all(
        sum(skipped(instance, job) >= _SKIPS for instance in INSTANCES) >= len(INSTANCES) - 1
        for job in (INVOICE_EXPORT, STOCK_RECONCILIATION)
    )


async def kill_the_owner(stage: Stage, narrator: Narrator) -> Kill:
    """Kill -9 at the worst moment: accounting has booked the batch, and the orders are not marked."""
    narrator.scene(
        "kill -9 the owner",
        "The export's owner dies after its upload was booked and before the orders are marked. Nobody gives its lease "
        "back, so it expires after the ttl. The next owner finds a batch that was begun, and uploads it under its id.",
    )
    await stage.partners.switch_accounting(AccountingSwitches(hold_receipts=True))
    await stage.shop.place_orders(2)
    books = await stage.partners.wait_for_accounting(
        lambda statement: statement.waiting > 0 and bool(statement.batches), "an upload", within_s=_patience(stage)
    )
    victim, mark = books.batches[-1], stage.journal.mark
    killed_at = time.monotonic()
    await stage.kill(victim.sender)
    narrator.step(f"{victim.sender} is gone, with batch {victim.batch_id} booked and not marked.")
    await stage.partners.switch_accounting(AccountingSwitches())
    takeover = await stage.journal.wait_for(
        "invoices.exported", after=mark, within_s=_patience(stage), where=lambda e: e.instance != victim.sender
    )
    after = await stage.partners.accounting()
    facts = Kill(
        takeover_s=round(takeover.at - killed_at, 3),
        repeated_uploads=next(b.repeats for b in after.batches if b.batch_id == victim.batch_id),
        new_batches=sum(
            not set(victim.order_ids).isdisjoint(batch.order_ids)
            for batch in after.batches
            if batch.batch_id != victim.batch_id
        ),
    )
    narrator.result(
        f"{takeover.instance} took over from {victim.sender} after {facts.takeover_s:.2f} s "
        f"(ttl {stage.options.ttl_s:g} s, tick {stage.options.tick_s} s), and accounting recognised the batch"
    )
    await narrator.breathe()
    await stage.launch(victim.sender)
    return facts


async def stop_the_owner(stage: Stage, narrator: Narrator) -> Term:
    """SIGTERM, as every deploy sends it: the lease is handed back, and the next tick anywhere takes it."""
    narrator.scene(
        "SIGTERM the owner",
        "The reconciliation's owner is stopped as a deploy does it. It finishes what runs, hands its leases back, and "
        "the next tick anywhere takes the job: no waiting for a ttl.",
    )
    owner = await _running_owner(stage)
    mark, stopped_at = stage.journal.mark, time.monotonic()
    exit_code, handover = await asyncio.gather(
        stage.terminate(owner),
        stage.journal.wait_for(
            "stock.reconciled", after=mark, within_s=_patience(stage), where=lambda e: e.instance != owner
        ),
    )
    facts = Term(handover_s=round(handover.at - stopped_at, 3), exit_code=exit_code)
    narrator.result(
        f"{handover.instance} runs the job {facts.handover_s:.2f} s after {owner} was told to stop "
        f"(tick {stage.options.tick_s} s)"
    )
    await narrator.breathe()
    await stage.launch(owner)
    return facts


async def pause_the_owner(stage: Stage, narrator: Narrator) -> Fencing:
    """SIGSTOP between reading the counts and writing them, and SIGCONT after another replica wrote fresher ones."""
    narrator.scene(
        "A paused owner wakes up",
        "The owner has read the counts and stops before it writes them, as in a long garbage collection. Its lease "
        "expires, another replica writes fresher counts, and then it wakes up and sends its write. No lock can stop "
        "that: the fencing token in the products table does.",
    )
    owner = await _running_owner(stage)
    mark = stage.journal.mark
    stage.arm_pause(owner)
    await stage.journal.wait_for("rehearsal.paused", after=mark, within_s=_patience(stage), instance=owner)
    stage.past.note("paused", owner)
    paused_at = time.monotonic()
    stale = (await stage.shop.stock_of(SALMON_KIBBLE)).in_stock
    await stage.partners.put_on_shelf(Shelf(SALMON_KIBBLE, stale - 3))
    narrator.step(f"{owner} stands still with a count of {stale}; three bags are sold and shipped meanwhile.")
    fresh = await stage.journal.wait_for(
        "stock.reconciled", after=mark, within_s=_patience(stage), where=lambda e: e.instance != owner
    )
    # A later run would put a stale count right and hide it: hold the next one open while the paused owner writes.
    await stage.partners.switch_warehouse(WarehouseSwitches(hold_counts=True))
    await stage.partners.wait_for_warehouse(
        lambda statement: statement.open_counts > 0, "a count to hold open", within_s=_patience(stage)
    )
    before = await stage.shop.stock_of(SALMON_KIBBLE)
    narrator.step(f"{fresh.instance} has written {before.in_stock}. {owner} wakes up and sends its {stale}.")
    mark = stage.journal.mark
    await stage.resume(owner)
    paused_s = time.monotonic() - paused_at
    refused = await stage.journal.wait_for(
        "stock.stale_writes_refused", after=mark, within_s=_patience(stage), instance=owner
    )
    await stage.journal.wait_for("tenure.LeaseLost", after=mark, within_s=_patience(stage), instance=owner)
    now = await stage.shop.stock_of(SALMON_KIBBLE)
    await _open_everything(stage)
    facts = Fencing(
        stale_writes_refused=int(refused.fields["stale"]),
        final_stock_is_fresh=now == before and now.in_stock == stale - 3,
        stale_count=stale,
        fresh_count=before.in_stock,
        paused_s=round(paused_s, 3),
    )
    narrator.result(
        f"{facts.stale_writes_refused} stale writes of {owner} refused after a pause of {facts.paused_s:.1f} s; "
        f"salmon kibble is at {now.in_stock}, not at {stale}"
    )
    await narrator.breathe()
    return facts


async def settle(stage: Stage, narrator: Narrator, facts: WithLocks, placed_before: int) -> WithLocks:
    """Wait for the last export, and count what became of every order since the locks are on."""
    narrator.scene("The books", "Every order that was placed since the locks are on is booked, and booked once.")
    await stage.shop.place_orders(1)  # one more export, in which a duplicate of an earlier order would show
    orders = {str(order_id) for order_id in stage.shop.placed[placed_before:]}
    booked: Counter[str] = Counter()

    def all_booked(batches: Sequence[Sequence[str]]) -> bool:
        booked.clear()
        booked.update(order_id for batch in batches for order_id in batch if order_id in orders)
        return len(booked) == len(orders)

    with contextlib.suppress(NotSeenError):  # what was never booked is lost, and the report says so
        await stage.partners.wait_for_accounting(
            lambda statement: all_booked([batch.order_ids for batch in statement.batches]),
            "an export of every order",
            within_s=_patience(stage),
        )
    facts = msgspec.structs.replace(
        facts,
        orders=len(orders),
        duplicate_invoices=booked.total() - len(booked),
        lost_orders=len(orders) - len(booked),
    )
    narrator.result(f"{facts.orders} orders, {facts.duplicate_invoices} booked twice, {facts.lost_orders} lost")
    await narrator.breathe()
    return facts


async def _running_owner(stage: Stage) -> str:
    """Wait for a run of the reconciliation, and return who ran it: the owner, between two of its runs."""
    entry = await stage.journal.wait_for(
        "stock.reconciled", after=stage.journal.mark, within_s=_patience(stage, ticks=2)
    )
    return entry.instance


async def _open_everything(stage: Stage) -> None:
    await stage.partners.switch_accounting(AccountingSwitches())
    await stage.partners.switch_warehouse(WarehouseSwitches())


def _patience(stage: Stage, ticks: int = 1) -> float:
    return stage.options.ttl_s + (ticks + 1) * stage.options.tick_s + _PATIENCE_S
