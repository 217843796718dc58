"""The lease machine: its table pair by pair, and its rules R1 to R5 as facts."""

import dataclasses
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import LossReason
from tenure._lease_machine import (
    MARGIN_SHARE,
    RENEWALS_PER_TTL,
    TRANSITIONS,
    LeaseEvent,
    LeaseState,
    Term,
    begin,
    is_held,
    postponed,
    reason_at,
    step,
    trusted_until,
)

HELD, LOST, RELEASED = LeaseState
CONFIRMED, UNKNOWN, REFUSED, TIME, CLOSED, OVERDUE, GIVEN_BACK = LeaseEvent

TTL_S = 30.0
SENT_AT = 1000.0
DEADLINE = 1029.7  # SENT_AT + 30 s - one per cent

LATER = SENT_AT + 1  # well before the deadline


# ------------------------------------------------------------------------------------- the table

TABLE = {
    (HELD, CONFIRMED): HELD,
    (HELD, UNKNOWN): HELD,
    (HELD, REFUSED): LOST,
    (HELD, TIME): HELD,
    (HELD, CLOSED): LOST,
    (HELD, OVERDUE): LOST,
    (HELD, GIVEN_BACK): RELEASED,
    (LOST, CONFIRMED): LOST,
    (LOST, UNKNOWN): LOST,
    (LOST, REFUSED): LOST,
    (LOST, TIME): LOST,
    (LOST, CLOSED): LOST,
    (LOST, OVERDUE): LOST,
    (LOST, GIVEN_BACK): LOST,
    (RELEASED, CONFIRMED): RELEASED,
    (RELEASED, UNKNOWN): RELEASED,
    (RELEASED, REFUSED): RELEASED,
    (RELEASED, TIME): RELEASED,
    (RELEASED, CLOSED): RELEASED,
    (RELEASED, OVERDUE): RELEASED,
    (RELEASED, GIVEN_BACK): RELEASED,
}


def term_in(state: LeaseState) -> Term:
    held = begin(SENT_AT, TTL_S)
    if state is HELD:
        return held
    return step(held, REFUSED if state is LOST else GIVEN_BACK, LATER)


def test_the_table_knows_every_event_in_every_state() -> None:
    assert TRANSITIONS.keys() == {(state, event) for state in LeaseState for event in LeaseEvent}
    assert TRANSITIONS.keys() == TABLE.keys()


@pytest.mark.parametrize(
    ("state", "event", "next_state"),
    [(*pair, after) for pair, after in TABLE.items()],
    ids=[f"{state.name}-{event.name}" for state, event in TABLE],
)
def test_an_event_before_the_deadline_leads_where_the_table_says(
    state: LeaseState, event: LeaseEvent, next_state: LeaseState
) -> None:
    assert TRANSITIONS[state, event] is next_state
    assert step(term_in(state), event, LATER + 1, sent_at=LATER, ttl_s=TTL_S).state is next_state


@pytest.mark.parametrize("event", LeaseEvent)
def test_every_event_at_the_deadline_finds_the_lease_lost(event: LeaseEvent) -> None:
    for now in (DEADLINE, DEADLINE + 1, math.inf):
        after = step(begin(SENT_AT, TTL_S), event, now, sent_at=LATER, ttl_s=TTL_S)
        assert (after.state, after.reason) == (LOST, LossReason.STALLED)


@pytest.mark.parametrize("event", LeaseEvent)
@pytest.mark.parametrize("state", [LOST, RELEASED])
def test_an_ended_lease_is_the_same_object_after_every_event(state: LeaseState, event: LeaseEvent) -> None:
    ended = term_in(state)
    for now in (LATER, DEADLINE, DEADLINE + 100):
        assert step(ended, event, now, sent_at=now, ttl_s=TTL_S) is ended


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (REFUSED, LossReason.REFUSED),
        (CLOSED, LossReason.CLOSED),
        (OVERDUE, LossReason.MAX_HOLD),
        (GIVEN_BACK, None),
    ],
)
def test_an_end_says_how_it_came(event: LeaseEvent, reason: LossReason | None) -> None:
    assert step(begin(SENT_AT, TTL_S), event, LATER).reason is reason


# ------------------------------------------------------------------------- the rules, as examples


def test_a_lease_begins_trusted_from_the_sending_of_its_acquire() -> None:
    term = begin(SENT_AT, TTL_S)
    assert (term.state, term.renew_at, term.reason) == (HELD, SENT_AT + 10, None)
    assert term.trusted_until == pytest.approx(DEADLINE)


def test_r1_a_confirmed_renewal_is_counted_from_its_sending_however_late_the_reply() -> None:
    for reply_at in (1010.0, 1020.0, 1029.6):
        after = step(begin(SENT_AT, TTL_S), CONFIRMED, reply_at, sent_at=1010.0, ttl_s=TTL_S)
        assert after.trusted_until == pytest.approx(1039.7)
        assert after.renew_at == 1020.0


def test_r1_an_older_confirmation_after_a_younger_one_moves_nothing_back() -> None:
    younger = step(begin(SENT_AT, TTL_S), CONFIRMED, 1021.0, sent_at=1020.0, ttl_s=TTL_S)
    for sent_at in (1010.0, 1020.0):
        assert step(younger, CONFIRMED, 1022.0, sent_at=sent_at, ttl_s=TTL_S) is younger


def test_r2_an_unknown_outcome_is_no_news() -> None:
    held = begin(SENT_AT, TTL_S)
    assert step(held, UNKNOWN, 1029.6, sent_at=1029.0, ttl_s=TTL_S) is held


def test_r3_a_refusal_loses_the_lease_with_most_of_its_time_left() -> None:
    after = step(begin(SENT_AT, TTL_S), REFUSED, SENT_AT)
    assert (after.state, after.reason) == (LOST, LossReason.REFUSED)
    assert not is_held(after, SENT_AT)


def test_r4_the_deadline_is_the_first_moment_that_is_not_trusted() -> None:
    held = begin(SENT_AT, TTL_S)
    just_before = math.nextafter(held.trusted_until, -math.inf)
    assert is_held(held, just_before)
    assert step(held, TIME, just_before) is held
    assert not is_held(held, held.trusted_until)
    assert step(held, TIME, held.trusted_until).state is LOST


def test_r4_a_release_after_the_deadline_gives_nothing_back() -> None:
    assert step(begin(SENT_AT, TTL_S), GIVEN_BACK, DEADLINE).state is LOST


def test_r5_a_confirmation_that_arrives_after_the_deadline_is_too_late() -> None:
    lost = step(begin(SENT_AT, TTL_S), CONFIRMED, DEADLINE, sent_at=1029.0, ttl_s=TTL_S)
    assert lost.state is LOST
    assert step(lost, CONFIRMED, DEADLINE + 1, sent_at=DEADLINE, ttl_s=TTL_S) is lost


def test_a_lease_that_ran_out_with_its_renewal_overdue_was_stalled() -> None:
    assert reason_at(begin(SENT_AT, TTL_S), DEADLINE) is LossReason.STALLED


def test_a_lease_that_ran_out_with_its_renewals_unanswered_expired() -> None:
    sent = postponed(begin(SENT_AT, TTL_S), math.inf)
    assert sent.renew_at == sent.trusted_until
    assert reason_at(sent, DEADLINE) is LossReason.EXPIRED


def test_a_lease_has_no_reason_while_it_is_held_or_once_it_was_given_back() -> None:
    assert reason_at(begin(SENT_AT, TTL_S), LATER) is None
    assert reason_at(term_in(RELEASED), DEADLINE + 1) is None


def test_a_renewal_is_set_for_any_time_up_to_the_deadline() -> None:
    held = begin(SENT_AT, TTL_S)
    assert postponed(held, 1020.0) == replace(held, renew_at=1020.0)
    assert postponed(held, 2000.0) == replace(held, renew_at=held.trusted_until)


def test_one_renewal_may_be_lost_and_the_next_still_comes_in_time() -> None:
    assert 2 / RENEWALS_PER_TTL < 1 - MARGIN_SHARE


def test_a_term_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        begin(SENT_AT, TTL_S).state = LOST  # type: ignore[misc]


@given(
    ttl_s=st.floats(0.001, 100 * 366 * 86_400), slow=st.floats(0, MARGIN_SHARE), processed_after_s=st.floats(0, 1000)
)
@settings(deadline=None)
def test_a_clock_that_is_slow_by_up_to_the_margin_never_outlives_the_store(
    ttl_s: float, slow: float, processed_after_s: float
) -> None:
    # The store's clock is the true one here; the holder's shows (1 - slow) seconds for each second of it.
    trusted_for_s = trusted_until(0.0, ttl_s) / (1 - slow)
    assert trusted_for_s <= (processed_after_s + ttl_s) * (1 + 1e-12)
