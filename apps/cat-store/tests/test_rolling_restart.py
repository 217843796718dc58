"""A deploy: every replica is restarted in its turn, under a constant stream of orders."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from cat_store.demo.shop import Shop

pytestmark = pytest.mark.chaos

Launch = Callable[..., Awaitable[list[Any]]]

CUSTOMERS = 6
ORDERS_EACH = 25


async def order_somewhere(urls: list[str], customer: str, http: httpx.AsyncClient, answers: "Counter[str]") -> None:
    """Place one order as a client does whose connection may be cut: the same key, at the next replica."""
    key = uuid.uuid4().hex
    body = {"customer": customer, "lines": [{"product_id": "catnip-mouse", "quantity": 1}]}
    for attempt in range(60):
        url = urls[attempt % len(urls)]
        try:
            answer = await http.post(f"{url}/orders", json=body, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            answers["cut"] += 1
        else:
            answers[str(answer.status_code)] += 1
            if answer.status_code == 201:
                return
        await asyncio.sleep(0.2)
    raise AssertionError(f"The order of {customer} was not placed: {answers}")


async def test_a_rolling_restart_under_orders_costs_cut_connections_and_nothing_else(
    launch: Launch, shop: Shop
) -> None:
    replicas = await launch(3, DRAIN="5")
    urls = [replica.url for replica in replicas]
    answers: Counter[str] = Counter()
    names = [f"customer-{number}" for number in range(CUSTOMERS * ORDERS_EACH)]

    async def customer(number: int, http: httpx.AsyncClient) -> None:
        for name in names[number::CUSTOMERS]:
            # A page that a customer opened before the deploy knows the old addresses; the list follows the restarts.
            await order_somewhere(urls, name, http, answers)
            await asyncio.sleep(0.15)

    async with httpx.AsyncClient(timeout=15) as http:
        ordering = asyncio.gather(*(customer(number, http) for number in range(CUSTOMERS)))
        for index, replica in enumerate(replicas):
            assert await asyncio.to_thread(replica.terminate, 30) == 0
            [urls[index]] = [fresh.url for fresh in await launch(1, DRAIN="5")]
        await ordering
    assert {answer for answer in answers if answer.startswith("5")} == set()
    assert await shop.orders_of(names) == Counter(names)
