"""The rules of the lease machine as properties of random stories, and a museum of bugs that each would catch."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import LossReason
from tenure._lease_machine import (
    MARGIN_SHARE,
    RENEWALS_PER_TTL,
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


# -------------------------------------------------------------------------------------- the stories


class Happening(NamedTuple):
    """One event of a story. Spans are in sixtieths of a ttl."""

    event: LeaseEvent
    after: int
    """Since the event before; more than 60 is a stall."""
    age: int
    """With CONFIRMED, how long ago the renewal was sent; a larger one makes it older than another's."""
    at_the_deadline: bool
    """The event comes at the very moment of the deadline, if that is still to come."""
    sends: bool
    """A renewal is sent after the event: the next one is due a third of a ttl later."""


class Story(NamedTuple):
    """What happens to one lease."""

    sent_at: float
    ttl_s: float
    happenings: list[Happening]


# Mostly what does not end the lease, or no story would be long.
EVENTS = [CONFIRMED] * 6 + [UNKNOWN, TIME] * 2 + list(LeaseEvent)
SPANS = [*range(12), 15, 20, 25, 58, 59, 60, 61, 80]
DRAWS = len(EVENTS) * len(SPANS) ** 2 * 8 * 2


def happening(drawn: int) -> Happening:
    """Read a happening out of one number: Hypothesis draws one quickly, and a dozen of fields slowly."""
    drawn, event = divmod(drawn, len(EVENTS))
    drawn, after = divmod(drawn, len(SPANS))
    drawn, age = divmod(drawn, len(SPANS))
    sends, moment = divmod(drawn, 8)
    return Happening(EVENTS[event], SPANS[after], SPANS[age], moment == 7, bool(sends))


STARTS = [0.0, 1.0, 1_000_000.0]
TTLS = [0.06, 1.0, 30.0, 86_400.0]

stories = st.builds(
    Story,
    sent_at=st.sampled_from(STARTS),
    ttl_s=st.sampled_from(TTLS),
    happenings=st.lists(st.integers(0, DRAWS - 1).map(happening), min_size=1, max_size=12),
)


def random_story(rng: random.Random) -> Story:
    """A story for the museum, which needs many and has no use for shrinking."""
    drawn = [happening(rng.randrange(DRAWS)) for _ in range(rng.randint(1, 12))]
    return Story(rng.choice(STARTS), rng.choice(TTLS), drawn)


class Call(NamedTuple):
    """A call of `step`."""

    term: Term
    event: LeaseEvent
    now: float
    sent_at: float
    ttl_s: float

    @property
    def in_time(self) -> bool:
        return self.term.state is HELD and self.now < self.term.trusted_until


Machine = Callable[[Call], Term]


def shipped(call: Call) -> Term:
    return step(call.term, call.event, call.now, sent_at=call.sent_at, ttl_s=call.ttl_s)


class Scene(NamedTuple):
    """One event of a story, as a machine followed it."""

    call: Call
    after: Term
    newest_confirmed: float
    """The youngest sending that the store has confirmed up to here, this event included."""


def scenes(machine: Machine, story: Story) -> Iterator[Scene]:
    """Tell *story* to *machine*, as the keeper would."""
    sixtieth = story.ttl_s / 60
    term, now, newest = begin(story.sent_at, story.ttl_s), story.sent_at, story.sent_at
    for told in story.happenings:
        now = max(now, term.trusted_until) if told.at_the_deadline else now + told.after * sixtieth
        call = Call(term, told.event, now, max(story.sent_at, now - told.age * sixtieth), story.ttl_s)
        after = machine(call)
        if told.event is CONFIRMED:
            newest = max(newest, call.sent_at)
        yield Scene(call, after, newest)
        term = postponed(after, now + story.ttl_s / RENEWALS_PER_TTL) if told.sends else after


# ---------------------------------------------------------------------------------------- the rules

Rule = Callable[[Scene], None]

ROUNDING = 1e-9
"""The last digits of a float, as a share of the reading; a planted bug is off by a hundredth of a ttl or more."""


def trust_never_exceeds_what_a_confirmed_sending_gave(scene: Scene) -> None:
    most = scene.newest_confirmed + scene.call.ttl_s * (1 - MARGIN_SHARE)
    assert scene.after.trusted_until <= most * (1 + ROUNDING)


def a_younger_confirmation_in_time_moves_the_deadline_and_the_next_renewal(scene: Scene) -> None:
    call = scene.call
    until = trusted_until(call.sent_at, call.ttl_s)
    if call.event is CONFIRMED and call.in_time and until > call.term.trusted_until:
        assert scene.after == Term(HELD, until, call.sent_at + call.ttl_s / RENEWALS_PER_TTL)


def the_deadline_never_moves_back(scene: Scene) -> None:
    assert scene.after.trusted_until >= scene.call.term.trusted_until


def an_unknown_outcome_changes_nothing(scene: Scene) -> None:
    if scene.call.event is UNKNOWN and scene.call.in_time:
        assert scene.after is scene.call.term


def a_refusal_loses_the_lease_at_once(scene: Scene) -> None:
    if scene.call.event is REFUSED and scene.call.in_time:
        assert (scene.after.state, scene.after.reason) == (LOST, LossReason.REFUSED)


def at_the_deadline_the_lease_is_lost_whatever_happens(scene: Scene) -> None:
    if scene.call.term.state is HELD and not scene.call.in_time:
        assert scene.after.state is LOST


def a_confirmation_after_the_deadline_is_too_late(scene: Scene) -> None:
    if scene.call.event is CONFIRMED and not scene.call.in_time:
        assert scene.after.state is not HELD
        assert scene.after.trusted_until == scene.call.term.trusted_until


def an_ended_lease_is_never_held_again(scene: Scene) -> None:
    if scene.call.term.state is not HELD:
        assert scene.after.state is scene.call.term.state
        assert not is_held(scene.after, scene.call.now)


def the_reason_of_a_loss_is_said_once_and_stays(scene: Scene) -> None:
    assert (scene.after.reason is not None) == (scene.after.state is LOST)
    if scene.call.term.state is LOST:
        assert scene.after.reason is scene.call.term.reason


def a_lease_that_ran_out_was_stalled_or_expired(scene: Scene) -> None:
    term = scene.call.term
    if term.state is HELD and not scene.call.in_time:
        overdue = term.renew_at < term.trusted_until
        assert scene.after.reason is (LossReason.STALLED if overdue else LossReason.EXPIRED)


def whoever_reads_the_clock_sees_what_the_machine_says(scene: Scene) -> None:
    call = scene.call
    told = shipped(call._replace(event=TIME))
    assert is_held(call.term, call.now) == (told.state is HELD)
    assert reason_at(call.term, call.now) is told.reason
    assert is_held(scene.after, call.now) == (scene.after.state is HELD)


def a_renewal_is_never_due_after_the_deadline(scene: Scene) -> None:
    assert scene.after.renew_at <= scene.after.trusted_until


RULES: list[Rule] = [
    trust_never_exceeds_what_a_confirmed_sending_gave,
    a_younger_confirmation_in_time_moves_the_deadline_and_the_next_renewal,
    the_deadline_never_moves_back,
    an_unknown_outcome_changes_nothing,
    a_refusal_loses_the_lease_at_once,
    at_the_deadline_the_lease_is_lost_whatever_happens,
    a_confirmation_after_the_deadline_is_too_late,
    an_ended_lease_is_never_held_again,
    the_reason_of_a_loss_is_said_once_and_stays,
    a_lease_that_ran_out_was_stalled_or_expired,
    whoever_reads_the_clock_sees_what_the_machine_says,
    a_renewal_is_never_due_after_the_deadline,
]


@given(stories)
@settings(deadline=None, max_examples=300)
def test_the_machine_keeps_every_rule_in_every_story(story: Story) -> None:
    for scene in scenes(shipped, story):
        for rule in RULES:
            rule(scene)


# --------------------------------------------------------------------------- the museum of mutants
#
# One planted bug each, most of a kind that a peer has shipped. A rule that catches none of them has no teeth.


def revives_a_lost_lease(call: Call) -> Term:
    if call.event is CONFIRMED and call.term.state is LOST:
        return begin(call.sent_at, call.ttl_s)
    return shipped(call)


def believes_the_last_reply_rather_than_the_youngest(call: Call) -> Term:
    if call.event is CONFIRMED and call.in_time:
        return begin(call.sent_at, call.ttl_s)
    return shipped(call)


def paces_renewals_by_the_reply(call: Call) -> Term:
    after = shipped(call)
    moved = after.trusted_until > call.term.trusted_until
    return replace(after, renew_at=call.now + call.ttl_s / RENEWALS_PER_TTL) if moved else after


def renews_once_a_ttl(call: Call) -> Term:
    after = shipped(call)
    moved = after.trusted_until > call.term.trusted_until
    return replace(after, renew_at=call.sent_at + call.ttl_s) if moved else after


def blames_the_store_for_a_stall(call: Call) -> Term:
    after = shipped(call)
    return replace(after, reason=LossReason.EXPIRED) if after.reason is LossReason.STALLED else after


def says_of_a_lost_lease_that_it_was_closed(call: Call) -> Term:
    if call.term.state is LOST and call.event is CLOSED:
        return replace(call.term, reason=LossReason.CLOSED)
    return shipped(call)


def loses_a_lease_that_was_given_back(call: Call) -> Term:
    if call.term.state is RELEASED and call.now >= call.term.trusted_until:
        return replace(call.term, state=LOST, reason=LossReason.EXPIRED)
    return shipped(call)


def renames(event: LeaseEvent, other: LeaseEvent) -> Machine:
    return lambda call: shipped(call._replace(event=other) if call.event is event else call)


def looks_at_the_clock_on(*events: LeaseEvent) -> Machine:
    return lambda call: shipped(call if call.event in events else call._replace(now=-math.inf))


MUSEUM: dict[str, tuple[Machine, Rule]] = {
    "counts from the reply": (
        lambda call: shipped(call._replace(sent_at=call.now)),
        trust_never_exceeds_what_a_confirmed_sending_gave,
    ),
    "keeps no margin": (
        lambda call: shipped(call._replace(ttl_s=call.ttl_s / (1 - MARGIN_SHARE))),
        trust_never_exceeds_what_a_confirmed_sending_gave,
    ),
    "takes silence for a yes": (renames(UNKNOWN, CONFIRMED), an_unknown_outcome_changes_nothing),
    "takes silence for a no": (renames(UNKNOWN, REFUSED), an_unknown_outcome_changes_nothing),
    "tries again after a no": (renames(REFUSED, UNKNOWN), a_refusal_loses_the_lease_at_once),
    "hears no yes": (
        renames(CONFIRMED, UNKNOWN),
        a_younger_confirmation_in_time_moves_the_deadline_and_the_next_renewal,
    ),
    "paces renewals by the reply": (
        paces_renewals_by_the_reply,
        a_younger_confirmation_in_time_moves_the_deadline_and_the_next_renewal,
    ),
    "renews once a ttl": (renews_once_a_ttl, a_renewal_is_never_due_after_the_deadline),
    "revives a lost lease": (revives_a_lost_lease, an_ended_lease_is_never_held_again),
    "loses a lease that was given back": (loses_a_lease_that_was_given_back, an_ended_lease_is_never_held_again),
    "takes a late yes": (
        looks_at_the_clock_on(*{*LeaseEvent} - {CONFIRMED}),
        a_confirmation_after_the_deadline_is_too_late,
    ),
    "leaves the deadline to its timer": (
        looks_at_the_clock_on(TIME),
        at_the_deadline_the_lease_is_lost_whatever_happens,
    ),
    "trusts the last instant": (
        lambda call: shipped(call._replace(now=math.nextafter(call.now, -math.inf))),
        at_the_deadline_the_lease_is_lost_whatever_happens,
    ),
    "does not count a suspend": (
        lambda call: shipped(call._replace(now=min(call.now, call.term.renew_at))),
        whoever_reads_the_clock_sees_what_the_machine_says,
    ),
    "believes the last reply rather than the youngest": (
        believes_the_last_reply_rather_than_the_youngest,
        the_deadline_never_moves_back,
    ),
    "blames the store for a stall": (blames_the_store_for_a_stall, a_lease_that_ran_out_was_stalled_or_expired),
    "says of a lost lease that it was closed": (
        says_of_a_lost_lease_that_it_was_closed,
        the_reason_of_a_loss_is_said_once_and_stays,
    ),
}


def follow(machine: Machine, rules: list[Rule]) -> None:
    """Tell *machine* the same few thousand stories in every run."""
    rng = random.Random(20)
    for _ in range(5000):
        for scene in scenes(machine, random_story(rng)):
            for rule in rules:
                rule(scene)


@pytest.mark.parametrize("bug", MUSEUM)
def test_a_planted_bug_is_caught_by_its_rule(bug: str) -> None:
    machine, rule = MUSEUM[bug]
    with pytest.raises(AssertionError):
        follow(machine, [rule])


def test_the_shipped_machine_keeps_every_rule_in_the_stories_that_catch_the_bugs() -> None:
    follow(shipped, RULES)


def test_every_rule_catches_a_planted_bug() -> None:
    assert {rule for _, rule in MUSEUM.values()} == {*RULES}
