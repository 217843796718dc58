"""Sealed responses on a server: what it holds is nothing, and what is moved to another record does not open."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tenure.errors import SealError
from tenure.ext.sealing import AesGcmSealer
from tenure.idempotency import Execution, Idempotency, Replay
from tenure_testbed import ValkeyServer
from tenure_valkey import ValkeyIdempotencyStore

RESPONSE = b"canary: 4111 1111 1111 1111"
RECORD = "idem:order"


@pytest.fixture
async def idempotency(valkey_url: str, open_records: Any, client: str) -> AsyncIterator[Idempotency]:
    store: ValkeyIdempotencyStore = open_records(valkey_url, client=client)
    sealer = AesGcmSealer({"2026-11": bytes(range(32))}, current="2026-11")
    async with Idempotency(store, sealer=sealer) as opened:
        yield opened


async def complete(idempotency: Idempotency) -> None:
    begun = await idempotency.begin("order", "cats")
    assert isinstance(begun, Execution)
    await begun.complete(RESPONSE)


async def test_a_server_that_is_full_keeps_a_sealed_response_and_gives_it_back(
    idempotency: Idempotency, valkey_server: ValkeyServer
) -> None:
    begun = await idempotency.begin("order", "cats")
    valkey_server.set_maxmemory(1)
    try:
        assert isinstance(begun, Execution)
        await begun.complete(RESPONSE)
        replay = await idempotency.begin("order", "cats")
        assert isinstance(replay, Replay)
        assert replay.payload == RESPONSE
        with pytest.raises(Exception, match=r"OOM|maxmemory"):
            await idempotency.begin("another", "cats")
    finally:
        valkey_server.set_maxmemory(0)


async def test_the_server_holds_nothing_of_what_is_sealed(
    idempotency: Idempotency, valkey_server: ValkeyServer
) -> None:
    await complete(idempotency)
    find = "return string.find(redis.call('HGET', KEYS[1], 'response'), ARGV[1], 1, true) and 1 or 0"
    assert valkey_server.execute("EVAL", find, 1, RECORD, "2026-11") == 1, "the key id is in clear"
    for secret in ("canary", "4111", "1111"):
        assert valkey_server.execute("EVAL", find, 1, RECORD, secret) == 0


MOVES: dict[str, tuple[Callable[[ValkeyServer], Any], str, str]] = {
    "to another key": (lambda server: server.execute("COPY", RECORD, "idem:another"), "another", "cats"),
    "to another owner": (lambda server: server.execute("HSET", RECORD, "owner", "thief"), "order", "cats"),
    "to another payload": (lambda server: server.execute("HSET", RECORD, "fingerprint", "dogs"), "order", "dogs"),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
async def test_a_record_that_was_moved_is_an_error_and_never_a_second_execution(
    idempotency: Idempotency, valkey_server: ValkeyServer, move: tuple[Callable[[ValkeyServer], Any], str, str]
) -> None:
    await complete(idempotency)
    act, key, fingerprint = move
    act(valkey_server)
    for _ in range(2):
        with pytest.raises(SealError) as caught:
            await idempotency.begin(key, fingerprint)
        assert "canary" not in f"{caught.value}{caught.value!r}"
    assert valkey_server.execute("HEXISTS", f"idem:{key}", "response") == 1
