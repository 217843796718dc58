"""The examples of the README run as they stand, on the servers of the test."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from valkey.asyncio import Valkey

from tenure.testing import idempotency_store_contract, lock_store_contract, run_all
from tenure_testbed import ValkeyServer
from tenure_valkey import ValkeyIdempotencyStore, ValkeyLockStore, errors, startup_check

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def examples(valkey_server: ValkeyServer, valkey_url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Everything that the examples define, one after the other."""
    names: dict[str, Any] = {"__name__": "readme"}
    for block in BLOCKS:
        code = block.replace("localhost:6379", f"127.0.0.1:{valkey_server.port}")
        code = code.replace('"localhost", 6379', f'"127.0.0.1", {valkey_server.port}')
        exec(compile(code, "README.md", "exec"), names)
    return names


def test_the_ten_lines_take_a_lock(examples: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"No other instance is in here. Fencing token: \d{16}\n", capsys.readouterr().out)


def test_the_examples_with_clients_of_one_s_own_work(
    examples: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    asyncio.run(examples["with_glide"]())
    asyncio.run(examples["with_redis_py"]())
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Acquired(")
    assert first == second, "the same owner, the same lock"


def test_what_runs_once_is_replayed(examples: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    asyncio.run(examples["charge_once"]())
    assert capsys.readouterr().out == "The card is charged.\n" + 2 * "{'receipt': '4711'}\n"


@pytest.mark.matrix
async def test_the_runner_of_ten_lines_bears_the_contract(valkey_server: ValkeyServer, capsys: Any) -> None:
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[-1], "README.md", "exec"), names)
    async with Valkey(port=valkey_server.port, max_connections=500, socket_timeout=5) as client:
        runner = names["OwnRunner"](client)
        cases = lock_store_contract(lambda: ValkeyLockStore(runner), concurrent=16, rounds=3, ttl_ms=1000)
        await run_all(case for case in cases if case.capability is None)
        records = idempotency_store_contract(
            lambda: ValkeyIdempotencyStore(runner), concurrent=16, rounds=3, ttl_ms=1000, purges=False
        )
        await run_all(records)


async def test_looking_shows_who_holds_what(store: ValkeyLockStore, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"ValkeyLockStore": ValkeyLockStore}
    exec(compile(BLOCKS[2], "README.md", "exec"), names)
    await store.acquire("invoices:export", f"shop-1:{'0' * 32}", 60_000)
    await names["look"](store)
    assert re.fullmatch(r"invoices:export shop-1 \d{16} \d{5}\n", capsys.readouterr().out)


def test_the_table_of_findings_has_every_code() -> None:
    written = set(re.findall(r'"([a-z-]+)",\n\s+fatal=', Path(startup_check.__file__).read_text(encoding="utf-8")))
    documented = set(re.findall(r"`([a-z-]+)`", README.partition("## At the start")[2].partition("## Looking")[0]))
    assert len(written) >= 7
    assert written <= documented


def test_the_table_of_errors_has_every_error() -> None:
    table = README.partition("## Errors")[2].partition("## Another client")[0]
    assert all(f"`{name}`" in table for name in errors.__all__ if name.endswith("Error"))


def test_the_examples_are_there() -> None:
    assert len(BLOCKS) == 5
    assert len(BLOCKS) == README.count("<!-- not run: it needs a server; ")
