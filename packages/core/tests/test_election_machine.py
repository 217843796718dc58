"""The election machine: every pair, the rules on every way through the table, and bugs that they catch."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure._election_machine import TRANSITIONS, CandidateEvent, CandidateState, step

IDLE, CAMPAIGNING, LEADING, RESTING, STOPPED = CandidateState
START, GRANTED, REFUSED, LOST, DONE, RESTED, STOP = CandidateEvent

Table = dict[tuple[CandidateState, CandidateEvent], CandidateState]

LEGAL: Table = {
    (IDLE, START): CAMPAIGNING,
    (IDLE, STOP): STOPPED,
    (CAMPAIGNING, GRANTED): LEADING,
    (CAMPAIGNING, REFUSED): CAMPAIGNING,
    (CAMPAIGNING, STOP): STOPPED,
    (LEADING, LOST): CAMPAIGNING,
    (LEADING, DONE): RESTING,
    (LEADING, STOP): STOPPED,
    (RESTING, RESTED): CAMPAIGNING,
    (RESTING, STOP): STOPPED,
    (STOPPED, STOP): STOPPED,
}
ILLEGAL = [
    pair for pair in ((state, event) for state in CandidateState for event in CandidateEvent) if pair not in LEGAL
]


def names(pairs: list[tuple[CandidateState, CandidateEvent]]) -> list[str]:
    return [f"{state.name}-{event.name}" for state, event in pairs]


def test_the_table_is_the_published_one() -> None:
    assert TRANSITIONS == LEGAL
    assert len(LEGAL) + len(ILLEGAL) == len(CandidateState) * len(CandidateEvent)


@pytest.mark.parametrize(("state", "event"), LEGAL, ids=names([*LEGAL]))
def test_a_legal_event_leads_where_the_table_says(state: CandidateState, event: CandidateEvent) -> None:
    assert step(state, event) is LEGAL[state, event]


@pytest.mark.parametrize(("state", "event"), ILLEGAL, ids=names(ILLEGAL))
def test_an_illegal_event_is_a_bug_that_names_itself(state: CandidateState, event: CandidateEvent) -> None:
    with pytest.raises(
        AssertionError, match=f"^A candidate that is {state.value} cannot meet '{event.value}'.$"
    ) as raised:
        step(state, event)
    # The missing key is no news to whoever reads the traceback.
    assert raised.value.__suppress_context__


# ---------------------------------------------------------------------------------------- properties

Path = list[tuple[CandidateState, CandidateEvent, CandidateState]]


def walk(table: Table, choices: list[int]) -> Path:
    """Go through *table* from the start, by one of the events that it allows at each step."""
    state, path = IDLE, []
    for choice in choices:
        allowed = [event for at, event in table if at is state]
        event = allowed[choice % len(allowed)]
        path.append((state, event, table[state, event]))
        state = table[state, event]
    return path


def only_a_grant_makes_a_leader(path: Path) -> None:
    assert all(event is GRANTED for before, event, after in path if after is LEADING)


def only_who_campaigns_is_granted(path: Path) -> None:
    assert all(before is CAMPAIGNING for before, event, _ in path if event is GRANTED)


def who_is_stopped_stays_so(path: Path) -> None:
    assert all(after is STOPPED for before, _, after in path if before is STOPPED)


def who_is_done_gives_the_others_the_first_chance(path: Path) -> None:
    assert all(after is RESTING for _, event, after in path if event is DONE)


def a_stop_is_obeyed_at_once(path: Path) -> None:
    assert all(after is STOPPED for _, event, after in path if event is STOP)


RULES: list[Callable[[Path], None]] = [
    only_a_grant_makes_a_leader,
    only_who_campaigns_is_granted,
    who_is_stopped_stays_so,
    who_is_done_gives_the_others_the_first_chance,
    a_stop_is_obeyed_at_once,
]


@given(st.lists(st.integers(0, 5), max_size=40))
@settings(deadline=None)
def test_every_way_through_the_table_keeps_every_rule(choices: list[int]) -> None:
    path = walk(TRANSITIONS, choices)
    for rule in RULES:
        rule(path)


@pytest.mark.parametrize("state", CandidateState)
def test_every_state_can_be_reached_and_left_for_the_end(state: CandidateState) -> None:
    reached, seen = {IDLE}, set[CandidateState]()
    while reached != seen:
        seen = set(reached)
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in seen}
    assert state in reached
    assert step(state, STOP) is STOPPED


MUSEUM: dict[str, tuple[Table, Callable[[Path], None]]] = {
    "leads again after its stop": ({(STOPPED, GRANTED): LEADING}, who_is_stopped_stays_so),
    "is revived by a start": ({(STOPPED, START): CAMPAIGNING}, who_is_stopped_stays_so),
    "leads before it campaigns": ({(IDLE, GRANTED): LEADING}, only_who_campaigns_is_granted),
    "leads from its rest": ({(RESTING, RESTED): LEADING}, only_a_grant_makes_a_leader),
    "campaigns at once when done": ({(LEADING, DONE): CAMPAIGNING}, who_is_done_gives_the_others_the_first_chance),
    "does not stop while it leads": ({(LEADING, STOP): LEADING}, a_stop_is_obeyed_at_once),
}


def random_path(table: Table, rng: random.Random) -> Path:
    return walk(table, [rng.randrange(60) for _ in range(20)])


@pytest.mark.parametrize("bug", MUSEUM)
def test_a_planted_bug_is_caught_by_its_rule(bug: str) -> None:
    change, rule = MUSEUM[bug]
    rng = random.Random(20)
    paths = [random_path({**TRANSITIONS, **change}, rng) for _ in range(1000)]
    with pytest.raises(AssertionError):
        [rule(path) for path in paths]


def test_every_rule_catches_a_planted_bug() -> None:
    assert {rule for _, rule in MUSEUM.values()} == {*RULES}
