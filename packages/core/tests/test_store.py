"""The contract's values: what a store may answer, and what its records let a log see."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tenure import Acquired, Held, InMemoryLockStore, StoreReplyError
from tenure.store import (
    MAX_TOKEN,
    ChecksServer,
    Claim,
    Finding,
    ListsLocks,
    LockRecord,
    QueuesWaiters,
    RenewsMany,
    WakesWaiters,
    check_acquire_reply,
)

OWNER = "shop-1:3f6c7c9d7be14b7c8a0e4b1d2f3a4b5c"


@pytest.mark.parametrize(
    "reply", [Held(), Held(0), Held(expires_in_ms=1500), Acquired(1), Acquired(MAX_TOKEN), Acquired(7, "expired")]
)
def test_a_reply_of_the_contract_passes_as_it_is(reply: Acquired | Held) -> None:
    assert check_acquire_reply(reply) is reply


@pytest.mark.parametrize(
    "reply", [None, True, 1, 41.0, {"token": 41}, (41,), SimpleNamespace(token=41, after=None), Held]
)
def test_anything_else_is_never_a_grant(reply: object) -> None:
    kind = type(reply).__name__
    with pytest.raises(StoreReplyError, match=rf"returned a {kind}; it must return Acquired\(token\) or Held\(\)"):
        check_acquire_reply(reply)


@pytest.mark.parametrize("token", [None, True, "41", 41.0, b"41"])
def test_a_token_that_is_no_int_is_never_a_grant(token: Any) -> None:
    kind = type(token).__name__
    with pytest.raises(StoreReplyError, match=rf"a token of type {kind}; it must be an int\. .* needs int\(token\)"):
        check_acquire_reply(Acquired(token))


@pytest.mark.parametrize("token", [0, -1, MAX_TOKEN + 1, 10**5000], ids=["0", "-1", "2**53", "endless"])
def test_a_token_that_no_fence_can_use_is_never_a_grant(token: int) -> None:
    with pytest.raises(StoreReplyError, match=r"outside 1 to 2\*\*53 - 1"):
        check_acquire_reply(Acquired(token))


def test_the_greatest_token_is_the_last_that_a_float_tells_from_its_neighbours() -> None:
    assert MAX_TOKEN == 2**53 - 1
    assert float(MAX_TOKEN) + 1 == MAX_TOKEN + 1
    assert float(MAX_TOKEN + 1) + 1 == MAX_TOKEN + 1


@pytest.mark.parametrize(
    "value", [Claim("invoices", OWNER, 30_000), LockRecord("invoices", OWNER, 41, 29_000)], ids=["claim", "record"]
)
def test_the_repr_of_what_holds_an_owner_does_not(value: object) -> None:
    assert OWNER.rpartition(":")[2] not in repr(value)
    assert "key='invoices'" in repr(value)


def test_a_record_shows_the_instance_that_its_owner_begins_with() -> None:
    record = LockRecord("invoices", OWNER, 41, 29_000)
    assert record.instance == "shop-1"
    assert repr(record) == "LockRecord(key='invoices', instance='shop-1', token=41, expires_in_ms=29000)"


@pytest.mark.parametrize(
    ("owner", "instance"), [("eu:shop:1:abc", "eu:shop:1"), ("abc", ""), (":abc", ""), ("shop-1:", "shop-1")]
)
def test_an_instance_may_hold_colons_and_may_be_missing(owner: str, instance: str) -> None:
    assert LockRecord("invoices", owner, 41, 29_000).instance == instance


def test_a_finding_reads_as_what_was_found_what_to_do_and_its_code() -> None:
    finding = Finding("table-missing", fatal=True, message="There is no table.", remedy="Run the migration.")
    assert str(finding) == "There is no table. Run the migration. [table-missing]"


@pytest.mark.parametrize("value", [Acquired(1), Held(), Claim("k", "o", 1), LockRecord("k", "o", 1, 1)])
def test_what_a_store_answers_cannot_be_changed(value: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, None)


class BareStore:
    """The three methods that a store must have, and none that it may have."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        return Held()

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        return False

    async def release(self, key: str, owner: str) -> bool:
        return False


@pytest.mark.parametrize("capability", [RenewsMany, ListsLocks, ChecksServer, WakesWaiters, QueuesWaiters])
def test_a_capability_is_found_by_what_a_store_has(capability: type) -> None:
    assert not isinstance(BareStore(), capability)
    assert isinstance(InMemoryLockStore(), capability) == (capability is not ChecksServer)
