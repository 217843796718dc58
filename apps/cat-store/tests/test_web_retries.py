"""Requests that come twice, on instances that share a database: carried out once, and answered alike."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.partners.wire import AccountingSwitches

Serve = Callable[..., Awaitable[httpx.AsyncClient]]
Until = Callable[[Callable[[], object]], Awaitable[None]]
Log = Callable[[str], list[str]]

ORDER = {"customer": "alice", "lines": [{"product_id": SALMON_KIBBLE, "quantity": 2}]}
KEY = {"Idempotency-Key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}
ADMIN = {"X-Admin-Token": "s3cret-administrator"}
EXPORT = "/admin/invoice-export"


async def orders_of(client: httpx.AsyncClient) -> list[Any]:
    listed: list[Any] = (await client.get("/orders?limit=100")).json()["orders"]
    return listed


async def test_a_repeated_order_is_placed_once_on_whichever_instance_it_comes(serve: Serve) -> None:
    one, other = await serve(), await serve()
    first = await one.post("/orders", json=ORDER, headers=KEY)
    again = await other.post("/orders", json=ORDER, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["location"] == first.headers["location"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert len(await orders_of(one)) == 1


async def test_an_order_without_a_key_is_placed_as_often_as_it_comes(serve: Serve) -> None:
    one, other = await serve(), await serve()
    for client in (one, other, one):
        assert (await client.post("/orders", json=ORDER)).status_code == 201
    assert len(await orders_of(one)) == 3


async def test_another_order_under_the_same_key_is_refused(serve: Serve) -> None:
    one, other = await serve(), await serve()
    await one.post("/orders", json=ORDER, headers=KEY)
    refused = await other.post("/orders", json=ORDER | {"customer": "bob"}, headers=KEY)
    assert (refused.status_code, refused.json()["code"]) == (422, "key-reused")
    assert len(await orders_of(one)) == 1


async def test_an_order_that_was_refused_may_be_placed_under_its_key_once_it_can_be(serve: Serve, shop: Shop) -> None:
    web = await serve()
    body = {"customer": "alice", "lines": [{"product_id": "laser-pointer", "quantity": 1}]}
    assert (await web.post("/orders", json=body, headers=KEY)).status_code == 400
    await shop.offer("laser-pointer", "Laser pointer", 999)
    assert (await web.post("/orders", json=body, headers=KEY)).status_code == 201


async def test_the_records_may_be_in_valkey(serve: Serve, valkey_server: Any) -> None:
    one, other = [await serve(idempotency_url=valkey_server.url(scheme="valkey")) for _ in range(2)]
    first = await one.post("/orders", json=ORDER, headers=KEY)
    again = await other.post("/orders", json=ORDER, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert len(await orders_of(one)) == 1
    assert (await one.get("/health/ready")).json()["idempotency"] == "ok"


async def test_a_purge_deletes_what_has_ended_and_no_more(start: Any, serve: Serve, until: Until) -> None:
    web = await serve(idempotency_retention_s=0.05)
    await web.post("/orders", json=ORDER, headers=KEY)
    lasting = await serve()
    await lasting.post("/orders", json=ORDER, headers={"Idempotency-Key": "another"})
    purging = await start()
    deleted = 0
    async with asyncio.timeout(15):
        while deleted == 0:
            deleted += await purging.record_purge.run()
    assert deleted == 1
    assert (await lasting.post("/orders", json=ORDER, headers={"Idempotency-Key": "another"})).headers[
        "idempotent-replayed"
    ]


@pytest.mark.parametrize("headers", [{}, {"X-Admin-Token": "S3cret-administrator"}, {"X-Admin-Token": ""}])
@pytest.mark.parametrize("key", [{}, KEY])
async def test_nobody_but_an_administrator_exports(
    serve: Serve, shop: Shop, partners: Any, headers: dict[str, str], key: dict[str, str]
) -> None:
    web = await serve()
    await shop.place_orders(1)
    # An administrator's answer is nothing to somebody who knows its key.
    await web.post(EXPORT, headers=ADMIN | KEY)
    refused = await web.post(EXPORT, headers=headers | key)
    assert refused.status_code == refused.json()["status"] == 403
    assert refused.headers["content-type"] == "application/problem+json"
    assert len(partners.booked) == 1


async def test_without_a_token_in_the_settings_nobody_is_an_administrator(serve: Serve) -> None:
    web = await serve(admin_token=None)
    assert (await web.post(EXPORT, headers={"X-Admin-Token": ""} | KEY)).status_code == 403


async def test_the_export_by_hand_needs_a_key(serve: Serve) -> None:
    refused = await (await serve()).post(EXPORT, headers=ADMIN)
    assert (refused.status_code, refused.json()["code"]) == (400, "missing-key")


async def test_of_two_exports_by_hand_one_exports_and_the_other_finds_nothing(
    serve: Serve, shop: Shop, partners: Any, gate: Any, until: Until
) -> None:
    held = gate("PUT")
    one, other = await serve(transport=held), await serve(transport=held)
    await shop.place_orders(3)
    requests = [
        asyncio.create_task(client.post(EXPORT, headers=ADMIN | {"Idempotency-Key": f"by-hand-{number}"}))
        for number, client in enumerate((one, other))
    ]
    await until(lambda: held.holds)
    held.open()
    answers = await asyncio.gather(*requests)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert sorted(answer.json()["exported"] for answer in answers) == [0, 3]
    assert len(partners.booked) == 1


async def test_a_repeated_export_tells_what_the_first_one_exported(serve: Serve, shop: Shop, partners: Any) -> None:
    one, other = await serve(), await serve()
    await shop.place_orders(3)
    first = await one.post(EXPORT, headers=ADMIN | KEY)
    await shop.place_orders(1)
    again = await other.post(EXPORT, headers=ADMIN | KEY)
    assert first.json()["exported"] == again.json()["exported"] == 3
    assert again.headers["idempotent-replayed"] == "true"
    assert len(partners.booked) == 1


async def test_an_export_that_meets_a_long_run_is_told_to_come_back(
    start: Any, serve: Serve, shop: Shop, gate: Any, until: Until
) -> None:
    held = gate("PUT")
    running, web = await start(transport=held), await serve()
    await shop.place_orders(1)
    tick = asyncio.create_task(running.invoice_export.run())
    await until(lambda: held.holds)
    refused = await web.post(EXPORT, headers=ADMIN | KEY)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:cat-store:export-under-way")
    assert int(refused.headers["retry-after"]) >= 1
    held.open()
    await tick
    # The refusal was no outcome: the same request is carried out now.
    assert (await web.post(EXPORT, headers=ADMIN | KEY)).json() == {"exported": 0, "batches": []}


async def test_a_scheduled_run_skips_its_tick_during_an_export_by_hand(
    start: Any, serve: Serve, shop: Shop, gate: Any, until: Until
) -> None:
    held = gate("PUT")
    scheduled, web = await start(), await serve(transport=held)
    await shop.place_orders(1)
    by_hand = asyncio.create_task(web.post(EXPORT, headers=ADMIN | KEY))
    await until(lambda: held.holds)
    assert await scheduled.invoice_export.run() is None
    held.open()
    assert (await by_hand).json()["exported"] == 1


async def test_an_export_whose_partner_fails_is_answered_and_may_be_repeated(
    serve: Serve, shop: Shop, partners: Any, log: Log
) -> None:
    web = await serve()
    await shop.place_orders(1)
    partners.accounting.switches = AccountingSwitches(fail_with=500)
    failed = await web.post(EXPORT, headers=ADMIN | KEY)
    assert (failed.status_code, failed.json()["type"]) == (502, "urn:cat-store:partner-failed")
    assert log("Accounting answered POST batches with 500")
    partners.accounting.switches = AccountingSwitches()
    assert (await web.post(EXPORT, headers=ADMIN | KEY)).json()["exported"] == 1
