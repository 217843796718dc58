"""Waiting for what a replica needs: containers and machines start in any order, and a server may restart meanwhile."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import httpx
import redis.asyncio
from sqlalchemy import text

from cat_store.database.engine import create_engine
from cat_store.settings import PREFIX, Settings

__all__ = ["UnreachableError", "wait_for", "wait_for_all"]

logger = logging.getLogger(__name__)

_ASK_WITHIN_S: Final = 3.0
"""How long one attempt may take, in seconds: a server that is there answers in milliseconds."""

_PAUSE_S: Final = 1.0

Ask = Callable[[], Awaitable[object]]


class UnreachableError(Exception):
    """Something that a replica needs did not answer in time; the message says what, and which setting to look at."""


async def wait_for_all(settings: Settings) -> None:
    """
    Wait until the database, the Valkey and the partners answer, side by side.

    Raises:
        UnreachableError: Some of them did not within `start_within_s`; the message tells of each.
    """

    async def database() -> None:
        engine = create_engine(settings.database_url)
        try:
            async with engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        finally:
            await engine.dispose()

    async def valkey() -> None:
        async with redis.asyncio.Redis.from_url(
            settings.valkey_url, socket_timeout=_ASK_WITHIN_S, socket_connect_timeout=_ASK_WITHIN_S
        ) as client:
            await cast("Awaitable[Any]", client.ping())

    def partner(url: str) -> Ask:
        async def ask() -> None:
            # Whatever it answers, it is there: a partner that has a bad day fails a job and not a start.
            async with httpx.AsyncClient(timeout=_ASK_WITHIN_S) as client:
                await client.get(url)

        return ask

    needed: tuple[tuple[str, str, Ask], ...] = (
        ("The database", "DATABASE_URL", database),
        ("The Valkey of the schedule", "VALKEY_URL", valkey),
        ("Accounting", "ACCOUNTING_URL", partner(settings.accounting_url)),
        ("The warehouse", "WAREHOUSE_URL", partner(settings.warehouse_url)),
    )
    found = await asyncio.gather(
        *(wait_for(what, PREFIX + variable, ask, within_s=settings.start_within_s) for what, variable, ask in needed),
        return_exceptions=True,
    )
    if problems := [str(one) for one in found if isinstance(one, UnreachableError)]:
        raise UnreachableError(" ".join(problems))


async def wait_for(what: str, variable: str, ask: Ask, *, within_s: float, pause_s: float = _PAUSE_S) -> None:
    """
    Ask again and again until something answers.

    Args:
        what: What is waited for, for people.
        variable: The setting to look at where it stays away.
        ask: Raises while it does not answer.
        within_s: How long to wait, in seconds.
        pause_s: The pause between two attempts, in seconds.

    Raises:
        UnreachableError: It did not answer in time.
    """
    loop = asyncio.get_running_loop()
    until, said = loop.time() + within_s, ""
    while True:
        try:
            async with asyncio.timeout(_ASK_WITHIN_S):
                await ask()
        except Exception as error:  # noqa: BLE001 -- whatever a driver raises: it does not answer
            # The type alone: a driver's text may hold an address with a password in it.
            found = type(error).__name__
            if loop.time() + pause_s > until:
                raise UnreachableError(
                    f"{what} did not answer within {within_s:g} s ({found}). Is it up, and is {variable} right?"
                ) from None
            if found != said:
                said = found
                logger.warning("%s does not answer yet (%s); waiting", what, found, extra={"event": "replica.waiting"})
            await asyncio.sleep(pause_s)
        else:
            if said:
                logger.info("%s answers", what, extra={"event": "replica.found"})
            return
