"""The contract of idempotency stores: replies that it does not allow, and values whose text tells nothing."""

from typing import Any

import pytest

from tenure import ConfigurationError, StoreReplyError
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    Completed,
    Completion,
    InFlight,
    Mismatch,
    RecordState,
    check_acquire_reply,
    check_completion_reply,
    check_limit,
    check_response,
)

ALLOWED = [
    Acquired(1),
    Acquired(7),
    InFlight(1),
    Abandoned(2),
    Abandoned(1, effect_committed=True),
    Mismatch(RecordState.COMPLETED),
    Completed(b"", "a:1"),
]


@pytest.mark.parametrize("reply", ALLOWED, ids=str)
def test_a_reply_of_the_contract_is_passed_on(reply: Any) -> None:
    assert check_acquire_reply(reply) is reply


@pytest.mark.parametrize(
    "reply",
    [None, True, "acquired", ("acquired", 1), Acquired(0), Acquired(True), Acquired("1"), Completed("x", "a")],  # type: ignore[arg-type]
)
def test_any_other_reply_is_an_error_and_never_lets_an_execution_begin(reply: Any) -> None:
    with pytest.raises(StoreReplyError):
        check_acquire_reply(reply)


@pytest.mark.parametrize("completion", Completion)
def test_a_completion_is_passed_on(completion: Completion) -> None:
    assert check_completion_reply(completion) is completion


@pytest.mark.parametrize("reply", [None, True, "stored"])
def test_any_other_answer_to_a_completion_is_an_error(reply: Any) -> None:
    with pytest.raises(StoreReplyError):
        check_completion_reply(reply)


@pytest.mark.parametrize("limit", [0, -1, True, 1.0, "1", 1_000_001])
def test_a_limit_that_is_no_number_of_records_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigurationError):
        check_limit(limit)


@pytest.mark.parametrize("response", ["text", bytearray(b"x"), memoryview(b"x"), None])
def test_a_response_that_is_not_bytes_is_refused_and_not_shown(response: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_response(response)
    assert "text" not in str(refused.value).replace("bytes", "")


def test_neither_the_response_nor_its_owner_is_in_the_text_of_a_reply() -> None:
    assert "canary" not in repr(Completed(b"canary", "canary:1"))
