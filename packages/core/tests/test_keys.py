"""Keys, owners and instance names: the same rules in every store, and messages that hold no value."""

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import ConfigurationError
from tenure._keys import (
    MAX_INSTANCE_LENGTH,
    MAX_KEY_LENGTH,
    MAX_OWNER_LENGTH,
    check_instance,
    check_key,
    check_owner,
)

examples = settings(deadline=None, max_examples=150)


class Rule(NamedTuple):
    """One of the three checks, what it calls its value, and how long that may be."""

    check: Callable[[str], str]
    name: str
    longest: int

    def refusal(self, value: object) -> str:
        with pytest.raises(ConfigurationError) as refused:
            self.check(value)  # type: ignore[arg-type]
        return str(refused.value)


RULES = pytest.mark.parametrize(
    "rule",
    [
        Rule(check_key, "key", MAX_KEY_LENGTH),
        Rule(check_owner, "owner", MAX_OWNER_LENGTH),
        Rule(check_instance, "instance", MAX_INSTANCE_LENGTH),
    ],
    ids=["key", "owner", "instance"],
)


class Name(str):
    """A subclass of str, as an enum of keys is."""

    __slots__ = ()


def storable(text: str) -> bool:
    """The rules over again, in other words: what PostgreSQL and Valkey can both keep."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def test_the_limits_are_the_published_ones() -> None:
    assert (MAX_KEY_LENGTH, MAX_OWNER_LENGTH, MAX_INSTANCE_LENGTH) == (500, 200, 100)


@RULES
def test_one_character_and_the_most_are_accepted_as_they_are(rule: Rule) -> None:
    for value in ("x", "x" * rule.longest, "\U0001f408" * rule.longest):
        assert rule.check(value) is value


@pytest.mark.parametrize(
    "key",
    [
        "invoices:nightly-export",
        " leading and trailing ",
        "Straße",
        "ＦＵＬＬ",  # noqa: RUF001 -- compared exactly, not as its ASCII twin
        "\u0001\t\n",
        "zażółć:gęślą",
        "{tag}%:fence",
        "'; drop table locks; --",
        "\ufffd\U0010ffff",
        Name("export"),
    ],
)
def test_a_key_is_any_unicode(key: str) -> None:
    assert check_key(key) is key


def test_two_forms_of_one_letter_stay_two_keys() -> None:
    composed, decomposed = "é", unicodedata.normalize("NFD", "é")
    assert check_key(composed) != check_key(decomposed)


@RULES
def test_nothing_is_refused_with_what_is_allowed(rule: Rule) -> None:
    assert rule.refusal("") == f"The {rule.name} is empty: give it 1 to {rule.longest} characters."


@RULES
def test_one_character_too_many_is_refused_with_the_count_and_a_way_out(rule: Rule) -> None:
    message = rule.refusal("x" * (rule.longest + 1))
    assert message.startswith(f"The {rule.name} has {rule.longest + 1} characters: it may have {rule.longest}.")
    assert "Shorten it, or hash its tail." in message


@RULES
@pytest.mark.parametrize("value", [None, 7, b"key", ["key"], object()])
def test_what_is_no_text_is_refused_by_its_type(rule: Rule, value: object) -> None:
    assert rule.refusal(value) == f"The {rule.name} is of type {type(value).__name__}: it must be a str."


@RULES
@pytest.mark.parametrize("value", ["\0", "a\0b", "end\0"])
def test_a_nul_is_refused_wherever_it_stands(rule: Rule, value: str) -> None:
    message = rule.refusal(value)
    assert message.startswith(f"The {rule.name} holds a NUL character")
    assert "leave it out" in message


@RULES
@pytest.mark.parametrize(
    "value", ["\ud800", "a\udfffb", "pair turned round: \ude00\ud83d", "byte \udc80 of an errors='surrogateescape'"]
)
def test_a_lone_surrogate_is_refused_with_where_it_came_from(rule: Rule, value: str) -> None:
    message = rule.refusal(value)
    assert message.startswith(f"The {rule.name} holds a lone surrogate")
    assert "errors='replace'" in message


@RULES
@pytest.mark.parametrize("tail", ["x" * 10_000_000, "\0", "\ud800"], ids=["ten megabytes", "NUL", "surrogate"])
def test_a_refusal_never_holds_the_value(rule: Rule, tail: str) -> None:
    message = rule.refusal(f"shop-1:canary{tail}")
    assert "canary" not in message
    assert len(message) < 300


@RULES
@given(value=st.text(st.characters(exclude_categories=()), max_size=600))
@examples
def test_a_text_is_accepted_exactly_where_every_store_can_keep_it(rule: Rule, value: str) -> None:
    if 1 <= len(value) <= rule.longest and storable(value):
        assert rule.check(value) is value
    else:
        assert f"The {rule.name} " in rule.refusal(value)


@RULES
@given(
    head=st.text(max_size=50),
    bad=st.sampled_from(["\0", "\ud800", "\udbff", "\udc00", "\udfff"]),
    tail=st.text(max_size=40),
)
@examples
def test_one_bad_character_is_found_wherever_it_stands(rule: Rule, head: str, bad: str, tail: str) -> None:
    rule.refusal(head + bad + tail)
