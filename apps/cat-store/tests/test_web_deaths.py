"""kill -9 at every moment of a request, a hundred times each, and what the client's repeats come to."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest

from cat_store.demo.customer import Customer, Outcome
from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.rehearsal import DIE_AT, Mark

Launch = Callable[..., Awaitable[list[Any]]]

# A replica's pool has fifteen connections, and each request that dies inside of its transaction holds one.
TOGETHER = 10
DEATHS = 10
PATIENCE_S = 60.0

# What the clients of a replica that was killed are told, and how many orders each of them has.
WITH_RECORDS_IN_THE_DATABASE = {
    Mark.BEFORE_THE_HANDLER: ("201", 1),
    Mark.INSIDE_THE_TRANSACTION: ("201", 1),
    Mark.AFTER_THE_COMMIT: ("409 response-not-stored", 1),
    Mark.BEFORE_THE_LAST_BYTE: ("201 replayed", 1),
}
WITH_RECORDS_ELSEWHERE = WITH_RECORDS_IN_THE_DATABASE | {
    # The order and the record are two writes: the repeat cannot know, and places it again.
    Mark.AFTER_THE_COMMIT: ("201", 2),
}


def told(outcome: Outcome) -> str:
    return " ".join(filter(None, [str(outcome.status), outcome.code, "replayed" if outcome.replayed else ""]))


class Deaths:
    """Replicas that die with requests in them, one after the other, and one that survives."""

    def __init__(self, launch: Launch, mark: Mark, **settings: str) -> None:
        self._launch = launch
        self._mark = mark
        # Short, for the repeats wait for its end. At the last mark nobody waits, and the answer is to be
        # stored by then: a response waits for the store no longer than a third of this.
        self._settings = {"IDEMPOTENCY_LOCK_TTL": "30" if mark is Mark.BEFORE_THE_LAST_BYTE else "1"} | settings
        self.survivor: Any = None
        self._next: Any = None

    async def start(self) -> None:
        self.survivor, self._next = await self._launch(2, **self._settings)

    async def happen(self, names: list[str], http: httpx.AsyncClient) -> list[Outcome]:
        """Have a replica die with the orders of *names* in it, and return what each client was told in the end."""
        victim = self._next
        customer = Customer(http, lambda: [victim.url, self.survivor.url])
        headers = {DIE_AT: f"{self._mark.value};{len(names)}"}
        clients = [
            asyncio.create_task(customer.insist(order_of(name), name, within_s=PATIENCE_S, headers=headers))
            for name in names
        ]
        # Meanwhile: an interpreter's start takes longer than everything else.
        (self._next,) = await self._launch(1, **self._settings)
        outcomes = await asyncio.gather(*clients)
        assert await asyncio.to_thread(victim.wait, PATIENCE_S) == -9
        assert all(outcome.unanswered >= 1 for outcome in outcomes)
        return outcomes

    def attempts(self) -> dict[str, int]:
        """The attempts of the orders that the survivor placed, by the order's id."""
        lines = [msgspec.json.decode(line.text) for line in self.survivor.lines if '"order.placed"' in line.text]
        return {line["order"]: line["attempt"] for line in lines}


def order_of(name: str) -> dict[str, Any]:
    return {"customer": name, "lines": [{"product_id": SALMON_KIBBLE, "quantity": 1}]}


async def die(deaths: Deaths, shop: Shop, count: int) -> tuple[Counter[str], Counter[int], list[Outcome]]:
    """Return what was told how often, how many orders how many clients have, and the outcomes."""
    await deaths.start()
    outcomes: list[Outcome] = []
    names: list[str] = []
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        for number in range(count):
            batch = [f"customer-{number}-{each}" for each in range(TOGETHER)]
            names += batch
            outcomes += await deaths.happen(batch, http)
    orders = await shop.orders_of(names)
    return Counter(map(told, outcomes)), Counter(orders[name] for name in names), outcomes


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("mark", "deaths"),
    [
        # The worst moment once in every run; the rest takes minutes.
        (Mark.AFTER_THE_COMMIT, 1),
        *(pytest.param(mark, DEATHS, marks=pytest.mark.chaos) for mark in Mark),
    ],
)
async def test_an_order_is_placed_once_whenever_its_replica_is_killed(
    launch: Launch, shop: Shop, mark: Mark, deaths: int
) -> None:
    answer, orders = WITH_RECORDS_IN_THE_DATABASE[mark]
    answers, counts, _ = await die(Deaths(launch, mark), shop, deaths)
    assert counts == {orders: deaths * TOGETHER}
    assert answers == {answer: deaths * TOGETHER}


@pytest.mark.chaos
@pytest.mark.parametrize("mark", Mark)
async def test_with_the_records_elsewhere_every_repeat_is_told_that_it_is_one(
    launch: Launch, shop: Shop, valkey_server: Any, mark: Mark
) -> None:
    answer, orders = WITH_RECORDS_ELSEWHERE[mark]
    killing = Deaths(launch, mark, IDEMPOTENCY_URL=valkey_server.url(scheme="valkey"))
    answers, counts, outcomes = await die(killing, shop, DEATHS)
    assert counts == {orders: DEATHS * TOGETHER}
    assert answers == {answer: DEATHS * TOGETHER}
    carried_out_again = [msgspec.json.decode(each.body)["id"] for each in outcomes if not each.replayed]
    attempts = killing.attempts()
    assert all(attempts[order] > 1 for order in carried_out_again)
    assert len(carried_out_again) == (0 if answer == "201 replayed" else DEATHS * TOGETHER)
