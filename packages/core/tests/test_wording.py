"""Events in words: each has a sentence, a level and, where there is one, its token; none has an owner."""

import dataclasses
import logging
from typing import Any, Literal, get_args

import pytest

from tenure import LossReason
from tenure.events import (
    AcquireRefused,
    Event,
    ExecutionLost,
    ExtensionFailed,
    IdempotencyClosed,
    IdempotencyOutcome,
    IdempotencyStarted,
    JobSkipped,
    JobStarted,
    LeadershipAcquired,
    LeadershipLost,
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    LeaseRenewedLate,
    LocksClosed,
    LocksStarted,
    RecordOutcome,
    ReleaseFailed,
    RenewalFailed,
    SkipReason,
    StoreFinding,
)
from tenure.instrumentation import LoggingHook, tell
from tenure.instrumentation._wording import level_of, sentence_of

DEBUG, INFO, WARNING = logging.DEBUG, logging.INFO, logging.WARNING
JOB = "shop.jobs:export"

# Every event, at least once, with its level and its whole sentence.
WORDING: list[tuple[Event, int, str]] = [
    (LocksStarted("shop-1", "PostgresLockStore", "cluster"), INFO, "Locks: PostgresLockStore (instance shop-1)"),
    (LocksStarted("shop-1", "FileLockStore", "host"), INFO, "Locks: FileLockStore (instance shop-1)"),
    (
        LocksStarted("shop-1", "InMemoryLockStore", "process"),
        WARNING,
        (
            "Locks: InMemoryLockStore. It excludes callers in this process only: every other instance takes the same "
            "locks in a store of its own."
        ),
    ),
    (
        StoreFinding("pool-small", "The pool has 1 connection.", "Give it 5."),
        WARNING,
        "The pool has 1 connection. Give it 5. [pool-small]",
    ),
    (LocksClosed("shop-1"), INFO, "Locks of instance shop-1 closed"),
    (LeaseAcquired("invoices", 41, 0.25, None), DEBUG, 'Acquired "invoices" after 0.250 s (fencing token 41)'),
    (
        LeaseAcquired("invoices", 41, 0.0, "released"),
        DEBUG,
        'Acquired "invoices" after 0.000 s (fencing token 41; the lease before it was released)',
    ),
    (
        LeaseAcquired("invoices", 41, 2.0, "expired"),
        DEBUG,
        (
            'Acquired "invoices" after 2.000 s (fencing token 41; the lease before it expired: its holder may '
            "have left work half done)"
        ),
    ),
    (AcquireRefused("invoices", 2.0), DEBUG, '"invoices" is held by another owner, after 2.000 s'),
    (
        RenewalFailed("invoices", 41, "TimeoutError"),
        WARNING,
        'Could not renew the lease on "invoices" (fencing token 41): TimeoutError; trying again',
    ),
    (
        LeaseRenewedLate("invoices", 41, 4.5, 30.0),
        WARNING,
        (
            'Renewed the lease on "invoices" 4.500 s late, of a ttl of 30 s (fencing token 41): something blocked the '
            "event loop, or the process did not run"
        ),
    ),
    (
        LeaseLost("invoices", 41, LossReason.REFUSED, 12.0),
        WARNING,
        'Lost the lease on "invoices" (fencing token 41) after 12.000 s: the store refused a renewal',
    ),
    (
        LeaseLost("invoices", 41, LossReason.STALLED, 40.0),
        WARNING,
        (
            'Lost the lease on "invoices" (fencing token 41) after 40.000 s: this process did not run until past its '
            "deadline"
        ),
    ),
    (LeaseReleased("invoices", 41, 12.0), DEBUG, 'Released "invoices" after 12.000 s (fencing token 41)'),
    (
        ReleaseFailed("invoices", 41, "ConnectionResetError"),
        WARNING,
        'Could not release "invoices" (fencing token 41): ConnectionResetError; it frees itself when its ttl ends',
    ),
    (
        JobStarted(JOB, "invoices:owner", 41),
        INFO,
        'shop.jobs:export runs on this instance (lease "invoices:owner", fencing token 41)',
    ),
    (
        JobSkipped(JOB, "invoices", SkipReason.ELSEWHERE),
        DEBUG,
        "Skipped shop.jobs:export: it runs on another instance",
    ),
    (JobSkipped(JOB, "invoices", SkipReason.OVERLAP), DEBUG, "Skipped shop.jobs:export: a run is still in progress"),
    (JobSkipped(JOB, "invoices", SkipReason.SLOT_TAKEN), DEBUG, "Skipped shop.jobs:export: its slot was already run"),
    (
        JobSkipped(JOB, "invoices", SkipReason.DRAINING),
        DEBUG,
        "Skipped shop.jobs:export: this instance is shutting down",
    ),
    (LeadershipAcquired("feed", 41), INFO, 'Leading "feed" (fencing token 41)'),
    (LeadershipLost("feed", 41, None, 60.0), INFO, 'Stepped down from "feed" (fencing token 41)'),
    (
        LeadershipLost("feed", 41, LossReason.EXPIRED, 60.0),
        INFO,
        'Leads "feed" no more (fencing token 41): no renewal was confirmed before its deadline',
    ),
    (
        IdempotencyStarted("shop-1", "PostgresIdempotencyStore", "cluster"),
        INFO,
        "Idempotency: PostgresIdempotencyStore (instance shop-1)",
    ),
    (
        IdempotencyStarted("shop-1", "InMemoryIdempotencyStore", "process"),
        WARNING,
        (
            "Idempotency: InMemoryIdempotencyStore. It knows the requests of this process only: every other instance "
            "runs a repeat that reaches it."
        ),
    ),
    (IdempotencyClosed("shop-1", 0), INFO, "Idempotency of instance shop-1 closed"),
    (
        IdempotencyClosed("shop-1", 2),
        WARNING,
        "Idempotency of instance shop-1 closed; 2 executions are left without a stored outcome",
    ),
    (RecordOutcome("c0ffee", IdempotencyOutcome.ACQUIRED, 1), DEBUG, "Request c0ffee (attempt 1) begins"),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.TAKEN_OVER, 2),
        WARNING,
        "Request c0ffee (attempt 2) begins again: how the one before ended is unknown",
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.REPLAYED, size=64),
        DEBUG,
        "Request c0ffee was answered with the stored response (64 bytes)",
    ),
    (RecordOutcome("c0ffee", IdempotencyOutcome.IN_FLIGHT), DEBUG, "Request c0ffee is still in progress"),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.MISMATCH),
        INFO,
        "Request c0ffee was refused: its key belongs to another payload",
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.REFUSED),
        WARNING,
        "Request c0ffee was not begun again: its outcome is unknown, or its response was lost",
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.STORED, 1, 0.25, 64),
        DEBUG,
        "Request c0ffee (attempt 1) is completed (0.250 s, 64 bytes)",
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.TOMBSTONE, 1, 0.25, 0),
        INFO,
        "Request c0ffee (attempt 1) is completed without its response, which could not be kept (0.250 s, 0 bytes)",
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.STALE, 1, 40.0, 64),
        WARNING,
        (
            "Request c0ffee (attempt 1) was replaced before it completed: two may have had their effect (40.000 s, 64 "
            "bytes)"
        ),
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.GONE, 1, 40.0, 64),
        WARNING,
        (
            "Request c0ffee (attempt 1) completed after its record had ended: a repeat would run again (40.000 s, 64 "
            "bytes)"
        ),
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.RELEASED, 1, 0.25),
        DEBUG,
        "Request c0ffee (attempt 1) had no effect and may be repeated (0.250 s)",
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.ABANDONED, 1, 0.25, error="TimeoutError"),
        WARNING,
        "Request c0ffee (attempt 1) ended in an unknown way (0.250 s, TimeoutError)",
    ),
    (
        RecordOutcome("", IdempotencyOutcome.BYPASSED),
        DEBUG,
        "A request came without a key and is not protected",
    ),
    (
        RecordOutcome("", IdempotencyOutcome.OVER_QUOTA),
        DEBUG,
        "A request was refused: its client has as many as it may",
    ),
    (
        RecordOutcome("c0ffee", IdempotencyOutcome.STORE_ERROR, error="ConnectionResetError"),
        WARNING,
        "Request c0ffee met a store that failed (ConnectionResetError)",
    ),
    (
        ExtensionFailed("c0ffee", 1, "TimeoutError"),
        WARNING,
        "Could not extend request c0ffee (attempt 1): TimeoutError; trying again",
    ),
    (
        ExecutionLost("c0ffee", 1, LossReason.EXPIRED),
        WARNING,
        (
            "Request c0ffee (attempt 1) may be begun again elsewhere: it could not be extended in time. Its completion "
            "will tell"
        ),
    ),
]
EVERY_LINE = pytest.mark.parametrize(
    ("event", "level", "sentence"),
    WORDING,
    ids=[f"{type(event).__name__} {number}" for number, (event, *_) in enumerate(WORDING)],
)


@pytest.mark.parametrize("kind", get_args(Event))
def test_every_event_has_its_wording_in_the_table_above(kind: type) -> None:
    assert kind in {type(event) for event, *_ in WORDING}


@EVERY_LINE
def test_an_event_is_said_in_one_sentence_at_its_level(event: Event, level: int, sentence: str) -> None:
    assert sentence_of(event) == sentence
    assert level_of(event) == level


@EVERY_LINE
def test_a_sentence_names_the_token_where_the_event_has_one(event: Any, level: int, sentence: str) -> None:
    if hasattr(event, "token"):
        assert f"fencing token {event.token}" in sentence


@EVERY_LINE
def test_a_sentence_names_the_key_or_the_job(event: Any, level: int, sentence: str) -> None:
    named = getattr(event, "job", None) or getattr(event, "key", None)
    assert named is None or named in sentence


@pytest.mark.parametrize("reason", LossReason)
def test_every_reason_of_a_loss_has_words_of_its_own(reason: LossReason) -> None:
    losses = {other: sentence_of(LeaseLost("invoices", 41, other, 1.0)) for other in LossReason}
    assert list(losses.values()).count(losses[reason]) == 1
    ending = losses[reason].rpartition(": ")[2]
    assert sentence_of(LeadershipLost("feed", 41, reason, 1.0)) == f'Leads "feed" no more (fencing token 41): {ending}'


@pytest.mark.parametrize("kind", [LeaseAcquired, LeadershipAcquired, JobStarted, LeaseReleased])
def test_what_goes_well_is_never_a_warning(kind: type) -> None:
    assert {level for event, level, _ in WORDING if type(event) is kind} <= {DEBUG, INFO}


@pytest.mark.parametrize("kind", [LeaseLost, RenewalFailed, ReleaseFailed, LeaseRenewedLate, StoreFinding])
def test_what_somebody_should_look_into_is_a_warning(kind: type) -> None:
    assert {level for event, level, _ in WORDING if type(event) is kind} == {WARNING}


# ------------------------------------------------------------------------------------------ the log


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(DEBUG, logger="tenure")
    return caplog


@EVERY_LINE
def test_the_log_has_the_sentence_and_the_event_itself(
    event: Event, level: int, sentence: str, log: pytest.LogCaptureFixture
) -> None:
    LoggingHook()(event)
    (record,) = log.records
    assert (record.name, record.levelno, record.getMessage()) == ("tenure", level, sentence)
    assert vars(record)["tenure_event"] is event


def test_a_key_that_looks_like_a_format_is_logged_as_it_is(log: pytest.LogCaptureFixture) -> None:
    LoggingHook()(LeaseReleased("100%s {token} %(key)d", 41, 1.0))
    assert log.messages == ['Released "100%s {token} %(key)d" after 1.000 s (fencing token 41)']


def test_events_go_to_the_logger_that_is_given(log: pytest.LogCaptureFixture) -> None:
    mine = logging.getLogger("shop.locks")
    log.set_level(DEBUG, logger=mine.name)
    LoggingHook(mine)(LocksClosed("shop-1"))
    assert [record.name for record in log.records] == ["shop.locks"]


class Unspeakable:
    """A key that cannot be put into a sentence."""

    def __format__(self, spec: str) -> str:
        raise AssertionError("somebody put a sentence together that nobody wants")

    __str__ = __repr__ = __format__  # type: ignore[assignment]


def test_a_sentence_that_nobody_wants_is_not_put_together(log: pytest.LogCaptureFixture) -> None:
    event = dataclasses.replace(LeaseReleased("invoices", 41, 1.0), key=Unspeakable())  # type: ignore[arg-type]
    log.set_level(INFO, logger="tenure")
    LoggingHook()(event)
    assert log.records == []
    log.set_level(DEBUG, logger="tenure")
    with pytest.raises(AssertionError, match="nobody wants"):
        LoggingHook()(event)


# ---------------------------------------------------------------------------------------- the hooks


def test_a_hook_that_raises_stops_neither_the_others_nor_who_tells(log: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise LookupError("a bug of the application's")

    event = LocksClosed("shop-1")
    tell([heard.append, broken, heard.append], event)
    assert heard == [event, event]
    (record,) = log.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "A hook failed on LocksClosed.")
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_not_taken_for_a_hooks_error(signal: type[BaseException]) -> None:
    def interrupted(event: Event) -> None:
        raise signal

    with pytest.raises(signal):
        tell([interrupted], LocksClosed("shop-1"))


def test_hooks_are_told_in_their_order() -> None:
    order: list[Literal["first", "second"]] = []
    tell([lambda _: order.append("first"), lambda _: order.append("second")], LocksClosed("shop-1"))
    assert order == ["first", "second"]


def test_no_hooks_hear_nothing() -> None:
    tell([], LocksClosed("shop-1"))


@pytest.mark.parametrize("outcome", IdempotencyOutcome)
def test_every_outcome_of_a_request_has_its_wording_in_the_table_above(outcome: IdempotencyOutcome) -> None:
    assert outcome in {event.outcome for event, *_ in WORDING if isinstance(event, RecordOutcome)}


@pytest.mark.parametrize("reason", LossReason)
def test_every_loss_of_an_execution_can_be_said(reason: LossReason) -> None:
    assert "begun again elsewhere: " in sentence_of(ExecutionLost("c0ffee", 1, reason))
