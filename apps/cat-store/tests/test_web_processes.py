"""Orders at three real replica processes: storms of repeats, a replica that is killed, one that is told to stop."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from cat_store.demo.customer import Customer
from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.rehearsal import DIE_AT

Launch = Callable[..., Awaitable[list[Any]]]

REPEATS = 1000
# Requests on their way at the same time; the rest of a thousand follow as answers come.
AT_ONCE = 90
PATIENCE_S = 60.0


def order_of(customer: str) -> dict[str, Any]:
    return {"customer": customer, "lines": [{"product_id": SALMON_KIBBLE, "quantity": 1}]}


@pytest.fixture
async def http() -> Any:
    # No limit of the client's own: its queue of waiting requests takes quadratic time.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits) as client:
        yield client


@pytest.mark.matrix
async def test_a_thousand_requests_under_one_key_at_three_processes_place_one_order(
    launch: Launch, shop: Shop, http: httpx.AsyncClient
) -> None:
    replicas = await launch(3)
    customer = Customer(http, lambda: [each.url for each in replicas])

    at_once = asyncio.Semaphore(AT_ONCE)

    async def send(number: int) -> httpx.Response:
        async with at_once:
            return await customer.send(order_of("alice"), "one-key", replicas[number % 3].url)

    answers = await asyncio.gather(*(send(number) for number in range(REPEATS)))
    placed = [answer for answer in answers if answer.status_code == 201]
    told_to_wait = [answer for answer in answers if answer.status_code == 409]
    assert len(placed) + len(told_to_wait) == REPEATS
    assert {answer.json()["code"] for answer in told_to_wait} <= {"in-flight"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in told_to_wait)
    assert len({answer.content for answer in placed}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in placed) == 1
    assert await shop.orders_of(["alice"]) == {"alice": 1}
    for number in range(3):
        again = await send(number)
        assert (again.status_code, again.content) == (201, placed[0].content)
        other = await customer.send(order_of("bob"), "one-key", replicas[number].url)
        assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    assert await shop.orders_of(["bob"]) == {}


@pytest.mark.chaos
async def test_a_storm_of_repeats_places_each_order_once_while_a_replica_is_killed(
    launch: Launch, shop: Shop, http: httpx.AsyncClient
) -> None:
    replicas = await launch(3, IDEMPOTENCY_LOCK_TTL="3")
    customer = Customer(http, lambda: [each.url for each in replicas])
    names = [f"customer {number}" for number in range(60)]
    storm = [
        asyncio.create_task(customer.insist(order_of(name), name.replace(" ", "-"), within_s=PATIENCE_S, begin=begin))
        for name in names
        for begin in range(3)
    ]
    await asyncio.wait(storm, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.to_thread(replicas[1].kill)
    outcomes = await asyncio.gather(*storm)
    told = Counter((outcome.status, outcome.code) for outcome in outcomes)
    # The only other end: the order was committed, and its replica died before it could store the answer.
    assert set(told) <= {(201, ""), (409, "response-not-stored")}, told
    assert await shop.orders_of(names) == dict.fromkeys(names, 1)
    # A first answer that is out while a slow store is still being given it can be lost with its replica: the other
    # repeats are told so. Nobody is ever told of another order.
    for name, three in zip(names, zip(*[iter(outcomes)] * 3, strict=True), strict=True):
        assert len({outcome.body for outcome in three if outcome.status == 201}) <= 1, name


async def test_a_replica_that_is_told_to_stop_answers_what_is_under_way_and_takes_nothing_new(
    launch: Launch, shop: Shop, http: httpx.AsyncClient
) -> None:
    (replica,) = await launch(1)
    async with shop._engine.connect() as connection:
        await connection.execute(text("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE"))
        waiting = asyncio.create_task(http.post(f"{replica.url}/orders", json=order_of("alice")))
        await _blocked(shop, 1)
        stopping = asyncio.create_task(asyncio.to_thread(replica.terminate))
        await asyncio.to_thread(replica.wait_for_line, "replica.stopping")
        await _refuses(replica.url)
        await connection.rollback()
    assert (await waiting).status_code == 201
    assert await stopping == 0
    assert await shop.orders_of(["alice"]) == {"alice": 1}
    # The leases are handed back after the last request, and the connections are closed after that.
    told = [line.text for line in replica.lines]
    assert [_first(told, event) for event in ("order.placed", "LocksClosed", "replica.stopped")] == sorted(
        _first(told, event) for event in ("order.placed", "LocksClosed", "replica.stopped")
    )


@pytest.mark.matrix
async def test_a_request_that_outlasts_the_drain_is_cut_off_and_its_repeat_places_the_order(
    launch: Launch, shop: Shop, http: httpx.AsyncClient
) -> None:
    stopped, other = await launch(2, DRAIN="1", IDEMPOTENCY_LOCK_TTL="1")
    key = {"Idempotency-Key": "a-key"}
    held = {DIE_AT: "inside-transaction;2"}
    waiting = asyncio.create_task(http.post(f"{stopped.url}/orders", json=order_of("alice"), headers=key | held))
    await asyncio.to_thread(stopped.wait_for_line, "rehearsal.held")
    assert await asyncio.to_thread(stopped.terminate) == 0
    cut_off = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert isinstance(cut_off, httpx.TransportError) or cut_off.status_code >= 500
    customer = Customer(http, lambda: [other.url])
    outcome = await customer.insist(order_of("alice"), "a-key", within_s=PATIENCE_S)
    assert (outcome.status, outcome.replayed) == (201, False)
    assert await shop.orders_of(["alice"]) == {"alice": 1}


@pytest.mark.matrix
async def test_an_idle_connection_does_not_hold_up_a_stop(launch: Launch, http: httpx.AsyncClient) -> None:
    (replica,) = await launch(1, DRAIN="600")
    assert (await http.get(f"{replica.url}/health/live")).status_code == 200
    assert await asyncio.to_thread(replica.terminate) == 0


@pytest.mark.matrix
async def test_a_replica_whose_port_is_taken_says_so_and_fires_no_job(launch: Launch) -> None:
    (replica,) = await launch(1)
    port = re.search(r":(\d+)$", replica.url)
    assert port is not None
    (second,) = await launch(1, up=False, PORT=port[1])
    assert await asyncio.to_thread(second.wait, PATIENCE_S) == 1
    told = "\n".join(line.text for line in second.lines)
    assert f"The web server cannot have port {port[1]} of 127.0.0.1" in told
    assert "Look at CAT_STORE_HOST and CAT_STORE_PORT" in told
    assert "Traceback" not in told
    assert "tenure.LocksStarted" not in told


async def _blocked(shop: Shop, count: int) -> None:
    """Wait until so many sessions wait for a lock of the database's."""
    statement = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    async with asyncio.timeout(PATIENCE_S), shop._engine.connect() as connection:
        while await connection.scalar(statement) < count:
            await connection.rollback()
            await asyncio.sleep(0.02)


async def _refuses(url: str) -> None:
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient() as fresh:
        while True:
            try:
                await fresh.get(f"{url}/health/live")
            except httpx.ConnectError:
                return
            await asyncio.sleep(0.02)


def _first(lines: list[str], event: str) -> int:
    return next(number for number, line in enumerate(lines) if event in line)
