"""The scene of the customers who repeat their orders, and of the replica that dies in the middle of some."""

import asyncio
from typing import Any, Final
from uuid import uuid4

import httpx

from cat_store.demo.customer import Customer, Outcome
from cat_store.demo.facts import KilledInTheMiddle, Orders
from cat_store.demo.narrator import Narrator
from cat_store.demo.stage import INSTANCES, RECORD_LOCK_TTL_S, Stage
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.inventory.reconciliation import STOCK_RECONCILIATION
from cat_store.invoices.export import INVOICE_EXPORT
from cat_store.rehearsal import DIE_AT, Mark

__all__ = ["repeat_orders"]

_ORDERS: Final = 20
"""How many customers repeat their orders, with keys and without."""

_PATIENCE_S: Final = RECORD_LOCK_TTL_S + 20.0
"""What a busy machine may add to the time after which a request may be repeated."""

_HELD: Final = 99
"""Requests that wait at a mark for so many others wait until the process dies."""


async def repeat_orders(stage: Stage, narrator: Narrator) -> Orders:
    """Customers send their orders to every replica, with keys and without; then a replica dies among them."""
    narrator.scene(
        "A repeated order",
        "Customers whose answers are lost send their orders again, to whichever replica answers. Without a key the "
        "shop cannot tell a repeat from a second order. With one it places the first and answers the rest alike.",
    )
    await stage.wait_until_up()  # one was started again a scene ago
    async with httpx.AsyncClient(timeout=_PATIENCE_S) as http:
        customer = Customer(http, stage.urls)
        without, _ = await _everywhere(stage, customer, keys=False)
        narrator.step(f"Without keys: {_ORDERS} orders, sent to three replicas each, were placed {without} times.")
        with_keys, requests = await _everywhere(stage, customer, keys=True)
        killed = await _kill_in_the_middle(stage, narrator, customer)
    facts = Orders(
        placed=_ORDERS + killed.keys,
        retries=requests - _ORDERS + killed.retries,
        duplicates=with_keys - _ORDERS + killed.orders - killed.keys,
        duplicates_without_keys=without - _ORDERS,
        killed_in_the_middle=killed,
    )
    narrator.result(
        f"{facts.duplicates_without_keys} duplicates of {_ORDERS} orders without keys, {facts.duplicates} of "
        f"{facts.placed} with them, in spite of {facts.retries} repeats and kill -9 of {killed.instance} in the middle"
    )
    await narrator.breathe()
    return facts


async def _everywhere(stage: Stage, customer: Customer, *, keys: bool) -> tuple[int, int]:
    """Send orders to all replicas at once, and return how many were placed, by how many requests."""
    names = [f"{'patient' if keys else 'hasty'} customer {number}" for number in range(_ORDERS)]

    async def order(name: str) -> int:
        if not keys:
            answers = [customer.send(_order(name), None, url) for url in stage.urls()]
            return len([answer.raise_for_status() for answer in await asyncio.gather(*answers)])
        key = str(uuid4())
        outcomes = [
            customer.insist(_order(name), key, within_s=_PATIENCE_S, begin=begin) for begin in range(len(INSTANCES))
        ]
        return sum(outcome.requests for outcome in await asyncio.gather(*outcomes))

    requests = sum(await asyncio.gather(*(order(name) for name in names)))
    return (await stage.shop.orders_of(names)).total(), requests


async def _kill_in_the_middle(stage: Stage, narrator: Narrator, customer: Customer) -> KilledInTheMiddle:
    """Kill a replica with two orders in it: one that is written and not committed, one that is committed."""
    owners = {await stage.owner_of(job) for job in (INVOICE_EXPORT, STOCK_RECONCILIATION)}
    # One that runs no job: what is measured is the orders, not another takeover.
    victim = next((name for name in INSTANCES if name not in owners), INSTANCES[-1])
    at = stage.urls().index(stage.url_of(victim))
    names = ["customer cut off before the commit", "customer cut off after the commit"]
    marks = [f"{Mark.INSIDE_THE_TRANSACTION.value};{_HELD}", Mark.AFTER_THE_COMMIT.value]
    outcomes: list[asyncio.Task[Outcome]] = []
    mark = stage.journal.mark
    for name, death in zip(names, marks, strict=True):
        outcomes.append(
            asyncio.create_task(
                customer.insist(_order(name), str(uuid4()), within_s=_PATIENCE_S, begin=at, headers={DIE_AT: death})
            )
        )
        if len(outcomes) == 1:
            await stage.journal.wait_for("rehearsal.held", after=mark, within_s=_PATIENCE_S, instance=victim)
    narrator.step(f"{victim} dies with two orders in it: one is not committed, the other is, and its answer is lost.")
    before, after = await asyncio.gather(*outcomes)
    await asyncio.to_thread(stage.replicas[victim].wait, _PATIENCE_S)
    counted = await stage.shop.orders_of(names)
    await stage.launch(victim)
    return KilledInTheMiddle(
        instance=victim,
        keys=len(names),
        orders=counted.total(),
        retries=before.requests + after.requests - len(names),
        before_the_commit=_told(before),
        after_the_commit=_told(after),
    )


def _told(outcome: Outcome) -> str:
    return f"{outcome.status} {outcome.code}".strip()


def _order(customer: str) -> dict[str, Any]:
    return {"customer": customer, "lines": [{"product_id": SALMON_KIBBLE, "quantity": 1}]}
