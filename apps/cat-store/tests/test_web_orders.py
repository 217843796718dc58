"""Orders over HTTP: what is placed, what is shown, and what is refused."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import CATALOGUE, SALMON_KIBBLE
from cat_store.inventory.models import Product

Serve = Callable[..., Awaitable[httpx.AsyncClient]]

ORDER = {"customer": "alice", "lines": [{"product_id": SALMON_KIBBLE, "quantity": 2}]}
JSON = {"content-type": "application/json"}


@pytest.fixture
async def web(serve: Serve) -> httpx.AsyncClient:
    return await serve()


async def test_a_placed_order_is_found_where_its_location_says(web: httpx.AsyncClient) -> None:
    placed = await web.post("/orders", json=ORDER)
    assert placed.status_code == 201
    found = await web.get(placed.headers["location"])
    assert found.status_code == 200
    assert found.json() == placed.json()
    assert found.json()["total_cents"] == 2 * 1899
    assert found.json()["lines"] == [{"product_id": SALMON_KIBBLE, "quantity": 2, "price_cents": 1899}]
    assert found.json()["status"] == "placed"
    assert found.json()["invoiced_at"] is None


async def test_the_catalogue_is_listed(web: httpx.AsyncClient) -> None:
    products = (await web.get("/products")).json()
    assert [product["id"] for product in products] == sorted(item.id for item in CATALOGUE)
    assert {product["price_cents"] for product in products} == {item.price_cents for item in CATALOGUE}


async def test_pages_show_every_order_once_newest_first(web: httpx.AsyncClient) -> None:
    placed = [(await web.post("/orders", json=ORDER)).json()["id"] for _ in range(5)]
    shown: list[str] = []
    following: str | None = "/orders?limit=2"
    sizes = []
    while following is not None:
        page = (await web.get(following)).json()
        sizes.append(len(page["orders"]))
        shown += [order["id"] for order in page["orders"]]
        following = page["next"]
    assert shown == placed[::-1]
    assert sizes == [2, 2, 1]


async def test_a_full_last_page_names_no_next_one(web: httpx.AsyncClient) -> None:
    await web.post("/orders", json=ORDER)
    assert (await web.get("/orders?limit=1")).json()["next"] is None


def lines(*quantities: Any, product: str = SALMON_KIBBLE) -> dict[str, Any]:
    return {"customer": "alice", "lines": [{"product_id": product, "quantity": each} for each in quantities]}


REFUSED = [
    lines(0),
    lines(-1),
    lines(1001),
    lines(10**30),
    lines("2"),
    lines(True),
    lines(1.5),
    lines(None),
    lines(1, 2),
    lines(),
    lines(*range(1, 52)),
    lines(1, product=""),
    lines(1, product="ż"),
    lines(1, product="a" * 101),
    ORDER | {"customer": ""},
    ORDER | {"customer": "  "},
    ORDER | {"customer": "c" * 101},
    ORDER | {"customer": "al\x00ice"},
    ORDER | {"customer": "al\nice"},
    ORDER | {"customer": 7},
    ORDER | {"discount": 100},
    {"customer": "alice"},
    {"customer": "alice", "lines": {}},
    [ORDER],
    "order",
    None,
]
NO_JSON = {
    "nothing": b"",
    "half": b"{",
    "no UTF-8": b"\xff\xfe",
    "half a surrogate pair": b'{"customer": "\\ud800"}',
    "deep": b"[" * 10_000,
    "beyond all numbers": b'{"customer": "a", "lines": [1e400]}',
    "no number": b"NaN",
}


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "a-key"}], ids=["without a key", "with a key"])
async def test_an_order_that_cannot_be_is_refused_as_problem_details(
    web: httpx.AsyncClient, subtests: pytest.Subtests, key: dict[str, str]
) -> None:
    # What never reached the desk settles nothing: the same key serves all of them.
    for body in REFUSED:
        with subtests.test(body=body):
            refused = await web.post("/orders", content=json.dumps(body).encode(), headers=JSON | key)
            assert refused.status_code == refused.json()["status"] == 400
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["type"] == "urn:cat-store:invalid-body"
    assert (await web.get("/orders")).json()["orders"] == []
    assert (await web.post("/orders", json=ORDER, headers=key)).status_code == 201


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "a-key"}], ids=["without a key", "with a key"])
async def test_what_is_no_json_is_refused_as_problem_details(
    web: httpx.AsyncClient, subtests: pytest.Subtests, key: dict[str, str]
) -> None:
    for name, body in NO_JSON.items():
        with subtests.test(body=name):
            refused = await web.post("/orders", content=body, headers=JSON | key)
            assert refused.status_code == refused.json()["status"] == 400
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["type"].startswith("urn:cat-store:")


async def test_a_refused_order_names_the_products_that_the_shop_does_not_sell(web: httpx.AsyncClient) -> None:
    body = {"customer": "alice", "lines": [{"product_id": each, "quantity": 1} for each in ("dog", SALMON_KIBBLE)]}
    refused = (await web.post("/orders", json=body)).json()
    assert refused["product_ids"] == ["dog"]
    assert refused["detail"] == "The shop sells no dog."


async def test_an_order_that_accounting_would_refuse_is_not_placed(web: httpx.AsyncClient, shop: Shop) -> None:
    # It would stop every export that it is in.
    async with shop._sessions.begin() as session:
        await session.execute(update(Product).where(Product.id == SALMON_KIBBLE).values(price_cents=2_000_000))
    refused = await web.post("/orders", json=lines(501))
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:cat-store:order-too-large")
    assert (await web.post("/orders", json=lines(500))).status_code == 201


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "a-key"}], ids=["without a key", "with a key"])
async def test_a_body_over_the_limit_is_refused(web: httpx.AsyncClient, key: dict[str, str]) -> None:
    refused = await web.post("/orders", content=b'{"customer": "' + b"a" * 70_000, headers=JSON | key)
    assert refused.status_code == 413
    assert refused.headers["content-type"] == "application/problem+json"


async def test_what_is_not_there_is_answered_with_problem_details(
    web: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    wanted = {
        "/orders/01a22d5e-3ec5-72ee-ae47-7b22aede2b5f": 404,
        "/orders/7": 404,
        "/orders/%00": 404,
        "/nowhere": 404,
        "/orders?limit=0": 400,
        "/orders?limit=101": 400,
        "/orders?limit=many": 400,
        "/orders?before=yesterday": 400,
    }
    for path, status in wanted.items():
        with subtests.test(path=path):
            answer = await web.get(path)
            assert answer.status_code == answer.json()["status"] == status
            assert answer.headers["content-type"] == "application/problem+json"


async def test_a_method_that_a_path_does_not_have_is_answered_with_problem_details(web: httpx.AsyncClient) -> None:
    answer = await web.put("/orders", json=ORDER)
    assert answer.status_code == answer.json()["status"] == 405
    assert "POST" in answer.headers["allow"]


async def test_the_api_describes_itself_with_its_key_and_its_problems(web: httpx.AsyncClient) -> None:
    document = (await web.get("/schema")).json()
    placing = document["paths"]["/orders"]["post"]
    (key,) = (each for each in placing["parameters"] if each["name"] == "Idempotency-Key")
    assert key["required"] is False
    assert {"201", "400", "409", "413", "422", "503"} <= set(placing["responses"])
    export = document["paths"]["/admin/invoice-export"]["post"]
    (key,) = (each for each in export["parameters"] if each["name"] == "Idempotency-Key")
    assert key["required"] is True
    assert export["security"] == [{"administrator": []}]
    assert (await web.get("/schema/openapi.json")).json() == document


async def test_a_replica_tells_that_it_is_alive_and_may_take_work(web: httpx.AsyncClient) -> None:
    assert (await web.get("/health/live")).json() == {"status": "alive"}
    ready = await web.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json() == {"database": "ok", "locks": "ok", "idempotency": "ok"}
