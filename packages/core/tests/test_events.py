"""Events: values that nobody can change, and in which nobody finds an owner."""

import dataclasses
import enum
import pickle
import typing
from typing import Any, get_args, get_type_hints

import pytest

from tenure import LossReason, events
from tenure.events import Event, LeaseAcquired, SkipReason

KINDS: tuple[type[Any], ...] = get_args(Event)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)

VALUES = {str: "invoices", int: 41, float: 1.5}


def example(kind: type[Any]) -> Any:
    """Make an event of any kind, of whatever its fields may hold."""
    return kind(**{name: _value(hint) for name, hint in get_type_hints(kind).items()})


def _value(hint: Any) -> Any:
    if hint in VALUES:
        return VALUES[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    # A Literal's first value; of a union, the value of its first member.
    first = get_args(hint)[0]
    return first if typing.get_origin(hint) is typing.Literal else _value(first)


def test_the_union_holds_every_event_there_is() -> None:
    defined = {
        member
        for name, member in vars(events).items()
        if isinstance(member, type) and dataclasses.is_dataclass(member) and not name.startswith("_")
    }
    assert {*KINDS} == defined
    assert {kind.__name__ for kind in KINDS} | {"Event", "IdempotencyOutcome", "SkipReason"} == {*events.__all__}


@EVERY_KIND
def test_an_event_cannot_be_changed(kind: type[Any]) -> None:
    event = example(kind)
    for field in dataclasses.fields(event):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, field.name, None)


@EVERY_KIND
def test_an_event_is_slotted(kind: type[Any]) -> None:
    assert not hasattr(example(kind), "__dict__")


@EVERY_KIND
def test_an_event_is_a_value(kind: type[Any]) -> None:
    assert example(kind) == example(kind)
    assert len({example(kind), example(kind)}) == 1
    assert example(kind) != kind.__name__
    assert pickle.loads(pickle.dumps(example(kind))) == example(kind)


@EVERY_KIND
def test_no_event_has_a_place_for_an_owner(kind: type[Any]) -> None:
    assert not [field.name for field in dataclasses.fields(kind) if "owner" in field.name]


@EVERY_KIND
def test_an_event_about_a_token_names_its_key_too(kind: type[Any]) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    assert "token" not in names or "key" in names


@EVERY_KIND
def test_a_duration_in_an_event_says_its_unit(kind: type[Any]) -> None:
    assert all(field.name.endswith("_s") for field in dataclasses.fields(kind) if field.type is float)


@EVERY_KIND
def test_an_event_is_documented(kind: type[Any]) -> None:
    # A dataclass without a docstring is given its own signature for one.
    assert kind.__doc__ is not None
    assert not kind.__doc__.startswith(kind.__name__ + "(")


@EVERY_KIND
def test_the_repr_of_an_event_shows_its_fields(kind: type[Any]) -> None:
    assert all(f"{field.name}=" in repr(example(kind)) for field in dataclasses.fields(kind))


def test_a_skip_has_four_reasons_in_words_that_fit_behind_a_name() -> None:
    assert {reason.name: reason.value for reason in SkipReason} == {
        "ELSEWHERE": "it runs on another instance",
        "OVERLAP": "a run is still in progress",
        "SLOT_TAKEN": "its slot was already run",
        "DRAINING": "this instance is shutting down",
    }


def test_a_loss_in_an_event_is_the_loss_of_the_error() -> None:
    assert get_type_hints(events.LeaseLost)["reason"] is LossReason


def test_an_event_is_matched_by_its_fields() -> None:
    match example(LeaseAcquired):
        case LeaseAcquired(key=key, token=token, after="released"):
            assert (key, token) == ("invoices", 41)
        case _:
            pytest.fail("no match")
