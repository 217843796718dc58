"""The page and its stream, as a browser gets them: a real application on a real port."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest

from cat_store.demo.shop import Shop
from cat_store.live import poller as poller_module
from cat_store.live.reading import DatabaseReader
from tenure import InMemoryLockStore, Locks
from tenure_testbed import PostgresServer

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
ServePage = Callable[..., Awaitable[Any]]

PATIENCE_S = 15.0


@dataclass
class Said:
    """One server-sent event, or a comment."""

    event: str = ""
    id: str = ""
    data: str = ""
    comment: str = ""

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.data)


async def said_by(response: httpx.Response) -> AsyncIterator[Said]:
    said = Said()
    async for line in response.aiter_lines():
        if not line:
            if said != Said():
                yield said
            said = Said()
            continue
        name, _, value = line.partition(":")
        if name == "":
            said.comment = value.strip()
        elif name in {"event", "id", "data"}:
            setattr(said, name, value.strip())


@contextlib.asynccontextmanager
async def streaming(http: httpx.AsyncClient, **headers: str) -> AsyncIterator[AsyncIterator[Said]]:
    async with http.stream("GET", "/live/stream", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async with asyncio.timeout(PATIENCE_S):
            yield said_by(response)


async def page_event(stream: AsyncIterator[Said]) -> Said:
    async for said in stream:
        if said.event == "page":
            return said
    raise AssertionError("the stream ended")


async def test_the_page_is_complete_without_its_script(serve_page: ServePage, shop: Shop) -> None:
    await shop.place_orders(2)
    served = await serve_page()
    page = await served.http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "2</b> placed" in page.text
    assert "Salmon kibble, 2 kg" in page.text
    assert "$" not in page.text


async def test_a_viewer_gets_everything_first_and_then_what_changes(serve_page: ServePage, shop: Shop) -> None:
    served = await serve_page()
    async with streaming(served.http) as stream:
        first = await page_event(stream)
        assert first.body["reset"]
        assert {"replicas", "leases", "partners", "orders", "stock"} <= set(first.body["sections"])
        served.log.note("INFO", "invoices.exported", "Exported 3 invoices")
        await shop.place_orders(1)
        sections: set[str] = set()
        events: list[str] = []
        while "orders" not in sections or not events:
            news = await page_event(stream)
            assert not news.body["reset"]
            sections |= set(news.body["sections"])
            events += [event["html"] for event in news.body["events"]]
    assert "stock" not in sections
    assert any("Exported 3 invoices" in html for html in events)


async def test_a_viewer_that_comes_back_gets_what_it_missed(serve_page: ServePage, shop: Shop) -> None:
    served = await serve_page()
    async with streaming(served.http) as stream:
        last = await page_event(stream)
    await shop.place_orders(1)
    async with streaming(served.http, **{"Last-Event-ID": last.id}) as stream:
        news = (await page_event(stream)).body
        while "orders" not in news["sections"]:
            news = (await page_event(stream)).body
    assert not news["reset"]
    assert "stock" not in news["sections"]


async def test_a_viewer_of_another_replica_gets_everything_again(serve_page: ServePage) -> None:
    one, other = await serve_page("cat-store-1"), await serve_page("cat-store-2")
    async with streaming(one.http) as stream:
        last = await page_event(stream)
    async with streaming(other.http, **{"Last-Event-ID": last.id}) as stream:
        assert (await page_event(stream)).body["reset"]


async def test_a_viewer_is_told_that_there_is_no_news(serve_page: ServePage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(poller_module.LivePoller.__init__.__kwdefaults__, "beat_every_s", 0.1)
    served = await serve_page(heartbeat=False)
    async with streaming(served.http) as stream:
        await page_event(stream)
        said = [await anext(stream), await anext(stream)]
    # The comment is for proxies; scripts do not hear of it.
    assert said[0].comment
    assert said[1].event == "beat"


async def test_many_viewers_cost_one_look(serve_page: ServePage, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    read = DatabaseReader.read

    async def counted(self: DatabaseReader) -> Any:
        nonlocal looks
        looks += 1
        return await read(self)

    monkeypatch.setattr(DatabaseReader, "read", counted)
    served = await serve_page()
    async with contextlib.AsyncExitStack() as left:
        streams = [await left.enter_async_context(streaming(served.http)) for _ in range(20)]
        await asyncio.gather(*(page_event(stream) for stream in streams))
        began, looks = asyncio.get_running_loop().time(), 0
        await asyncio.sleep(1)  # what is measured: how often it looks in a second
        took_s = asyncio.get_running_loop().time() - began
    assert 1 <= looks <= took_s / 0.1 + 2


async def test_nobody_watching_costs_no_look(serve_page: ServePage, eventually: Eventually) -> None:
    served = await serve_page()
    async with streaming(served.http) as stream:
        await page_event(stream)

    async def nobody() -> bool:
        return served.live.poller.viewers == 0

    await eventually(nobody)
    await asyncio.sleep(0.3)  # a look that was under way ends
    before = served.live.poller._looked_at
    await asyncio.sleep(0.5)
    assert served.live.poller._looked_at == before


async def test_an_open_stream_does_not_hold_up_the_end_of_the_server(serve_page: ServePage) -> None:
    served = await serve_page()
    async with streaming(served.http) as stream:
        await page_event(stream)
        began = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(served.stop())
        last = [said async for said in stream][-1]
        await stopping
    assert last.event == "bye"
    # The server would wait ten seconds for a stream that goes on.
    assert asyncio.get_running_loop().time() - began < 5


async def test_one_viewer_too_many_is_sent_to_the_next_replica(
    serve_page: ServePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller_module, "MOST_VIEWERS", 1)
    served = await serve_page()
    async with streaming(served.http) as stream:
        await page_event(stream)
        refused = await served.http.get("/live/stream")
    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"


async def page_that_knows(one: Any, other: Any) -> httpx.Response:
    """Ask *one* for its page until it has learned of *other*: a look that is fresh is not taken again at once."""
    for _ in range(200):
        page = await one.http.get("/")
        if other.address in page.headers["content-security-policy"]:
            return page
        await asyncio.sleep(0.05)
    raise AssertionError(f"{one.address} has not learned of {other.address}.")


async def test_the_other_replicas_may_read_the_stream_and_nobody_else(serve_page: ServePage) -> None:
    one, other = await serve_page("cat-store-1"), await serve_page("cat-store-2")
    await page_that_knows(one, other)
    for origin, allowed in (
        (other.address, other.address),
        (other.address.replace("127.0.0.1", "localhost"), other.address.replace("127.0.0.1", "localhost")),
        ("http://evil.example", None),
        ("http://127.0.0.1:1", None),
        ("null", None),
    ):
        async with one.http.stream("GET", "/live/stream", headers={"Origin": origin}) as response:
            assert response.headers.get("access-control-allow-origin") == allowed, origin
            assert response.headers["vary"] == "Origin"
    page = await one.http.get("/", headers={"Origin": other.address})
    assert "access-control-allow-origin" not in page.headers


async def test_the_page_runs_nothing_but_its_own_files(serve_page: ServePage) -> None:
    one, other = await serve_page("cat-store-1"), await serve_page("cat-store-2")
    page = await page_that_knows(one, other)
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["connect-src"].split() == ["'self'", one.address, other.address]
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert page.headers["x-content-type-options"] == "nosniff"
    for forbidden in ("style=", "onclick", "javascript:", "<script>", "<style"):
        assert forbidden not in page.text


async def test_assets_are_kept_under_their_version_alone(serve_page: ServePage) -> None:
    served = await serve_page()
    page = (await served.http.get("/")).text
    start = page.index("/live/assets/live.js?v=")
    named = await served.http.get(page[start : page.index('"', start)])
    assert (named.status_code, named.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert "immutable" in named.headers["cache-control"]
    assert (await served.http.get("/live/assets/live.js")).headers["cache-control"] == "no-cache"
    assert (await served.http.get("/live/assets/page.html")).status_code == 404
    assert (await served.http.get("/live/assets/..%2F__init__.py")).status_code == 404


async def test_what_comes_from_outside_is_text_and_no_html(serve_page: ServePage) -> None:
    attack = '<img src=x onerror="alert(1)">&'
    served = await serve_page(attack)
    served.log.note("INFO", "kind", attack)
    async with streaming(served.http) as stream:
        seen = ""
        while "onerror" not in seen:
            body = (await page_event(stream)).body
            seen = "".join(event["html"] for event in body["events"])
    page = (await served.http.get("/")).text
    assert "<img src=x" not in page + seen
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;&amp;" in page


async def test_who_holds_what_is_shown_without_owners(serve_page: ServePage) -> None:
    store = InMemoryLockStore()
    async with (
        Locks(store, ttl=30, instance="cat-store-1") as locks,
        locks.hold("invoices:nightly-export:owner") as lease,
    ):
        (record,) = await store.list_locks()
        served = await serve_page(store=store)
        page = (await served.http.get("/")).text
        assert str(lease.token) in page
        assert record.owner not in page
        assert record.owner.rpartition(":")[2] not in page


async def test_a_store_that_cannot_list_its_locks_is_said_to_be_one(serve_page: ServePage) -> None:
    served = await serve_page(store=object())
    assert "cannot list its locks" in (await served.http.get("/")).text
    without = await serve_page("cat-store-2", store=None, locks=False)
    assert "the locks are off on this replica" in (await without.http.get("/")).text


async def test_partners_that_do_not_answer_are_told_and_the_rest_is_shown(serve_page: ServePage) -> None:
    served = await serve_page()
    page = (await served.http.get("/")).text
    assert "One of the partners failed (ConnectError)" in page
    assert "Salmon kibble" in page


async def test_the_counters_are_those_of_the_partners(serve_page: ServePage, partners: Any) -> None:
    partners.warehouse.begin_count("cat-store-1")
    partners.warehouse.begin_count("cat-store-2")
    served = await serve_page(partners=partners.transport)
    page = (await served.http.get("/")).text
    assert "failed" not in page
    assert "counts at once, at most <small>warehouse</small></dt><dd>2<" in page


async def test_a_database_that_hangs_leaves_the_last_page_standing(
    own_postgres: PostgresServer, serve_page_at: Callable[..., Any]
) -> None:
    url = own_postgres.create_database()
    async with Shop(url), serve_page_at(url, "cat-store-1", heartbeat=False) as served:
        await served.http.get("/")
        await asyncio.to_thread(own_postgres.pause)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while "The shop&#x27;s database does not answer" not in (page := (await served.http.get("/")).text):
                    await asyncio.sleep(0.05)
        finally:
            await asyncio.to_thread(own_postgres.resume)
        assert "Salmon kibble" in page
