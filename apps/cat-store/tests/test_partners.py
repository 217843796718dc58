"""The partners' own behaviour, and what the shop makes of a partner that misbehaves on the wire."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from cat_store.partners.connection import Partner, PartnerUnavailableError, PartnerUnreadableError
from cat_store.partners.wire import (
    AccountingStatement,
    Health,
    OpenedBatch,
    OpenedCount,
    WarehouseStatement,
    WarehouseSwitches,
)
from tenure_testbed import free_port

Until = Callable[[Callable[[], object]], Awaitable[None]]

INVOICE: dict[str, Any] = {
    "order_id": "ord_1001",
    "customer": "alice",
    "total_cents": 1899,
    "placed_at": "2026-09-25T08:59:30Z",
}


@pytest.fixture
async def http(partners: Any) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"x-sender": "cat-store-1"}
    async with httpx.AsyncClient(base_url="http://partners", headers=headers, transport=partners.transport) as client:
        yield client


async def upload(http: httpx.AsyncClient, batch_id: str, *invoices: dict[str, Any]) -> httpx.Response:
    return await http.put(f"/accounting/batches/{batch_id}", json={"invoices": invoices})


async def open_batch(http: httpx.AsyncClient) -> str:
    batch_id: str = (await http.post("/accounting/batches")).json()["batch_id"]
    return batch_id


async def test_a_batch_that_comes_again_is_recognised(http: httpx.AsyncClient, partners: Any) -> None:
    batch = await open_batch(http)
    assert (await upload(http, batch, INVOICE)).json() == {"batch_id": batch, "recorded": True}
    assert (await upload(http, batch, INVOICE)).json() == {"batch_id": batch, "recorded": False}
    statement = partners.accounting.statement()
    assert (len(statement.batches), statement.duplicate_invoices, statement.repeated_uploads) == (1, 0, 1)


async def test_an_order_in_two_batches_is_booked_twice(http: httpx.AsyncClient, partners: Any) -> None:
    for _ in range(2):
        await upload(http, await open_batch(http), INVOICE)
    assert partners.accounting.statement().duplicate_invoices == 1


async def test_a_batch_cannot_change_its_content(http: httpx.AsyncClient) -> None:
    batch = await open_batch(http)
    await upload(http, batch, INVOICE)
    assert (await upload(http, batch, {**INVOICE, "total_cents": 1})).status_code == 409


async def test_a_batch_that_was_never_opened_is_refused(http: httpx.AsyncClient) -> None:
    assert (await upload(http, "acc_unknown", INVOICE)).status_code == 404


@pytest.mark.parametrize(
    "invoices",
    [[], [{**INVOICE, "total_cents": -1}], [{**INVOICE, "order_id": ""}], [{"order_id": "ord_1001"}]],
    ids=["none", "negative", "nameless", "incomplete"],
)
async def test_an_upload_that_is_none_is_refused(http: httpx.AsyncClient, invoices: list[dict[str, Any]]) -> None:
    assert (await upload(http, await open_batch(http), *invoices)).status_code == 400


async def test_a_count_has_every_shelf_once_and_ends_with_its_last_page(http: httpx.AsyncClient, partners: Any) -> None:
    count = (await http.post("/warehouse/counts")).json()
    assert partners.warehouse.statement().open_counts == 1
    page = (await http.get(f"/warehouse/counts/{count['count_id']}/pages/1")).json()
    assert len({shelf["product_id"] for shelf in page["shelves"]}) == 3
    assert partners.warehouse.statement().open_counts == 0
    assert (await http.get(f"/warehouse/counts/{count['count_id']}/pages/2")).status_code == 404
    assert (await http.get("/warehouse/counts/unknown/pages/1")).status_code == 404


async def test_a_held_count_goes_on_until_the_switch_is_off(
    http: httpx.AsyncClient, partners: Any, until: Until
) -> None:
    partners.warehouse.switches = WarehouseSwitches(hold_counts=True)
    count = (await http.post("/warehouse/counts")).json()
    page = asyncio.create_task(http.get(f"/warehouse/counts/{count['count_id']}/pages/1"))
    await until(lambda: partners.warehouse.statement().open_counts == 1)
    assert not page.done()
    assert (await http.put("/warehouse/switches", json={})).status_code == 200
    assert (await page).status_code == 200


async def test_statements_and_switches_go_over_the_wire(http: httpx.AsyncClient) -> None:
    statement = await http.get("/accounting/statement")
    assert AccountingStatement(**statement.json()).opened == 0
    assert WarehouseStatement(**(await http.get("/warehouse/statement")).json()).full_counts == 0
    assert Health(**(await http.get("/health")).json()).service == "partners"
    assert (await http.put("/accounting/switches", json={"fail_with": 500})).status_code == 200
    assert (await http.post("/accounting/batches")).status_code == 500
    assert (await http.put("/accounting/switches", json={"fail_wiht": 500})).status_code == 400
    assert (await http.put("/warehouse/shelves", json={"product_id": "unknown", "count": 1})).status_code == 404
    assert (await http.put("/warehouse/shelves", json={"product_id": "catnip", "count": -1})).status_code == 400


async def test_a_partner_that_is_not_there_is_named_in_the_error() -> None:
    async with Partner("The warehouse", f"http://127.0.0.1:{free_port()}/", "cat-store-1") as partner:
        with pytest.raises(
            PartnerUnavailableError, match=r"The warehouse gave no answer to POST counts \(ConnectError"
        ):
            await partner.ask("POST", "counts", OpenedCount)


async def test_a_partner_that_never_answers_is_given_up() -> None:
    # The kernel accepts the connection; nobody reads from it.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        async with Partner("Accounting", url, "cat-store-1", answer_within_s=0.2) as partner:
            with pytest.raises(PartnerUnavailableError, match="ReadTimeout"):
                await partner.ask("POST", "batches", OpenedBatch)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>secret</html>", "something that is no OpenedBatch"),
        (200, b'{"batch_id": 7}', "something that is no OpenedBatch"),
        (200, b"\xff\xfe", "something that is no OpenedBatch"),
        (302, b"", "a redirect was not agreed"),
    ],
)
async def test_an_answer_that_was_not_agreed_is_refused_without_quoting_it(status: int, body: bytes, said: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body, headers={"location": "/login"}))
    async with Partner("Accounting", "http://accounting/", "cat-store-1", transport=transport) as partner:
        with pytest.raises(PartnerUnreadableError, match=said) as caught:
            await partner.ask("POST", "batches", OpenedBatch)
    assert "secret" not in str(caught.value)
