"""The process of the users: Locust without its page, for one block of load."""

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from cat_store_load.plan import Plan

__all__ = ["CALM", "EVERYBODY", "CrowdError", "check_locust", "load"]

LOCUSTFILE: Final = Path(__file__).resolve().with_name("shoppers.py")
"""Locust loads a file by its path, whatever its name is."""

CALM: Final = ("Buyer", "Reader", "Administrator")
"""Who comes where times are compared: nobody who repeats a request because of what another one did."""

EVERYBODY: Final = (*CALM, "HastyBuyer", "StormBuyer")

_STOP_S: Final = 20
"""How long users may take to end what they are at, in seconds: longer than they insist on an answer."""

_START_S: Final = 30
"""What an interpreter that imports Locust may take beside the block, on a busy machine."""


class CrowdError(Exception):
    """The users could not do what they were told; the message says why, and what to do."""


def check_locust() -> None:
    """
    Look whether Locust is installed, without importing it.

    Raises:
        CrowdError: It is not.
    """
    if importlib.util.find_spec("locust") is None:
        raise CrowdError(
            "Locust is not installed: it is kept out of the other tools' environment, for it changes the standard "
            "library for its process. Run `uv run --group load cat-store-load`."
        )


async def load(plan: Plan, *, users: int, seconds: int, classes: tuple[str, ...]) -> None:
    """
    Have users do what the plan says, and return when the last one has ended.

    Args:
        plan: The plan.
        users: How many.
        seconds: For how long they begin new things; what was begun is ended after that.
        classes: Who comes, by the names in `shoppers`.

    Raises:
        CrowdError: The process failed or did not end; the message has its last lines.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "locust", "--locustfile", str(LOCUSTFILE), "--headless", "--only-summary", "--skip-log"),
        *("--users", str(users), "--spawn-rate", str(users), "--run-time", f"{seconds}s"),
        *("--stop-timeout", str(_STOP_S), "--exit-code-on-error", "0", "--loglevel", "WARNING"),
        *classes,
        env={**os.environ, **plan.environment(), "PYTHONUNBUFFERED": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    said = asyncio.create_task(process.communicate())
    try:
        done, _ = await asyncio.wait({said}, timeout=seconds + _STOP_S + _START_S)
    finally:
        if process.returncode is None:
            process.kill()
        _, stderr = await said
    last = "\n".join(stderr.decode("utf-8", "replace").splitlines()[-15:])
    if not done:
        raise CrowdError(f"The users of block {plan.block} did not end. They wrote last:\n{last}")
    if process.returncode:
        raise CrowdError(f"The users of block {plan.block} ended with code {process.returncode}:\n{last}")
