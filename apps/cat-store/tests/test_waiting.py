"""A replica that starts before its servers: it waits, says for what, and gives up with the setting to look at."""

import asyncio
import dataclasses
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cat_store.settings import Settings
from cat_store.waiting import UnreachableError, wait_for, wait_for_all

PAUSE_S = 0.01

Launch = Callable[..., Awaitable[list[Any]]]


def caught(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "event", None) == event]


async def test_what_answers_at_once_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def ask() -> None:
        return None

    await wait_for("The database", "CAT_STORE_DATABASE_URL", ask, within_s=1, pause_s=PAUSE_S)
    assert caught(caplog, "replica.waiting") == []


async def test_what_comes_up_late_is_waited_for_and_both_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        if asked < 5:
            raise ConnectionRefusedError("postgresql://shop:hunter2@db")

    await wait_for("The database", "CAT_STORE_DATABASE_URL", ask, within_s=5, pause_s=PAUSE_S)
    assert caught(caplog, "replica.waiting") == ["The database does not answer yet (ConnectionRefusedError); waiting"]
    assert caught(caplog, "replica.found") == ["The database answers"]


async def test_what_stays_away_is_given_up_with_the_setting_to_look_at_and_no_password() -> None:
    async def ask() -> None:
        raise ConnectionRefusedError("postgresql://shop:hunter2@db")

    with pytest.raises(UnreachableError) as given_up:
        await wait_for("The database", "CAT_STORE_DATABASE_URL", ask, within_s=0.1, pause_s=PAUSE_S)
    assert "CAT_STORE_DATABASE_URL" in str(given_up.value)
    assert "hunter2" not in str(given_up.value)
    assert given_up.value.__cause__ is None


@pytest.fixture
def up(settings: Settings, valkey_url: str, partners_url: str) -> Settings:
    return dataclasses.replace(
        settings,
        valkey_url=valkey_url,
        accounting_url=partners_url,
        warehouse_url=partners_url,
        start_within_s=30,
    )


async def test_a_shop_that_is_up_is_found(up: Settings) -> None:
    await wait_for_all(up)


@pytest.mark.parametrize(
    ("setting", "url", "variable"),
    [
        ("database_url", "postgresql+asyncpg://shop@127.0.0.1:1/shop", "CAT_STORE_DATABASE_URL"),
        ("valkey_url", "redis://127.0.0.1:1/0", "CAT_STORE_VALKEY_URL"),
        ("accounting_url", "http://127.0.0.1:1/accounting", "CAT_STORE_ACCOUNTING_URL"),
        ("warehouse_url", "http://127.0.0.1:1/warehouse", "CAT_STORE_WAREHOUSE_URL"),
    ],
)
async def test_a_server_that_is_not_there_is_named(up: Settings, setting: str, url: str, variable: str) -> None:
    changed = dataclasses.replace(up, start_within_s=0.5, **{setting: url})  # type: ignore[arg-type]
    with pytest.raises(UnreachableError) as found:
        await wait_for_all(changed)
    assert re.findall(r"CAT_STORE_[A-Z]+_URL", str(found.value)) == [variable]


async def test_everything_that_is_not_there_is_named_at_once(settings: Settings) -> None:
    nothing = dataclasses.replace(
        settings, database_url="postgresql+asyncpg://shop@127.0.0.1:1/shop", start_within_s=0.5
    )
    with pytest.raises(UnreachableError) as found:
        await wait_for_all(nothing)
    assert len(re.findall(r"CAT_STORE_[A-Z]+_URL", str(found.value))) == 4


async def test_a_replica_without_its_database_says_so_in_one_line_and_ends(launch: Launch) -> None:
    [replica] = await launch(
        1, up=False, DATABASE_URL="postgresql+asyncpg://shop:hunter2@127.0.0.1:1/shop", START_WITHIN="1"
    )
    await asyncio.to_thread(replica.wait, 60)
    text = replica.output.tail()
    assert "The database did not answer within 1 s" in text
    assert "Traceback" not in text
    assert "hunter2" not in text
