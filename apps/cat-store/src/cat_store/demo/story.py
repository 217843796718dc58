"""The order of the scenes: from the question to the report."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cat_store.demo import scenes
from cat_store.demo.facts import Report, broken_facts
from cat_store.demo.journal import NotSeenError
from cat_store.demo.narrator import Narrator, Plain
from cat_store.demo.options import DemoOptions
from cat_store.demo.retries import repeat_orders
from cat_store.demo.stage import Stage, open_stage
from cat_store.demo.view import LiveView
from tenure_testbed import NotReachedError, ServerError

__all__ = ["play"]

_HELD = 0
_BROKEN = 1

# Slow enough that a scene's own orders stand out, fast enough that every death happens among orders.
_ORDER_EVERY_S = 0.7


async def play(options: DemoOptions) -> int:
    """
    Play the whole story, and write the report.

    Returns:
        0 when every fact holds; 1 when one does not, or when the story broke off.
    """
    began_at = time.monotonic()
    try:
        async with open_stage(options) as stage, _narrator(stage) as narrator:
            report = await _play(stage, narrator, began_at)
    except (NotSeenError, NotReachedError, ServerError) as error:
        _write(options.report, {"store": options.store, "broken": [f"The story broke off: {error}"]})
        print(f"The story broke off: {error}")  # noqa: T201 -- it is what the command is for
        return _BROKEN
    _write(options.report, msgspec.to_builtins(report))
    for sentence in report.broken or ["Every fact holds."]:
        print(sentence)  # noqa: T201
    return _BROKEN if report.broken else _HELD


async def _play(stage: Stage, narrator: Narrator, began_at: float) -> Report:
    without = await scenes.without_locks(stage, narrator)
    placed_before = len(stage.shop.placed)
    with_locks = await scenes.with_locks(stage, narrator)
    async with _customers(stage):
        kill = await scenes.kill_the_owner(stage, narrator)
        term = await scenes.stop_the_owner(stage, narrator)
        fencing = await scenes.pause_the_owner(stage, narrator)
        orders = await repeat_orders(stage, narrator)
    with_locks = await scenes.settle(stage, narrator, with_locks, placed_before)
    report = Report(
        store=stage.options.store,
        ttl_s=stage.options.ttl_s,
        tick_s=stage.options.tick_s,
        without_locks=without,
        with_locks=with_locks,
        kill9=kill,
        kill9_takeover_s=kill.takeover_s,
        sigterm=term,
        sigterm_handover_s=term.handover_s,
        fencing=fencing,
        orders=orders,
        took_s=round(time.monotonic() - began_at, 1),
    )
    return msgspec.structs.replace(report, broken=broken_facts(report))


@contextlib.asynccontextmanager
async def _narrator(stage: Stage) -> AsyncIterator[Narrator]:
    if stage.options.headless:
        yield Plain()
        return
    async with LiveView(stage) as view:
        yield view


@contextlib.asynccontextmanager
async def _customers(stage: Stage) -> AsyncIterator[None]:
    """Place an order every now and then: owners die among orders, not in an empty shop."""

    async def order() -> None:
        while True:
            await stage.shop.place_orders(1)
            await asyncio.sleep(_ORDER_EVERY_S)

    ordering = asyncio.create_task(order(), name="customers")
    try:
        yield
    finally:
        ordering.cancel()
        await asyncio.wait({ordering})
        if not ordering.cancelled():
            ordering.result()  # customers that could not order are news


def _write(path: Path | None, report: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
