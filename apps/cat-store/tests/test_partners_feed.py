"""The warehouse's side of the alert feed: one connection, that of a shop that says that it listens."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest

from cat_store.demo.partners import PartnersProcess
from cat_store.partners.feed import AlertFeed, FeedTakenError, NoSuchFeedError
from cat_store.partners.wire import WarehouseStatement, WarehouseSwitches

Until = Callable[[Callable[[], object]], Awaitable[None]]

SHELVES = {"mouse": 3, "wand": 1, "post": 2, "litter": 50}


def feed_of(shelves: dict[str, int] = SHELVES, **options: Any) -> AlertFeed:
    switches = options.pop("switches", WarehouseSwitches())
    return AlertFeed(shelves, lambda: switches, **options)


async def read(lines: AsyncIterator[bytes]) -> dict[str, Any]:
    async with asyncio.timeout(15):
        return msgspec.json.decode(await anext(lines), type=dict[str, Any])


async def test_a_second_connection_is_refused_and_counted_until_the_first_has_ended() -> None:
    feed = feed_of()
    first = feed.open("", 0)
    lines = feed.lines(first)
    assert (await read(lines))["kind"] == "opened"
    for _ in range(2):
        with pytest.raises(FeedTakenError):
            feed.open("", 0)
    assert (feed.open_now, feed.most, feed.refused) == (1, 1, 2)
    await lines.aclose()  # type: ignore[attr-defined] -- it is a generator
    assert feed.open_now == 0
    feed.open("", 0)
    assert feed.most == 1


async def test_a_shop_that_does_not_say_that_it_listens_is_hung_up_on() -> None:
    feed = feed_of(beat_s=0.05, silent_s=0.3)
    silent = feed.open("", 0)
    lines = feed.lines(silent)
    async with asyncio.timeout(15):
        assert [line async for line in lines][1:]  # beats, and then the end
    with pytest.raises(NoSuchFeedError):
        feed.hear(silent.feed_id)
    feed.open("", 0)


async def test_a_connection_that_was_opened_and_never_read_does_not_keep_the_next_one_out() -> None:
    feed = feed_of(silent_s=0.05)
    feed.open("", 0)
    await asyncio.sleep(0.1)
    feed.open("", 0)
    assert feed.most == 1


async def test_a_shop_reads_on_from_where_it_was_and_from_the_beginning_in_another_ledger() -> None:
    feed = feed_of()
    for product in ("mouse", "wand", "post"):
        feed.send(product)
    for ledger, after, first in ((feed.ledger, 2, 3), ("led_other", 2, 1)):
        lines = feed.lines(feed.open(ledger, after))
        await read(lines)
        assert (await read(lines))["number"] == first
        await lines.aclose()  # type: ignore[attr-defined] -- it is a generator


async def test_an_alert_that_waited_tells_what_there_is_when_it_is_sent() -> None:
    shelves = dict(SHELVES)
    feed = feed_of(shelves)
    feed.send("mouse")
    shelves["mouse"] = 40
    lines = feed.lines(feed.open("", 0))
    await read(lines)
    assert await read(lines) == {"kind": "alert", "number": 1, "product_id": "mouse", "count": 40}
    await lines.aclose()  # type: ignore[attr-defined] -- it is a generator


async def test_alerts_come_by_themselves_about_what_there_is_little_of() -> None:
    feed = feed_of(alert_every_s=0.05, beat_s=0.02)
    lines = feed.lines(feed.open("", 0))
    seen = set()
    async with asyncio.timeout(15):
        async for line in lines:
            told = msgspec.json.decode(line)
            if told["kind"] == "alert":
                seen.add(told["product_id"])
            if len(seen) == 3:
                break
    assert seen == {"mouse", "wand", "post"}
    await lines.aclose()  # type: ignore[attr-defined] -- it is a generator


async def test_streams_end_when_the_partners_are_told_to_stop() -> None:
    async with PartnersProcess() as partners:
        base = partners.warehouse_url
        async with httpx.AsyncClient(headers={"x-sender": "cat-store-1"}, timeout=30) as http:
            async with http.stream("GET", f"{base}/feed") as response:
                lines = response.aiter_lines()
                opened = msgspec.json.decode(await anext(lines))
                assert (await http.get(f"{base}/feed")).status_code == 409
                assert (await http.put(f"{base}/feed/{opened['feed_id']}/listening")).status_code == 200
                assert (await http.put(f"{base}/feed/other/listening")).status_code == 404
                assert (await http.get(f"{base}/feed?after=-1")).status_code == 400
                pushed = await http.post(f"{base}/alerts", json={"product_id": "catnip-mouse", "count": 2})
                assert pushed.status_code == 201
                unknown = await http.post(f"{base}/alerts", json={"product_id": "dog-bone", "count": 2})
                assert unknown.status_code == 404
                while (line := msgspec.json.decode(await anext(lines)))["kind"] != "alert":
                    pass
                assert line["product_id"] == "catnip-mouse"
                told = WarehouseStatement(**(await http.get(f"{base}/statement")).json())
                assert (told.open_feeds, told.most_feeds, told.refused_feeds, told.alerts) == (1, 1, 1, 1)
                stopping = asyncio.create_task(asyncio.to_thread(partners._process.terminate))
                async with asyncio.timeout(15):
                    with contextlib.suppress(StopAsyncIteration):
                        while True:  # a cut connection would raise; a stream that was ended, ends
                            await anext(lines)
            await stopping


async def test_a_shop_that_goes_away_leaves_the_feed_free(until: Until) -> None:
    async with PartnersProcess() as partners:
        url = f"{partners.warehouse_url}/feed"
        async with httpx.AsyncClient(headers={"x-sender": "cat-store-1"}, timeout=30) as http:
            for _ in range(3):
                async with http.stream("GET", url) as response:
                    assert response.status_code == 200
                    await anext(response.aiter_lines())
                async with asyncio.timeout(15):
                    while (await partners.warehouse()).open_feeds:
                        await asyncio.sleep(0.01)
