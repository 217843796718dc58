"""Backoff: delays that grow up to a cap, and that no two callers share."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure._backoff import Backoff


class Drawn(random.Random):
    """A source of one number, as if it were drawn again and again."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def random(self) -> float:
        return self._number


LOWEST, HIGHEST = 0.0, 1 - 2**-53


@pytest.mark.parametrize(("drawn", "share"), [(LOWEST, 0.5), (0.5, 0.75)])
def test_delays_double_up_to_the_cap(drawn: float, share: float) -> None:
    backoff = Backoff(0.02, 0.5, Drawn(drawn))
    assert [backoff.next_s() for _ in range(8)] == pytest.approx(
        [step * share for step in (0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5)]
    )


def test_a_base_above_the_cap_is_the_cap() -> None:
    assert Backoff(10.0, 1.0, Drawn(HIGHEST)).next_s() == pytest.approx(1.0)


def test_after_a_success_it_begins_again_with_the_shortest_delay() -> None:
    backoff = Backoff(0.02, 1.0, Drawn(LOWEST))
    first = [backoff.next_s() for _ in range(3)]
    backoff.reset()
    assert [backoff.next_s() for _ in range(3)] == first


def test_a_year_of_failures_neither_overflows_nor_exceeds_the_cap() -> None:
    backoff = Backoff(1e-9, 1.0, Drawn(LOWEST))
    assert {backoff.next_s() for _ in range(100_000)} <= {*(1e-9 * 2**tries / 2 for tries in range(30)), 0.5}


@given(
    base_s=st.floats(0.001, 10),
    cap_s=st.floats(0.001, 10),
    tries=st.integers(1, 20),
    rng=st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_every_delay_is_in_the_upper_half_of_its_step(base_s: float, cap_s: float, tries: int, rng: Any) -> None:
    backoff = Backoff(base_s, cap_s, rng)
    for done in range(tries):
        step = min(cap_s, base_s * 2**done)
        assert step / 2 <= backoff.next_s() <= step


def test_two_callers_do_not_march_in_step() -> None:
    one, two = Backoff(0.02, 1.0), Backoff(0.02, 1.0)
    assert [one.next_s() for _ in range(5)] != [two.next_s() for _ in range(5)]


def test_a_seed_repeats_the_delays() -> None:
    one, two = Backoff(0.02, 1.0, random.Random(7)), Backoff(0.02, 1.0, random.Random(7))
    assert [one.next_s() for _ in range(5)] == [two.next_s() for _ in range(5)]
