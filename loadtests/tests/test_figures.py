import pytest

from tenure_loadtests.figures import jain, median, quantile, ratio_of_least, ratio_within_rounds, spread


def test_a_quantile_is_a_sample() -> None:
    assert quantile([1, 2, 3, 4], 0.5) == 3
    assert quantile([1, 2, 3, 4], 0.99) == 4
    assert quantile([7], 0.0) == 7


def test_there_is_no_quantile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


def test_jains_index_tells_who_had_the_turns() -> None:
    assert jain([5, 5, 5, 5]) == 1
    assert jain([8, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 1


def test_slow_rounds_cancel_in_a_ratio() -> None:
    # The machine was twice as slow in the second round, and ten times in the third.
    assert ratio_within_rounds({0: 20, 1: 10, 2: 2}, {0: 10, 1: 5, 2: 1}) == 2


def test_a_ratio_needs_a_round_that_both_took_part_in() -> None:
    assert ratio_within_rounds({0: 20}, {1: 10}) is None
    assert ratio_within_rounds({}, {}) is None


def test_a_floor_of_nothing_gives_no_ratio() -> None:
    assert ratio_within_rounds({0: 20}, {0: 0}) is None
    assert ratio_of_least({0: 20}, {0: 0}) is None


def test_one_disturbed_round_leaves_the_ratio_of_the_least_as_it_is() -> None:
    assert ratio_of_least({0: 20, 1: 90}, {0: 70, 1: 10}) == 2


def test_the_spread_is_a_share_of_the_median() -> None:
    assert spread([90, 100, 110]) == pytest.approx(0.2)
    assert spread([100]) is None


def test_the_median_of_nothing_is_not_known() -> None:
    assert median([]) is None
