"""The page in headless Chromium: what it shows, each of its buttons, and what it does when its replica dies."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, text, update

from cat_store.demo.control import DemoControl
from cat_store.demo.shop import Shop
from cat_store.live.heartbeat import Heartbeat
from cat_store.live.log import LiveLog
from cat_store.orders.models import Order
from cat_store.partners.wire import Invoice
from tenure import InMemoryLockStore
from tenure.testing import ManualClock

pytestmark = pytest.mark.browser

ServePage = Callable[..., Awaitable[Any]]

PATIENCE_MS = 15_000
PHONE = {"width": 360, "height": 780}
DESK = {"width": 1280, "height": 900}
SCREENS = Path(os.environ.get("CAT_STORE_SCREENS", "/tmp/live-screens"))


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    playwright = pytest.importorskip("playwright.async_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
            pytest.fail("Needed where CI is set: Chromium, from the package chromium", pytrace=False)
        pytest.skip("There is no Chromium on this machine")
    async with playwright.async_playwright() as started:
        # A container's root has no user namespaces for Chromium's sandbox; the pages are this test's own.
        opened = await started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        await opened.close()


OpenPage = Callable[..., Awaitable[Any]]


@pytest.fixture
async def open_page(browser: Any) -> AsyncIterator[OpenPage]:
    """Open a page; at the end nothing was forbidden by its policy, and no script failed."""
    wrong: list[str] = []

    async def open_one(address: str, *, dark: bool = False, size: dict[str, int] = DESK, **options: Any) -> Any:
        context = await browser.new_context(
            viewport=size, color_scheme="dark" if dark else "light", reduced_motion="reduce", **options
        )
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        await page.goto(f"{address}/")
        return page

    yield open_one
    assert wrong == []


async def live(page: Any) -> None:
    await page.locator('#link[data-link="live"]').wait_for()


async def says(page: Any, text: str) -> None:
    await page.locator("#said", has_text=text).wait_for()


@contextlib.asynccontextmanager
async def neighbour(url: str, instance: str, *, locks: bool = True) -> AsyncIterator[LiveLog]:
    """A replica that tells of itself, and has no page."""
    log = LiveLog()
    address = f"http://127.0.0.1:{9000 + int(instance[-1])}"
    async with Heartbeat(url, log, instance=instance, address=address, locks=locks, every_s=0.1):
        yield log


async def test_the_page_follows_what_happens(
    open_page: OpenPage, serve_page: ServePage, shop: Shop, postgres_url: str
) -> None:
    served = await serve_page()
    page = await open_page(served.address)
    await live(page)
    await shop.place_orders(1)
    await page.locator('[data-section="orders"] .due').first.wait_for()
    served.log.note("WARNING", "tenure.LeaseLost", "Lost the lease on <b>")
    await page.locator("#events .warning", has_text="Lost the lease on <b>").wait_for()
    async with neighbour(postgres_url, "cat-store-2"):
        await page.locator('[data-replica="cat-store-2"][data-state="up"]').wait_for()
    await page.locator('[data-replica="cat-store-2"][data-state="gone"]').wait_for()
    await page.locator("#changes", has_text="cat-store-2 is gone.").wait_for(state="attached")


async def test_a_lease_counts_down_between_two_renewals(open_page: OpenPage, serve_page: ServePage) -> None:
    store = InMemoryLockStore()
    await store.acquire("invoices:nightly-export:owner", "cat-store-1:0f0f", 60_000)
    served = await serve_page(store=store, lock_ttl_s=60)
    page = await open_page(served.address)
    await live(page)
    left = page.locator("tr .left")
    first = float((await left.text_content()).split()[0])
    await page.wait_for_function(
        "first => parseFloat(document.querySelector('tr .left').textContent) < first", arg=first
    )


async def test_each_button_of_a_replica_asks_the_supervisor_and_says_what_happened(
    open_page: OpenPage, serve_page: ServePage, control: DemoControl, supervisor: Any
) -> None:
    supervisor.replicas |= {"cat-store-3": "paused", "cat-store-4": "gone"}
    served = await serve_page(demo_url=control.url)
    page = await open_page(served.address)
    await live(page)
    asked = [
        ("pause", "cat-store-2"),
        ("resume", "cat-store-2"),
        ("kill", "cat-store-2"),
        ("start", "cat-store-2"),
        ("stop", "cat-store-2"),
        ("resume", "cat-store-3"),
        ("start", "cat-store-4"),
    ]
    for verb, name in asked:
        await page.click(f"#{verb}-{name}")
        await says(page, f"{verb} {name}: done.")
    assert supervisor.asked == asked


async def test_a_replica_that_is_asked_for_its_own_end_answers_first(
    open_page: OpenPage, serve_page: ServePage, control: DemoControl, supervisor: Any, until: Callable[..., Any]
) -> None:
    served = await serve_page(demo_url=control.url)
    page = await open_page(served.address)
    await live(page)
    await page.click("#kill-cat-store-1")
    await says(page, "cat-store-1 is being killed. It serves this page, which goes on at the next replica.")
    await until(lambda: supervisor.asked == [("kill", "cat-store-1")])


async def test_the_buttons_for_orders_and_exports_speak_to_the_replicas(
    open_page: OpenPage, serve_page: ServePage, control: DemoControl
) -> None:
    one = await serve_page("cat-store-1", demo_url=control.url)
    other = await serve_page("cat-store-2", demo_url=control.url, api=one.api)
    page = await open_page(one.address)
    await page.locator('[data-replica="cat-store-2"] h3 a').wait_for()
    await live(page)
    await page.click("#do-order")
    await says(page, "over 42.50 was placed")
    assert len(one.api.orders) == 1
    await page.click("#do-export")
    await says(page, "exported 3 in batch acc_1234abcd")
    assert "exported nothing: nothing was left" in await page.locator("#said").text_content()
    assert one.api.exports == 2
    assert other.api is one.api


async def test_switches_turn_into_their_opposites(
    open_page: OpenPage, serve_page: ServePage, control: DemoControl, supervisor: Any
) -> None:
    served = await serve_page(demo_url=control.url)
    page = await open_page(served.address)
    await live(page)
    await page.click("#do-slow")
    await page.click("#do-hurry")
    await page.click("#do-unlock")
    await page.locator(".news", has_text="without locks").wait_for()
    await page.click("#do-lock")
    await page.locator(".news", has_text="with locks").wait_for()
    assert supervisor.asked == [("slow", 3.0), ("slow", 0.0), ("restart", False), ("restart", True)]


async def test_what_is_refused_is_said_and_not_swallowed(
    open_page: OpenPage, serve_page: ServePage, control: DemoControl, supervisor: Any
) -> None:
    supervisor.refuses = True
    served = await serve_page(demo_url=control.url)
    page = await open_page(served.address)
    await live(page)
    await page.click("#pause-cat-store-2")
    await page.locator("#said.failed", has_text="cat-store-2 is up.").wait_for()
    await page.click("#do-unlock")
    await page.locator(".news.failed", has_text="cat-store-2 did not come up.").wait_for()


async def test_a_button_keeps_the_keyboard_where_it_was(
    open_page: OpenPage, serve_page: ServePage, control: DemoControl, shop: Shop
) -> None:
    served = await serve_page(demo_url=control.url)
    page = await open_page(served.address)
    await live(page)
    await page.focus("#pause-cat-store-2")
    await page.keyboard.press("Enter")
    await page.locator('[data-replica="cat-store-2"][data-state="paused"]').wait_for()
    focused = await page.evaluate("document.activeElement.dataset.action")
    assert focused in {"pause", "resume", "kill"}


async def test_a_page_whose_replica_dies_goes_on_at_the_next_one_and_comes_home(
    open_page: OpenPage, serve_page: ServePage, serve_page_at: Callable[..., Any], postgres_url: str, shop: Shop
) -> None:
    other = await serve_page("cat-store-2")
    async with serve_page_at(postgres_url, "cat-store-1") as served:
        page = await open_page(served.address)
        await page.locator('[data-replica="cat-store-2"] h3 a').wait_for()
        # What a page was told when it was opened is where it may go on.
        await page.reload()
        await live(page)
        port = int(served.address.rpartition(":")[2])
    await page.locator("#server", has_text="cat-store-2").wait_for()
    await page.locator("#away", has_text="cat-store-1 does not answer").wait_for()
    assert await page.locator("#away a").get_attribute("href") == f"{other.address}/"
    await shop.place_orders(1)
    await page.locator('[data-section="orders"] .due').first.wait_for()
    async with serve_page_at(postgres_url, "cat-store-1", port=port):
        await page.locator("#server", has_text="cat-store-1").wait_for()
        await page.locator("#away").wait_for(state="hidden")


async def test_a_page_whose_replica_falls_silent_goes_on_at_the_next_one(
    open_page: OpenPage, serve_page: ServePage
) -> None:
    await serve_page("cat-store-2")
    paused = await serve_page("cat-store-1")
    page = await open_page(paused.address)
    await page.locator('.replica[data-replica="cat-store-2"] h3 a').wait_for()
    await page.reload()
    await live(page)
    # As a paused process: its connections stay open, nothing comes through them, and nothing new is answered.
    await page.route(f"{paused.address}/live/assets/*", lambda route: route.abort())
    paused.live.poller._every_s = paused.live.poller._beat_every_s = 3600
    # Five seconds of silence, and what a busy machine makes of them.
    await page.locator("#server", has_text="cat-store-2").wait_for(timeout=3 * PATIENCE_MS)


async def test_a_page_that_is_held_stands_still(open_page: OpenPage, serve_page: ServePage, shop: Shop) -> None:
    served = await serve_page()
    page = await open_page(served.address)
    await live(page)
    await page.click("#hold")
    await page.locator('#link[data-link="held"]').wait_for()
    await shop.place_orders(1)
    assert await page.locator('[data-section="orders"] .due').count() == 0
    await page.click("#hold")
    await page.locator('[data-section="orders"] .due').first.wait_for()


async def test_without_scripts_the_page_is_complete_and_loads_again(
    browser: Any, serve_page: ServePage, shop: Shop
) -> None:
    await shop.place_orders(1)
    served = await serve_page()
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"{served.address}/")
    assert await page.locator(".due").count() == 1
    assert await page.locator('meta[http-equiv="refresh"]').count() == 1


# --------------------------------------------------------------------------------------------------- how it looks


@pytest.fixture
def at_work(postgres_url: str, shop: Shop) -> Callable[[InMemoryLockStore], Any]:
    return lambda store: _at_work(postgres_url, store, shop)


@contextlib.asynccontextmanager
async def _at_work(url: str, store: InMemoryLockStore, shop: Shop) -> AsyncIterator[None]:
    """Three replicas at work, the leases held, and some history."""
    placed = await shop.place_orders(5)
    async with shop._sessions.begin() as session:
        await session.execute(text("UPDATE products SET stock_token = 1796050470061086, in_stock = length(name)"))
        done = update(Order).where(Order.id.in_(placed[:3]))
        await session.execute(done.values(invoice_batch="acc_3f69ff9e", invoiced_at=func.now()))
    token = 0
    for key, instance in (
        ("database:record-purge:owner", "cat-store-2"),
        ("inventory:stock-reconciliation", "cat-store-1"),
        ("inventory:stock-reconciliation:owner", "cat-store-1"),
        ("inventory:warehouse-feed", "cat-store-3"),
        ("invoices:nightly-export:owner", "cat-store-1"),
    ):
        held = await store.acquire(key, f"{instance}:{'0' * 32}", 60_000)
        token = held.token  # type: ignore[union-attr]
    async with neighbour(url, "cat-store-2") as two, neighbour(url, "cat-store-3") as three:
        three._leads["inventory:warehouse-feed"] = token
        two._tokens["invoices:nightly-export"] = token - 3_000_000
        three.note("INFO", "tenure.LeadershipAcquired", f'Leading "inventory:warehouse-feed" (fencing token {token})')
        for number in range(8):
            two.note("INFO", "order.placed", f"Placed order 01a2… over {1399 + number} cents")
            two.note("DEBUG", "tenure.JobSkipped", "Skipped InvoiceExport.run: it runs on another instance")
        three.note(
            "WARNING",
            "stock.stale_writes_refused",
            f"Skipped 12 stale stock writes: a newer run (token > {token}) wrote those products",
        )
        yield


async def booked(partners: Any, sender: str, *, orders: int) -> None:
    """Have accounting book a batch of the same orders as every other one."""
    batch = await partners.accounting.open_batch()
    at = datetime(2026, 11, 30, tzinfo=UTC)
    invoices = [Invoice(f"order-{number}", "alice", 1299, at) for number in range(orders)]
    await partners.accounting.upload(batch.batch_id, invoices, sender)


async def shoot(page: Any, name: str) -> None:
    await page.screenshot(path=SCREENS / f"{name}.png", full_page=True)


@pytest.mark.parametrize("state", ["calm", "trouble", "unlocked"])
async def test_the_page_fits_its_window_in_three_states(  # noqa: PLR0917 -- fixtures are arguments
    open_page: OpenPage,
    serve_page: ServePage,
    control: DemoControl,
    supervisor: Any,
    partners: Any,
    at_work: Callable[[InMemoryLockStore], Any],
    state: str,
) -> None:
    # Tokens of the length that they have on a server: microseconds since 1970.
    store = InMemoryLockStore(ManualClock(1_796_050_470.056882))
    async with at_work(store):
        if state == "trouble":
            supervisor.replicas |= {"cat-store-2": "paused", "cat-store-3": "gone"}
        if state == "unlocked":
            supervisor.locks = False
            supervisor.count_delay_s = 3
            for instance in ("cat-store-1", "cat-store-2", "cat-store-3"):
                partners.warehouse.begin_count(instance)
                await booked(partners, instance, orders=3)
        else:
            await booked(partners, "cat-store-1", orders=3)
        served = await serve_page(
            demo_url=control.url,
            store=None if state == "unlocked" else store,
            locks=state != "unlocked",
            partners=None if state == "trouble" else partners.transport,
            lock_ttl_s=60,
            timezone="Europe/Warsaw",
        )
        served.log.note(
            "INFO",
            "tenure.JobStarted",
            "cat_store.invoices.export:InvoiceExport.run runs on this instance (lease "
            '"invoices:nightly-export:owner", fencing token 1796050470187299)',
        )
        page = await open_page(served.address)
        await live(page)
        await page.locator("#events li").first.wait_for()
        await page.locator('.replica[data-replica="cat-store-3"]').wait_for()
        if state == "trouble":
            supervisor.refuses = True
            await page.click("#resume-cat-store-2")
            await says(page, "cat-store-2 is paused.")
        words = await page.locator("main").text_content()
        assert {"calm": "job's lease", "trouble": "silent for", "unlocked": "The locks are off"}[state] in words
        for size, kind in ((DESK, "desk"), (PHONE, "phone")):
            for scheme in ("light", "dark"):
                await page.set_viewport_size(size)
                await page.emulate_media(color_scheme=scheme)
                wide = await page.evaluate("document.documentElement.scrollWidth")
                assert wide <= size["width"], "the page scrolls sideways"
                await shoot(page, f"{state}-{kind}-{scheme}")
