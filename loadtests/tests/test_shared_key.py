from tenure_loadtests.scenarios.handoff import handovers_s, overlaps
from tenure_loadtests.scenarios.shared_key import Turn


def turn(who: int, asked: float, acquired: float, gives_back: float) -> Turn:
    return Turn((0, who), asked, acquired, gives_back, gives_back + 0.5)


def test_a_handover_is_from_the_call_of_release_to_the_next_acquire() -> None:
    assert handovers_s([turn(0, 0, 1, 5), turn(1, 2, 5.25, 9)]) == [0.25]


def test_one_that_asks_after_the_release_was_handed_nothing() -> None:
    assert handovers_s([turn(0, 0, 1, 5), turn(1, 6, 7, 9)]) == []


def test_two_holders_at_once_are_counted() -> None:
    assert overlaps([turn(0, 0, 1, 5), turn(1, 2, 4, 9), turn(2, 2, 9, 10)]) == 1
