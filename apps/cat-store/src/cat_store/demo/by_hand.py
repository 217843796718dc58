"""The scene of the administrator who starts the export by hand, on two replicas at once."""

import asyncio
from http import HTTPStatus
from typing import Final
from uuid import uuid4

import httpx

from cat_store.admin.token import ADMIN_TOKEN
from cat_store.demo.facts import ManualExport
from cat_store.demo.narrator import Narrator
from cat_store.demo.stage import INSTANCES, Stage
from cat_store.partners.wire import AccountingSwitches

__all__ = ["export_by_hand"]

_ORDERS: Final = 3
_JOB: Final = "/admin/jobs/invoice-export"
_PATIENCE_S: Final = 30.0


async def export_by_hand(stage: Stage, narrator: Narrator) -> ManualExport:
    """Export by hand: at two replicas at once, beside an export that takes long, and without the token."""
    narrator.scene(
        "The export by hand",
        "An administrator pauses the scheduled export and starts it by hand, at two replicas at once. One exports; the "
        "other one waits for it and finds nothing left. Beside a run of more than two seconds the answer is 409.",
    )
    await stage.wait_until_up()
    headers = {ADMIN_TOKEN: stage.admin_token}
    async with httpx.AsyncClient(headers=headers, timeout=_PATIENCE_S) as administrator:
        await _pause(stage, administrator)
        (await _export(administrator, stage.url_of(INSTANCES[0]))).raise_for_status()  # what came since the last tick
        await stage.shop.place_orders(_ORDERS)
        here, there = (stage.url_of(name) for name in INSTANCES[:2])
        answers = await asyncio.gather(_export(administrator, here), _export(administrator, there))
        exported = sorted((answer.raise_for_status().json()["exported"] for answer in answers), reverse=True)
        narrator.step(f"One replica exported {exported[0]} invoices, the other one {exported[1]}.")
        conflict = await _beside_a_long_one(stage, administrator)
        (await administrator.post(f"{here}{_JOB}/resume")).raise_for_status()
    async with httpx.AsyncClient(timeout=_PATIENCE_S) as stranger:
        forbidden = await _export(stranger, here)
    facts = ManualExport(_ORDERS, exported, conflict, forbidden.status_code)
    narrator.result(
        f"{exported[0]} and {exported[1]} of {_ORDERS} invoices at two replicas at once, {conflict} beside a run that "
        f"takes long, {facts.forbidden_status} without the token"
    )
    await narrator.breathe()
    return facts


async def _pause(stage: Stage, administrator: httpx.AsyncClient) -> None:
    """Pause the schedule's export, and return when no run of it that was under way is left on any replica."""
    mark = stage.journal.mark
    (await administrator.post(f"{stage.url_of(INSTANCES[0])}{_JOB}/pause")).raise_for_status()
    await stage.journal.wait_until(
        # A replica's ticks come one after the other: one that is skipped has none before it that still runs.
        lambda: all(
            stage.journal.count("job.skipped", after=mark, instance=name, job="invoice-export") for name in INSTANCES
        ),
        "a skipped tick of every replica",
        within_s=2 * stage.options.tick_s + _PATIENCE_S,
    )


async def _beside_a_long_one(stage: Stage, administrator: httpx.AsyncClient) -> int:
    """Ask for an export while accounting is slow to answer another one, and return what the status is."""
    await stage.partners.switch_accounting(AccountingSwitches(hold_receipts=True))
    await stage.shop.place_orders(1)
    here, there = (stage.url_of(name) for name in INSTANCES[:2])
    long = asyncio.create_task(_export(administrator, here))
    try:
        await stage.partners.wait_for_accounting(
            lambda statement: statement.waiting > 0, "an upload of the export by hand", within_s=_PATIENCE_S
        )
        refused = await _export(administrator, there)
    finally:
        await stage.partners.switch_accounting(AccountingSwitches())
    if (await long).status_code != HTTPStatus.OK:
        long.result().raise_for_status()
    return refused.status_code


async def _export(http: httpx.AsyncClient, at: str) -> httpx.Response:
    return await http.post(f"{at}/admin/invoice-export", headers={"Idempotency-Key": str(uuid4())})
