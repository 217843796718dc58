"""Bugs planted in the facade for threads: each is found by a fact of its own, or that fact would prove nothing."""

import contextvars
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import tenure.sync.lease
import tenure.sync.locks
from tenure import LeaseStateError
from tenure.sync import _engine

Plant = Callable[[pytest.MonkeyPatch], None]


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _a_guard_does_not_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure.sync.locks.Hold, "__exit__", _nothing)


def _a_loss_is_not_seen_at_the_point_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure.sync.lease.Lease, "raise_unless_held", _nothing)


def _closing_keeps_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine.Engine, "close", _nothing)


def _the_current_lease_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure.sync.lease, "enter", lambda lease: (None, None))
    monkeypatch.setattr(tenure.sync.lease, "leave", _nothing)


PLANTED: list[tuple[Plant, str]] = [
    (_a_guard_does_not_give_back, "test_what_the_body_raises_is_not_hidden_and_the_key_is_free"),
    (_a_loss_is_not_seen_at_the_point_of_use, "test_a_lost_lease_is_known_at_the_point_of_use_and_told_at_the_end"),
    (_closing_keeps_what_is_held, "test_closing_loses_and_gives_back_what_is_held_and_twice_does_nothing"),
    (_the_current_lease_is_not_set, "test_a_lease_that_was_acquired_is_a_guard_too"),
]


@pytest.mark.parametrize(("plant", "fact"), PLANTED, ids=[fact for _, fact in PLANTED])
def test_a_planted_bug_is_found(  # noqa: PLR0917 -- fixtures
    plant: Plant,
    fact: str,
    facts_of: Callable[[str], ModuleType],
    make: Callable[..., Any],
    shared: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test = getattr(facts_of("sync/test_sync_locks"), fact)
    arguments = (make, shared) if "shared" in test.__code__.co_varnames[: test.__code__.co_argcount] else (make,)
    with monkeypatch.context() as planted:
        plant(planted)
        with pytest.raises((AssertionError, pytest.fail.Exception, LeaseStateError)):
            # In a context of its own: a guard that is not left would be the current lease of every later test.
            contextvars.copy_context().run(test, *arguments)
