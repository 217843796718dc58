"""The buttons without a browser: what they ask for, whom they refuse, and what is said when it fails."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from cat_store.demo.control import DemoControl
from cat_store.demo.shop import Shop
from cat_store.live.demo_link import DemoError, DemoLink
from tenure_testbed import free_port

ServePage = Callable[..., Awaitable[Any]]
Until = Callable[[Callable[[], object]], Awaitable[None]]


def headers_of(served: Any, **changes: str) -> dict[str, str]:
    return {"X-Cat-Store-Live": "1", "Origin": served.address} | changes


async def press(served: Any, action: str, replica: str | None = None, **changes: str) -> httpx.Response:
    body = {} if replica is None else {"replica": replica}
    return await served.http.post(f"/live/actions/{action}", json=body, headers=headers_of(served, **changes))


@pytest.fixture
async def served(serve_page: ServePage, control: DemoControl) -> Any:
    served = await serve_page(demo_url=control.url)
    await served.http.get("/")  # looks, and learns of the replicas
    return served


# ------------------------------------------------------------------------------------------------------ the page


async def test_a_button_does_what_it_says_and_answers_with_what_happened(served: Any, supervisor: Any) -> None:
    done = await press(served, "pause", "cat-store-2")
    assert (done.status_code, done.json()) == (200, {"message": "pause cat-store-2: done."})
    assert supervisor.asked == [("pause", "cat-store-2")]


@pytest.mark.parametrize(
    "changed",
    [
        {"X-Cat-Store-Live": ""},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
async def test_a_button_pressed_elsewhere_is_refused(served: Any, supervisor: Any, changed: dict[str, str]) -> None:
    refused = await press(served, "kill", "cat-store-2", **changed)
    assert refused.status_code == 403
    assert refused.headers["content-type"] == "application/problem+json"
    assert supervisor.asked == []


async def test_a_form_of_another_site_cannot_press_a_button(served: Any, supervisor: Any) -> None:
    # What a browser sends for a form without asking first.
    refused = await served.http.post(
        "/live/actions/unlock",
        content="{}",
        headers={"Origin": "http://evil.example", "Content-Type": "text/plain", "Sec-Fetch-Site": "cross-site"},
    )
    assert refused.status_code == 403
    asked = await served.http.options("/live/actions/unlock", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in asked.headers
    assert supervisor.asked == []


@pytest.mark.parametrize(
    ("action", "replica", "status"),
    [("explode", None, 404), ("kill", None, 404), ("kill", "cat-store-9", 404), ("kill", "../locks", 404)],
)
async def test_what_is_not_there_is_not_done(
    served: Any, supervisor: Any, action: str, replica: str | None, status: int
) -> None:
    assert (await press(served, action, replica)).status_code == status
    assert supervisor.asked == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"replica": 3}', b'{"other": 1}', b'{"replica": "' + b"a" * 2000 + b'"}']
)
async def test_a_body_that_is_no_press_is_refused(served: Any, body: bytes) -> None:
    refused = await served.http.post("/live/actions/order", content=body, headers=headers_of(served))
    assert refused.status_code == 400


async def test_what_the_supervisor_refuses_is_a_conflict_that_says_why(served: Any, supervisor: Any) -> None:
    supervisor.refuses = True
    refused = await press(served, "resume", "cat-store-2")
    assert refused.status_code == 409
    assert refused.json()["detail"] == "The demo's supervisor refused: cat-store-2 is up."


async def test_a_shop_that_is_no_demo_has_no_buttons(serve_page: ServePage) -> None:
    served = await serve_page()
    page = (await served.http.get("/")).text
    assert "data-action" not in page
    assert (await press(served, "order")).status_code == 404


async def test_a_supervisor_that_is_gone_is_told_on_the_page_and_by_its_buttons(serve_page: ServePage) -> None:
    served = await serve_page(demo_url=f"http://demo:token@127.0.0.1:{free_port()}")
    assert "The demo&#x27;s supervisor failed" in (await served.http.get("/")).text
    refused = await press(served, "slow")
    assert refused.status_code == 502
    assert "Does `cat-store demo` still run?" in refused.json()["detail"]


async def test_no_secret_reaches_a_page(served: Any, control: DemoControl) -> None:
    page = (await served.http.get("/")).text
    token = urlsplit(control.url).password
    assert token is not None
    assert token not in page
    assert "s3cret-administrator" not in page
    assert str(urlsplit(control.url).port) not in page


async def test_an_order_is_placed_as_a_customer_places_it(served: Any) -> None:
    done = await press(served, "order")
    assert "Order …aede2b5f over 42.50 was placed." in done.json()["message"]
    (order,) = served.api.orders
    assert len({line["product_id"] for line in order["lines"]}) == 2


async def test_the_export_is_asked_of_two_replicas_at_once_and_one_of_them_exports(
    served: Any, serve_page: ServePage, control: DemoControl
) -> None:
    assert (await press(served, "export")).json()["detail"].startswith("The export needs two replicas that are up")
    other = await serve_page("cat-store-2", demo_url=control.url)
    other.api.exported = 0
    await asyncio.sleep(0.2)
    await served.http.get("/")
    done = await press(served, "export")
    assert done.json()["message"] == (
        "cat-store-1 exported 3 in batch acc_1234abcd. cat-store-2 exported nothing: nothing was left."
    )
    assert (served.api.exports, other.api.exports) == (1, 1)


async def test_an_export_that_a_replica_refuses_is_told_beside_the_other_one(
    served: Any, serve_page: ServePage, control: DemoControl
) -> None:
    other = await serve_page("cat-store-2", demo_url=control.url)
    other.api.conflict = True
    await asyncio.sleep(0.2)
    await served.http.get("/")
    said = (await press(served, "export")).json()["message"]
    assert said.startswith("cat-store-1 exported 3")
    assert "cat-store-2 did not export: 409: An invoice export is under way." in said


async def test_an_export_without_an_administrator_is_refused(serve_page: ServePage, control: DemoControl) -> None:
    served = await serve_page(demo_url=control.url, admin_token=None)
    refused = await press(served, "export")
    assert refused.status_code == 409
    assert "CAT_STORE_ADMIN_TOKEN" in refused.json()["detail"]


# --------------------------------------------------------------------------------------------------- the control


async def test_only_who_has_the_token_may_ask_the_supervisor(control: DemoControl, supervisor: Any) -> None:
    address = f"http://127.0.0.1:{urlsplit(control.url).port}"
    async with httpx.AsyncClient(base_url=address) as http:
        for sent in (b"", b"Bearer wrong", b"Bearer \xc5\xbc"):
            headers = {b"Authorization": sent}
            assert (await http.get("/state", headers=headers)).status_code == 403
            assert (await http.post("/replicas/cat-store-1/kill", headers=headers)).status_code == 403
    assert supervisor.asked == []


async def test_a_replica_that_asks_for_its_own_end_is_answered_first(
    control: DemoControl, supervisor: Any, until: Until
) -> None:
    async with DemoLink(control.url, "cat-store-1") as link:
        said = await link.act("kill", "cat-store-1")
        assert supervisor.asked == []
        assert "goes on at the next replica" in said
        await until(lambda: supervisor.asked == [("kill", "cat-store-1")])
        assert (await link.state()).news is not None


async def test_a_restart_is_answered_first_and_another_meanwhile_is_refused(
    control: DemoControl, supervisor: Any, until: Until
) -> None:
    async with DemoLink(control.url, "cat-store-1") as link:
        assert "without locks" in await link.restart(locks=False)
        assert (await link.state()).busy
        with pytest.raises(DemoError, match="being restarted already") as refused:
            await link.restart(locks=True)
        assert refused.value.status == 409
        await until(lambda: supervisor.asked == [("restart", False)])

        async def settled() -> bool:
            return not (await link.state()).busy

        while not await settled():
            await asyncio.sleep(0.02)
        state = await link.state()
        assert (state.locks, state.news and state.news.failed) == (False, False)


async def test_a_supervisor_that_breaks_is_news_and_the_control_goes_on(
    control: DemoControl, supervisor: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*, locks: bool) -> str:
        raise RuntimeError(locks)

    monkeypatch.setattr(supervisor, "restart", broken)
    async with DemoLink(control.url, "cat-store-1") as link:
        await link.restart(locks=False)
        while (state := await link.state()).news is None:
            await asyncio.sleep(0.02)
        assert state.news.failed
        assert not state.busy
        assert "slow" in repr(await link.slow(1) and supervisor.asked)


@pytest.mark.parametrize("seconds", [-1.0, 61.0])
async def test_a_count_that_would_take_for_ever_is_refused(
    control: DemoControl, supervisor: Any, seconds: float
) -> None:
    async with DemoLink(control.url, "cat-store-1") as link:
        with pytest.raises(DemoError):
            await link.slow(seconds)
    assert supervisor.asked == []


async def test_a_supervisor_that_answers_garbage_is_an_error_with_a_sentence() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(500, content=b"<html>"))
    async with DemoLink("http://demo:t@127.0.0.1:1", "cat-store-1", transport=transport) as link:
        with pytest.raises(DemoError, match="It answered with 500") as refused:
            await link.act("kill", "cat-store-2")
    assert refused.value.status == 502


def test_a_url_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no token"):
        DemoLink("http://127.0.0.1:1", "cat-store-1")


async def test_the_statement_of_a_warehouse_with_a_feed_is_read(shop: Shop, serve_page: ServePage) -> None:
    def partner(request: httpx.Request) -> httpx.Response:
        books = {"batches": [{}, {}], "duplicate_invoices": 0, "repeated_uploads": 0, "opened": 2, "waiting": 0}
        shelves = {"full_counts": 1, "open_counts": 0, "most_at_once": 1, "open_feeds": 1, "most_feeds": 1}
        body = books if request.url.path.startswith("/accounting") else shelves
        return httpx.Response(200, content=msgspec.json.encode(body))

    served = await serve_page(partners=httpx.MockTransport(partner))
    page = (await served.http.get("/")).text
    assert "feed connections <small>warehouse</small></dt><dd>1</dd>" in page
