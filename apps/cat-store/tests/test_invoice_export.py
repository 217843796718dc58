"""The invoice export under its locks: every order is booked, once, whatever dies in between."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import UUID

import pytest

from cat_store.demo.shop import Shop
from cat_store.invoices.export import INVOICE_EXPORT, ExportedBatch
from cat_store.partners.connection import PartnerUnavailableError
from cat_store.partners.wire import AccountingSwitches
from cat_store.replica import Replica
from tenure import ConfigurationError, LeaseLostError, LossReason, on_one_instance
from tenure.testing import ManualClock

Start = Callable[..., Awaitable[Replica]]
Until = Callable[[Callable[[], object]], Awaitable[None]]
Log = Callable[[str], list[str]]


async def tick(*instances: Replica) -> list[list[ExportedBatch] | None]:
    """Fire the export on each instance, as a schedule would, at once."""
    return await asyncio.gather(*(instance.invoice_export.run() for instance in instances))


async def take_over(instance: Replica) -> list[ExportedBatch]:
    """Fire ticks on an instance until one runs: the lease of the one before has to expire first."""
    async with asyncio.timeout(15):
        while (exported := await instance.invoice_export.run()) is None:
            await asyncio.sleep(0.05)
    return exported


def as_set(orders: Iterable[UUID]) -> set[str]:
    return {str(order) for order in orders}


async def test_one_of_three_instances_exports_and_the_others_skip(
    start: Start, shop: Shop, partners: Any, log: Log
) -> None:
    orders = await shop.place_orders(3)
    instances = [await start() for _ in range(3)]
    results = await tick(*instances)
    assert partners.booked == [as_set(orders)]
    assert sorted(result is None for result in results) == [False, True, True]
    assert len(log("runs on this instance")) == 1
    assert len(log("InvoiceExport.run: it runs on another instance")) == 2
    assert len(log("Exported 3 invoices in batch acc_")) == 1


async def test_a_tick_with_nothing_due_opens_no_batch(start: Start, partners: Any) -> None:
    assert await tick(await start()) == [[]]
    assert partners.accounting.statement().opened == 0


async def test_a_night_without_an_export_is_caught_up_by_the_next_one(start: Start, shop: Shop, partners: Any) -> None:
    owner = await start()
    await tick(owner)
    monday, tuesday = await shop.place_orders(2), await shop.place_orders(1)
    await tick(owner)
    assert partners.booked == [as_set([*monday, *tuesday])]


async def test_the_job_moves_to_another_instance_when_its_owner_dies(start: Start, shop: Shop, partners: Any) -> None:
    # The first instance's clock stands still: it renews nothing, as if its process had died.
    dead, survivor = await start(clock=ManualClock(), lock_ttl_s=1), await start(lock_ttl_s=1)
    first = await shop.place_orders(3)
    await tick(dead)
    second = await shop.place_orders(1)
    assert await survivor.invoice_export.run() is None  # the lease is still the dead one's
    await take_over(survivor)
    assert partners.booked == [as_set(first), as_set(second)]


async def test_an_owner_that_dies_after_its_upload_leaves_no_order_booked_twice(
    start: Start, gate: Any, shop: Shop, partners: Any, until: Until
) -> None:
    held = gate("PUT")
    dead = await start(clock=ManualClock(), lock_ttl_s=1, transport=held)
    survivor = await start(lock_ttl_s=1)
    orders = await shop.place_orders(3)
    run = asyncio.create_task(dead.invoice_export.run())
    await until(lambda: held.holds)  # booked; the answer has not arrived, and no order is marked
    run.cancel()
    later = await shop.place_orders(1)
    [resumed, new] = await take_over(survivor)
    assert resumed == ExportedBatch(resumed.batch_id, invoices=3, resumed=True)
    assert not new.resumed
    assert partners.booked == [as_set(orders), as_set(later)]
    assert partners.accounting.statement().repeated_uploads == 1
    assert await survivor.invoice_export.run() == []


async def test_an_owner_that_dies_before_its_upload_leaves_no_order_out(
    start: Start, gate: Any, shop: Shop, partners: Any
) -> None:
    refusing = gate("PUT")
    refusing.refused = True
    owner = await start(transport=refusing)
    orders = await shop.place_orders(3)
    with pytest.raises(PartnerUnavailableError):
        await owner.invoice_export.run()
    assert partners.booked == []
    refusing.refused = False
    refusing.open()
    [batch] = await owner.invoice_export.run()
    assert batch.resumed
    assert partners.booked == [as_set(orders)]
    assert partners.accounting.statement().opened == 1


async def test_an_upload_whose_answer_is_lost_is_recognised_when_it_comes_again(
    start: Start, gate: Any, shop: Shop, partners: Any
) -> None:
    losing = gate("PUT")
    losing.lost = True
    owner = await start(transport=losing)
    orders = await shop.place_orders(2)
    for _ in range(2):
        with pytest.raises(PartnerUnavailableError):
            await owner.invoice_export.run()
    losing.lost = False
    losing.open()
    await owner.invoice_export.run()
    assert partners.booked == [as_set(orders)]
    assert partners.accounting.statement().repeated_uploads == 2


@pytest.mark.parametrize("where", ["the shop's database", "a Valkey"])
async def test_a_paused_owner_cannot_put_exported_orders_into_a_batch_of_its_own(
    *, start: Start, gate: Any, shop: Shop, partners: Any, until: Until, valkey_url: str, where: str
) -> None:
    held = gate("POST")
    locks_url = None if where == "the shop's database" else valkey_url
    paused = await start(clock=ManualClock(), lock_ttl_s=1, transport=held, locks_url=locks_url)
    other = await start(lock_ttl_s=1, locks_url=locks_url)
    orders = await shop.place_orders(3)
    late = asyncio.create_task(paused.invoice_export.run())
    await until(lambda: held.holds)  # it has read what is due, and stands before writing it down
    [batch] = await take_over(other)
    held.open()  # it wakes up, and its clock tells it nothing
    with pytest.raises(LeaseLostError) as caught:
        await late
    assert caught.value.reason is LossReason.REFUSED
    assert partners.booked == [as_set(orders)]
    assert batch.invoices == 3


@pytest.mark.parametrize(
    "switches",
    [
        AccountingSwitches(fail_with=500),
        AccountingSwitches(fail_with=503),
        AccountingSwitches(fail_with=403),
        AccountingSwitches(garbage=True),
    ],
    ids=["500", "503", "403", "garbage"],
)
async def test_an_accounting_system_that_fails_costs_a_tick_and_no_order(
    start: Start, shop: Shop, partners: Any, switches: AccountingSwitches
) -> None:
    owner, other = await start(), await start()
    orders = await shop.place_orders(3)
    partners.accounting.switches = switches
    with pytest.raises(Exception, match=r"Accounting (refused|answered)") as caught:
        await owner.invoice_export.run()
    assert str(orders[0]) not in str(caught.value)
    assert await other.invoice_export.run() is None  # the owner keeps its place
    partners.accounting.switches = AccountingSwitches()
    await owner.invoice_export.run()
    assert partners.booked == [as_set(orders)]


async def test_a_run_in_progress_is_not_overlapped_by_the_next_tick(
    start: Start, shop: Shop, partners: Any, until: Until, log: Log
) -> None:
    owner = await start()
    await shop.place_orders(1)
    partners.accounting.switches = AccountingSwitches(hold_receipts=True)
    run = asyncio.create_task(owner.invoice_export.run())
    await until(lambda: partners.booked)
    assert await owner.invoice_export.run() is None
    assert len(log("InvoiceExport.run: a run is still in progress")) == 1
    partners.accounting.switches = AccountingSwitches()
    assert len(await run) == 1


def test_a_second_job_on_the_exports_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="invoices:nightly-export"):

        @on_one_instance(INVOICE_EXPORT)
        async def another() -> None: ...
