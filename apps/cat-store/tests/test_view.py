"""The page of the live view, drawn once at several sizes."""

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from cat_store.demo.journal import Entry
from cat_store.demo.options import DemoOptions
from cat_store.demo.stage import Stage
from cat_store.demo.view import LiveView
from cat_store.partners.wire import AccountingStatement, WarehouseStatement
from tenure.store import LockRecord


def answers(value: Any) -> Any:
    async def answer() -> Any:
        return value

    return answer


@pytest.fixture
def stage() -> Stage:
    states = {"cat-store-1": "up", "cat-store-2": "paused", "cat-store-3": "gone"}
    entries = [
        Entry(1, 0.0, "cat-store-1", "INFO", "stock.reconciled", "Reconciled stock for 12 products"),
        Entry(2, 0.0, "cat-store-2", "DEBUG", "tenure.JobSkipped", "Skipped, and told to nobody"),
    ]
    stand_in = SimpleNamespace(
        options=DemoOptions(),
        locks=answers([LockRecord("invoices:nightly-export:owner", "cat-store-1:00ff", 1796050470187299, 2400)]),
        partners=SimpleNamespace(
            accounting=answers(AccountingStatement(4, 0, [], duplicate_invoices=6, repeated_uploads=1)),
            warehouse=answers(WarehouseStatement(7, 1, 3, [], open_feeds=1, most_feeds=1, refused_feeds=4)),
        ),
        journal=SimpleNamespace(entries=lambda: iter(entries)),
        state_of=states.__getitem__,
        url_of=lambda _: "http://127.0.0.1:3001",
    )
    return cast("Stage", stand_in)


@pytest.mark.parametrize(("width", "height"), [(130, 50), (80, 24)])
async def test_the_page_tells_who_holds_what_until_when(stage: Stage, width: int, height: int) -> None:
    page = io.StringIO()
    view = LiveView(stage, Console(file=page, force_terminal=True, width=width, height=height, color_system=None))
    view.scene("Without locks", "Three replicas fire the same crons.")
    view.step("The warehouse holds the counts open.")
    async with view:
        view.result("3 batches")
        await view._draw_once()
    told = page.getvalue()
    for piece in (
        "Without locks",
        "The warehouse holds the counts open.",
        "cat-store-1",
        "paused",
        "gone",
        "invoices:nig",  # the rest of the key is on the next line of a narrow terminal
        "1796050470187299",
        "2.4 s",
        "6 invoices booked more than once",
        "7 full counts, 1 going on, 3 at once at most",
        "alert feed: 1 connected, 1 at once at most, 4 refused",
        "Reconciled stock for 12 products",
    ):
        assert piece in told
    assert "told to nobody" not in told
    assert "The live page" not in told


async def test_the_address_of_the_live_page_is_told_to_who_asked_for_it(stage: Stage) -> None:
    stage.options = DemoOptions(open_page=True)
    page = io.StringIO()
    view = LiveView(stage, Console(file=page, force_terminal=True, width=80, height=24, color_system=None))
    async with view:
        await view._draw_once()
    assert "The live page: http://127.0.0.1:3001/" in page.getvalue()
