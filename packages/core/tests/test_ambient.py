"""The ambient one: what is meant where nothing is named, here and in tasks that were started elsewhere."""

import asyncio
import contextvars
import gc

import pytest

from tenure import ConfigurationError, LeaseStateError
from tenure._ambient import Ambient


class One:
    """Something that is entered."""


@pytest.fixture
def ambient() -> Ambient[One]:
    return Ambient()


def elsewhere() -> contextvars.Context:
    """A context in which nothing was entered: as of a request, or of a scheduler's task."""
    return contextvars.Context()


def test_what_is_entered_here_is_meant(ambient: Ambient[One]) -> None:
    one = One()
    assert ambient.enter(one) is None
    assert ambient.get() is one


def test_the_innermost_is_meant_until_it_is_left(ambient: Ambient[One]) -> None:
    outer, inner = One(), One()
    ambient.enter(outer)
    elsewhere().run(ambient.enter, another := One())
    before = ambient.enter(inner)
    assert before is outer
    assert ambient.get() is inner
    ambient.leave(inner, before)
    assert ambient.get() is outer is not another


def test_where_nothing_is_entered_the_error_says_what_to_do(ambient: Ambient[One]) -> None:
    with pytest.raises(LeaseStateError, match=r"No Locks is entered: run this inside `async with locks:`, or name one"):
        ambient.get()


def test_what_was_left_is_meant_no_more(ambient: Ambient[One]) -> None:
    one = One()
    ambient.leave(one, ambient.enter(one))
    with pytest.raises(LeaseStateError):
        ambient.get()
    with pytest.raises(LeaseStateError):
        elsewhere().run(ambient.get)


async def test_a_task_that_is_started_inside_means_the_same(ambient: Ambient[One]) -> None:
    outer, inner = One(), One()
    ambient.enter(outer)
    ambient.enter(inner)

    async def read() -> One:
        return ambient.get()

    assert await asyncio.create_task(read()) is inner


def test_elsewhere_the_only_one_of_the_process_is_meant(ambient: Ambient[One]) -> None:
    one = One()
    ambient.enter(one)
    assert elsewhere().run(ambient.get) is one


def test_elsewhere_two_are_refused_rather_than_guessed_at(ambient: Ambient[One]) -> None:
    one, two = One(), One()
    elsewhere().run(ambient.enter, one)
    elsewhere().run(ambient.enter, two)
    with pytest.raises(ConfigurationError, match=r"^2 Locks are entered in this process, .* \(locks=\)\.$"):
        ambient.get()


def test_two_are_none_too_many_for_who_entered_one_of_them(ambient: Ambient[One]) -> None:
    here, there = One(), One()
    elsewhere().run(ambient.enter, there)
    ambient.enter(here)
    assert ambient.get() is here


def test_once_one_of_two_is_left_the_other_is_meant_elsewhere(ambient: Ambient[One]) -> None:
    one, two = One(), One()
    context = elsewhere()
    context.run(ambient.enter, one)
    elsewhere().run(ambient.enter, two)
    context.run(ambient.leave, one, None)
    assert ambient.get() is two


def test_what_is_left_in_another_context_is_meant_no_more_where_it_was_entered(ambient: Ambient[One]) -> None:
    # An async generator (a pytest fixture, a lifespan) may be left in another task than it was entered in.
    one, next_one = One(), One()
    ambient.enter(one)
    elsewhere().run(ambient.leave, one, None)
    with pytest.raises(LeaseStateError):
        ambient.get()
    elsewhere().run(ambient.enter, next_one)
    assert ambient.get() is next_one


def test_two_that_are_left_in_the_order_of_their_entering_leave_nothing_behind(ambient: Ambient[One]) -> None:
    one, two = One(), One()
    before_one = ambient.enter(one)
    before_two = ambient.enter(two)
    elsewhere().run(ambient.enter, another := One())
    ambient.leave(one, before_one)
    assert ambient.get() is two
    ambient.leave(two, before_two)
    assert ambient.get() is another
    elsewhere().run(ambient.leave, another, None)
    with pytest.raises(LeaseStateError):
        ambient.get()


def test_what_nobody_left_and_nobody_has_any_more_is_not_meant(ambient: Ambient[One]) -> None:
    # A context that was run to its end, with what was entered in it.
    elsewhere().run(ambient.enter, One())
    gc.collect()
    with pytest.raises(LeaseStateError):
        ambient.get()


def test_what_is_meant_within_is_meant_there_and_no_longer(ambient: Ambient[One]) -> None:
    one, other = One(), One()
    ambient.enter(one)
    ambient.enter(other)
    with ambient.within(one):
        assert ambient.get() is one
    assert ambient.get() is other
