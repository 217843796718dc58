"""The live page in a browser: `cat-store demo --open`."""

import asyncio
import contextlib
import os
import signal
import webbrowser
from collections.abc import AsyncIterator
from typing import Final

from cat_store.demo.journal import NotSeenError
from cat_store.demo.stage import INSTANCES, Stage
from cat_store.demo.supervisor import StageSupervisor

__all__ = ["keep_open", "page_url", "showing"]

_UP_WITHIN_S: Final = 60.0
_ENDS: Final = (signal.SIGINT, signal.SIGTERM)


def page_url(stage: Stage) -> str:
    """Where the page is; every replica serves it, and it goes on at another one when its own has died."""
    return f"{stage.url_of(INSTANCES[0])}/"


@contextlib.asynccontextmanager
async def showing(stage: Stage) -> AsyncIterator[None]:
    """Open the page in a browser as soon as every replica has been up, if somebody asked for it."""
    if not stage.options.open_page:
        yield
        return
    opening = asyncio.create_task(_open(stage), name="open the page")
    try:
        yield
    finally:
        opening.cancel()
        await asyncio.wait({opening})


async def keep_open(stage: Stage, supervisor: StageSupervisor) -> None:
    """Hand the shop, which runs with locks, to whoever is at the page, until Ctrl-C or SIGTERM."""
    supervisor.story_told = True
    print(  # noqa: T201 -- it is what the command is for
        f"The shop runs on, with locks, at {page_url(stage)}\n"
        "The buttons of the page are yours. Press Ctrl-C here to end it.",
        flush=True,
    )
    await _told_to_end()
    print("The shop closes.", flush=True)  # noqa: T201 -- it takes a moment, and somebody waits


async def _open(stage: Stage) -> None:
    with contextlib.suppress(NotSeenError):  # the scene that starts them says so
        await stage.journal.wait_until(
            lambda: all(stage.journal.count("replica.up", instance=name) for name in INSTANCES),
            "the start of every replica",
            within_s=_UP_WITHIN_S,
        )
        await asyncio.to_thread(_browse, page_url(stage))


def _browse(url: str) -> None:
    """Open a browser; without one the address in the terminal has to do."""
    with contextlib.suppress(webbrowser.Error):
        browser = webbrowser.get()
        # A browser for the terminal would draw over the live view, and take its keys.
        if type(browser) is webbrowser.GenericBrowser and not os.environ.get("BROWSER"):
            return
        browser.open(url)


async def _told_to_end() -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    before = {number: signal.getsignal(number) for number in _ENDS}
    for number in _ENDS:
        loop.add_signal_handler(number, told.set)
    try:
        await told.wait()
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)  # a second Ctrl-C, while the shop closes, does what it did before
