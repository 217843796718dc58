"""Errors: one class for each thing that a caller can do about it, and messages that say what that is."""

import copy
import inspect
import pickle
from typing import Any

import pytest

import tenure
from tenure import (
    ConfigurationError,
    LeaseLostError,
    LeaseStateError,
    LockNotAcquiredError,
    LossReason,
    StoreError,
    StoreReplyError,
    StoreTimeoutError,
    TenureError,
    errors,
    idempotency,
)
from tenure.idempotency import (
    ExecutionLostError,
    IdempotencyError,
    InFlightError,
    KeyReusedError,
    NoEffectError,
    OutcomeUnknownError,
    ResponseNotStoredError,
    SealError,
    StoreFullError,
)

EXAMPLES: dict[type[TenureError], TenureError] = {
    ConfigurationError: ConfigurationError("ttl is 0: it must be at least 1 ms."),
    LockNotAcquiredError: LockNotAcquiredError("invoices", 2.0),
    LeaseLostError: LeaseLostError("invoices", 41, LossReason.EXPIRED),
    LeaseStateError: LeaseStateError("This Locks is closed."),
    StoreError: StoreError("The store failed."),
    StoreTimeoutError: StoreTimeoutError("renew", 10.0),
    StoreReplyError: StoreReplyError("The store's acquire() returned a dict."),
    StoreFullError: StoreFullError("The store holds its 2 records."),
    InFlightError: InFlightError(1.5),
    KeyReusedError: KeyReusedError(),
    OutcomeUnknownError: OutcomeUnknownError(2),
    ResponseNotStoredError: ResponseNotStoredError(),
    ExecutionLostError: ExecutionLostError(),
    NoEffectError: NoEffectError("The provider was closed."),
    SealError: SealError("It is sealed with another key."),
}
PARENTS = [TenureError, IdempotencyError]

CLASSES = [
    member
    for name in errors.__all__
    if isinstance(member := getattr(errors, name), type) and issubclass(member, Exception)
]
EVERY_EXAMPLE = pytest.mark.parametrize("error", EXAMPLES.values(), ids=[cls.__name__ for cls in EXAMPLES])
EVERY_REASON = pytest.mark.parametrize("reason", LossReason)


def test_every_error_has_an_example_here() -> None:
    assert {*CLASSES} - {*PARENTS} == {*EXAMPLES}


@pytest.mark.parametrize(
    ("child", "parents"),
    [
        (TenureError, (Exception,)),
        (ConfigurationError, (TenureError, ValueError)),
        (LockNotAcquiredError, (TenureError,)),
        (LeaseLostError, (TenureError,)),
        (LeaseStateError, (TenureError, RuntimeError)),
        (StoreError, (TenureError,)),
        (StoreTimeoutError, (StoreError,)),
        (StoreReplyError, (StoreError,)),
        (StoreFullError, (StoreError,)),
        (IdempotencyError, (TenureError,)),
        (InFlightError, (IdempotencyError,)),
        (KeyReusedError, (IdempotencyError,)),
        (OutcomeUnknownError, (IdempotencyError,)),
        (ResponseNotStoredError, (IdempotencyError,)),
        (ExecutionLostError, (IdempotencyError,)),
        (NoEffectError, (TenureError,)),
        (SealError, (TenureError,)),
    ],
)
def test_the_hierarchy_is_the_published_one(child: type[Exception], parents: tuple[type[Exception], ...]) -> None:
    assert child.__bases__ == parents


def test_a_silent_store_is_not_taken_for_the_callers_own_timeout() -> None:
    assert not issubclass(StoreTimeoutError, TimeoutError)


@pytest.mark.parametrize("parent", PARENTS)
def test_a_parent_of_errors_is_never_raised_itself(parent: type[Exception]) -> None:
    with pytest.raises(TypeError, match="raise one of its children"):
        parent("something")


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_is_named_where_it_is_imported_from(cls: type[Exception]) -> None:
    home = {"tenure": tenure, "tenure.idempotency": idempotency}[cls.__module__]
    assert getattr(home, cls.__name__) is cls


@EVERY_EXAMPLE
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(error: TenureError, protocol: int) -> None:
    twin = pickle.loads(pickle.dumps(error, protocol))
    assert type(twin) is type(error)
    assert (twin.args, vars(twin), str(twin)) == (error.args, vars(error), str(error))


@EVERY_EXAMPLE
def test_an_error_survives_copying(error: TenureError) -> None:
    twin = copy.copy(error)
    assert (type(twin), vars(twin), str(twin)) == (type(error), vars(error), str(error))


@pytest.mark.parametrize(
    ("cls", "named"),
    [
        (LockNotAcquiredError, {"key": "invoices", "waited_s": 2.0}),
        (LeaseLostError, {"key": "invoices", "token": 41, "reason": LossReason.REFUSED}),
        (StoreTimeoutError, {"operation": "renew", "timeout_s": 10.0}),
        (InFlightError, {"retry_after_s": 1.5}),
        (OutcomeUnknownError, {"attempt": 2}),
        (ResponseNotStoredError, {"summary": b"201"}),
    ],
)
def test_what_an_error_is_made_of_can_be_read_and_pickled_however_it_was_given(
    cls: type[TenureError], named: dict[str, Any]
) -> None:
    error = cls(**named)
    assert vars(error) == named
    assert vars(pickle.loads(pickle.dumps(error))) == named


@pytest.mark.parametrize("cls", CLASSES)
def test_no_error_has_a_place_for_an_owner(cls: type[Exception]) -> None:
    assert not [name for name in inspect.signature(cls).parameters if "owner" in name]
    assert not [name for error in EXAMPLES.values() for name in vars(error) if "owner" in name]


@EVERY_EXAMPLE
def test_the_repr_of_an_error_shows_its_arguments_and_nothing_else(error: TenureError) -> None:
    assert repr(error) == f"{type(error).__name__}{error.args!r}".replace(",)", ")")


def test_a_key_that_is_held_is_reported_with_the_wait_and_a_way_on() -> None:
    assert str(LockNotAcquiredError("invoices", 2.0)) == (
        "Lock 'invoices' is held by another owner, after 2 s of waiting. Try again later, or pass a longer wait=."
    )


def test_a_key_that_was_not_waited_for_is_reported_so() -> None:
    assert str(LockNotAcquiredError("invoices", 0.0)) == (
        "Lock 'invoices' is held by another owner, and no wait was asked for. Try again later, or pass a longer wait=."
    )


def test_a_wait_of_milliseconds_is_a_wait_too() -> None:
    assert "after 0.05 s of waiting" in str(LockNotAcquiredError("invoices", 0.05))


def test_a_web_layer_may_answer_409() -> None:
    assert LockNotAcquiredError("invoices", 0.0).status_hint == 409


def test_a_loss_is_reported_with_key_token_and_what_to_do() -> None:
    assert str(LeaseLostError("invoices", 41, LossReason.EXPIRED)) == (
        "Lost the lease on 'invoices' (fencing token 41): its deadline passed without a renewal that the store "
        "confirmed. Another instance may hold it now: stop, and start over under a new lease."
    )


@EVERY_REASON
def test_every_reason_of_a_loss_has_a_wording_of_its_own(reason: LossReason) -> None:
    said = {other: str(LeaseLostError("invoices", 41, other)) for other in LossReason}
    assert list(said.values()).count(said[reason]) == 1
    assert "stop, and start over under a new lease" in said[reason]


def test_the_reasons_are_stable_for_whoever_stores_them() -> None:
    assert {reason.name: reason.value for reason in LossReason} == {
        "REFUSED": "refused",
        "EXPIRED": "expired",
        "STALLED": "stalled",
        "CLOSED": "closed",
        "MAX_HOLD": "max_hold",
        "FORKED": "forked",
    }


def test_a_silent_store_is_reported_with_what_to_look_at() -> None:
    assert str(StoreTimeoutError("renew", 10.0)) == (
        "The store did not answer renew() within 10 s; its outcome is unknown. Look at the store's load and at its "
        "connection pool (a pool at its limit looks the same)."
    )


@pytest.mark.parametrize("error", [LockNotAcquiredError("invoices", 1234.5678), StoreTimeoutError("renew", 86_400.0)])
def test_a_long_time_is_said_in_plain_figures(error: TenureError) -> None:
    assert "e+" not in str(error)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InFlightError(1.5), 409),
        (KeyReusedError(), 422),
        (OutcomeUnknownError(), 409),
        (ResponseNotStoredError(), 409),
        (ExecutionLostError(), 409),
    ],
)
def test_what_a_repeat_is_told_has_a_status_and_says_what_to_do(error: IdempotencyError, status: int) -> None:
    assert error.status_hint == status
    assert str(error).endswith(".")
    assert any(advice in str(error) for advice in ("Repeat it", "Use a new key", "Find out", "do not repeat", "Roll"))


def test_what_was_kept_in_place_of_a_response_is_not_in_the_message() -> None:
    assert "canary" not in str(ResponseNotStoredError(b"canary"))
    assert "canary" not in repr(ResponseNotStoredError(b"canary"))
