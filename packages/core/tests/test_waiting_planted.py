"""Bugs planted in how the engine waits, each caught by the fact that it breaks."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tenure import _acquirer
from tenure._acquirer import Acquirer
from tenure._acquirer.line import Lines
from tenure.store import Acquired

Plant = Callable[[pytest.MonkeyPatch], None]


def everybody_asks_for_himself(patch: pytest.MonkeyPatch) -> None:
    async def asks(self: Acquirer, wait: Any) -> Any:
        return await self._wait_as_head(wait, first=True)

    patch.setattr(Acquirer, "_wait_in_line", asks)


def the_last_is_next(patch: pytest.MonkeyPatch) -> None:
    def calls(self: Lines, key: str) -> None:
        line = self._lines[key]
        while line:
            turn, _ = line.popitem()
            if not turn.done():
                turn.set_result(None)
                return
        del self._lines[key]

    patch.setattr(Lines, "call_next", calls)


def a_turn_dies_with_who_had_it(patch: pytest.MonkeyPatch) -> None:
    turn_of = Lines.turn

    async def turns(self: Lines, key: str, until: float) -> bool:
        with pytest.MonkeyPatch.context() as passes_nothing_on:
            passes_nothing_on.setattr(self, "call_next", lambda _: None)
            return await turn_of(self, key, until)

    patch.setattr(Lines, "turn", turns)


def those_behind_learn_of_nothing_at_the_end(patch: pytest.MonkeyPatch) -> None:
    wait_as_head = Acquirer._wait_as_head

    async def waits(self: Acquirer, wait: Any, *, first: bool) -> Any:
        wait.refuse_unless_open = lambda: None
        return await wait_as_head(self, wait, first=first)

    patch.setattr(Acquirer, "_wait_as_head", waits)


async def _nothing(*_: Any, **__: Any) -> None: ...


def a_waiter_leaves_without_its_release(patch: pytest.MonkeyPatch) -> None:
    freeing = Acquirer._freeing

    def frees(self: Acquirer, claim: Any) -> Any:
        behind = freeing(self, claim)
        return lambda call: behind(call) if call is not None else _nothing()

    patch.setattr(Acquirer, "_freeing", frees)


def only_a_grant_is_released_behind(patch: pytest.MonkeyPatch) -> None:
    def frees(self: Acquirer, claim: Any) -> Any:
        release = partial(self._store.release, claim.key, claim.owner)
        return partial(_acquirer._release_behind, self._keeper, release, Acquired, self._store_timeout_s)

    patch.setattr(Acquirer, "_freeing", frees)


def a_grant_is_believed_from_its_arrival(patch: pytest.MonkeyPatch) -> None:
    hear = Acquirer._hear

    def hears(self: Acquirer, wait: Any) -> Any:
        granted = hear(self, wait)
        if granted is not None:
            wait.sent_at = self._clock.now()
        return granted

    patch.setattr(Acquirer, "_hear", hears)


def a_late_message_is_believed(patch: pytest.MonkeyPatch) -> None:
    hear = Acquirer._hear

    def hears(self: Acquirer, wait: Any) -> Any:
        wait.doubtful = False
        return hear(self, wait)

    patch.setattr(Acquirer, "_hear", hears)


def nobody_listens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acquirer, "_listen", lambda *_: None)


def any_message_is_a_grant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_acquirer, "check_acquire_reply", lambda reply: reply)


PLANTED: list[tuple[Plant, str, tuple[object, ...]]] = [
    (everybody_asks_for_himself, "test_only_the_head_of_a_line_asks", ("polling",)),
    (everybody_asks_for_himself, "test_one_behind_whose_time_is_up_leaves_without_a_call", ()),
    (the_last_is_next, "test_those_of_one_process_are_served_in_the_order_in_which_they_came", ("World",)),
    (a_turn_dies_with_who_had_it, "test_one_that_is_cancelled_in_the_moment_of_its_turn_passes_it_on", ()),
    (those_behind_learn_of_nothing_at_the_end, "test_closing_reaches_everybody_in_line", ("polling",)),
    (a_waiter_leaves_without_its_release, "test_a_waiter_that_leaves_gives_its_place_back", ("cancelled",)),
    (a_waiter_leaves_without_its_release, "test_a_waiter_that_leaves_gives_its_place_back", ("time up",)),
    (only_a_grant_is_released_behind, "test_a_waiter_that_leaves_gives_its_place_back", ("cancelled while it asks",)),
    (a_grant_is_believed_from_its_arrival, "test_a_grant_is_believed_from_the_last_asking_that_was_answered", ()),
    (a_late_message_is_believed, "test_the_message_of_a_grant_that_has_expired_meanwhile_is_not_believed", ()),
    (nobody_listens, "test_a_grant_is_heard_in_the_moment_of_the_release", ()),
    (any_message_is_a_grant, "test_a_grant_with_a_token_that_is_none_is_an_error_and_is_given_back", ()),
]


@pytest.mark.usefixtures("assert_caught")
@pytest.mark.parametrize(("plant", "fact", "values"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED])
def test_a_planted_bug_is_caught_by_the_fact_that_it_breaks(
    plant: Plant,
    fact: str,
    values: tuple[object, ...],
    facts_of: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = facts_of("test_waiting")
    # A world is named: it is the one of the module that is looked at.
    arguments = [getattr(facts, str(value), value) for value in values]
    plant(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        getattr(facts, fact)(*arguments)
