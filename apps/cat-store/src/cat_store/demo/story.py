"""The order of the scenes: from the question to the report."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cat_store.demo import scenes
from cat_store.demo.by_hand import export_by_hand
from cat_store.demo.control import DemoControl
from cat_store.demo.facts import Report, broken_facts
from cat_store.demo.journal import NotSeenError
from cat_store.demo.listening import kill_the_listener
from cat_store.demo.long_count import count_for_long
from cat_store.demo.narrator import Narrator, Plain
from cat_store.demo.night import play_the_night
from cat_store.demo.options import DemoOptions
from cat_store.demo.page import keep_open, showing
from cat_store.demo.retries import repeat_orders
from cat_store.demo.stage import Stage, open_stage
from cat_store.demo.supervisor import StageSupervisor
from cat_store.demo.view import LiveView
from cat_store.settings import PREFIX
from tenure_testbed import NotReachedError, ServerError

__all__ = ["play"]

_HELD = 0
_BROKEN = 1

# Slow enough that a scene's own orders stand out, fast enough that every death happens among orders.
_ORDER_EVERY_S = 0.7


async def play(options: DemoOptions) -> int:
    """
    Play the whole story, and write the report; where the page was asked for, keep the shop running after it.

    Returns:
        0 when every fact holds; 1 when one does not, or when the story broke off.
    """
    began_at = time.monotonic()
    try:
        async with _open_stage(options) as (stage, supervisor):
            async with _narrator(stage) as narrator, showing(stage):
                report = await _play(stage, narrator, began_at)
            _tell(report, options.report)
            if options.open_page:
                await keep_open(stage, supervisor)
    except (NotSeenError, NotReachedError, ServerError) as error:
        _write(options.report, {"store": options.store, "broken": [f"The story broke off: {error}"]})
        print(f"The story broke off: {error}")  # noqa: T201 -- it is what the command is for
        return _BROKEN
    return _BROKEN if report.broken else _HELD


@contextlib.asynccontextmanager
async def _open_stage(options: DemoOptions) -> AsyncIterator[tuple[Stage, StageSupervisor]]:
    """Open the stage, and the way to it that the buttons of the replicas' pages take."""
    async with open_stage(options) as stage:
        supervisor = StageSupervisor(stage)
        async with DemoControl(supervisor) as control:
            stage.environment[f"{PREFIX}DEMO_URL"] = control.url
            yield stage, supervisor


def _tell(report: Report, path: Path | None) -> None:
    _write(path, msgspec.to_builtins(report))
    for sentence in report.broken or ["Every fact holds."]:
        print(sentence, flush=True)  # noqa: T201


async def _play(stage: Stage, narrator: Narrator, began_at: float) -> Report:
    without = await scenes.without_locks(stage, narrator)
    placed_before = len(stage.shop.placed)
    with_locks = await scenes.with_locks(stage, narrator)
    async with _customers(stage):
        kill = await scenes.kill_the_owner(stage, narrator)
        term = await scenes.stop_the_owner(stage, narrator)
        fencing = await scenes.pause_the_owner(stage, narrator)
        orders = await repeat_orders(stage, narrator)
        feed = await kill_the_listener(stage, narrator)
        overlap = await count_for_long(stage, narrator)
    by_hand = await export_by_hand(stage, narrator)  # nobody orders meanwhile: both replicas would find something
    with_locks = await scenes.settle(stage, narrator, with_locks, placed_before)
    night = await play_the_night(stage, narrator)
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
        overlap=overlap,
        manual_export=by_hand,
        conflict_status=by_hand.conflict_status,
        forbidden_status=by_hand.forbidden_status,
        feed=feed,
        dst_night=night,
        history=await stage.past.check(),
        took_s=round(time.monotonic() - began_at, 1),
    )
    if stage.options.open_page:
        await stage.start(locks=True)  # the night has ended them
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
