import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import ConfigurationError
from tenure_testbed import ValkeyCluster
from tenure_valkey.keys import Keys, RecordKeys

KEYS = Keys("locks:")

# Characters that mean something, and any others: what a key may hold.
MARKS = st.sampled_from("%{}2457BbDd:*?[]\\^-")
KEY = st.text(MARKS | st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)


@given(KEY, KEY)
def test_two_keys_have_two_locks_and_two_fences(one: str, other: str) -> None:
    names = [KEYS.lock(one), KEYS.fence(one), KEYS.lock(other), KEYS.fence(other)]
    assert len(set(names)) == (2 if one == other else 4)


@given(KEY)
def test_a_lock_tells_its_key(key: str) -> None:
    assert KEYS.key_of(KEYS.lock(key)) == key
    assert KEYS.key_of(KEYS.lock(key).decode()) == key
    assert KEYS.key_of(KEYS.fence(key)) is None


@given(KEY)
def test_a_lock_and_its_fence_are_in_the_slot_of_the_key_s_tag(key: str) -> None:
    lock = KEYS.lock(key)
    tag = lock[len(b"locks:{") : -1]
    assert tag
    assert not set(tag) & set(b"{}")
    assert ValkeyCluster.slot_of(lock) == ValkeyCluster.slot_of(KEYS.fence(key)) == ValkeyCluster.slot_of(tag)


@given(KEY, KEY)
def test_the_tag_of_a_beginning_begins_the_tag(one: str, other: str) -> None:
    begins = KEYS.lock(other).startswith(KEYS.lock(one)[:-1])
    assert begins == other.startswith(one)


@given(st.binary(max_size=30))
def test_what_this_store_does_not_write_is_no_lock_of_it(name: bytes) -> None:
    key = KEYS.key_of(b"locks:{" + name + b"}")
    assert key is None or KEYS.lock(key) == b"locks:{" + name + b"}"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (b"locks:{job}", "job"),
        (b"locks:{job}:fence", None),
        (b"locks:{}", None),
        (b"locks:{a%7bb}", None),
        (b"other:{job}", None),
        (b"locks:{\xff}", None),
    ],
)
def test_names_that_a_scan_may_find(name: bytes, key: str | None) -> None:
    assert KEYS.key_of(name) == key


def test_the_prefix_is_part_of_the_glob_as_it_stands() -> None:
    assert Keys("a*b?[c]^\\:").pattern("x{*") == rb"a\*b\?\[c\]\^\\:{x%7B\**}"


@pytest.mark.parametrize("prefix", ["{app}:", "a}b", "x{", None, b"locks:", "a\0b", "\ud800", "x" * 201])
def test_a_prefix_that_cannot_be_is_refused(prefix: object) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        Keys(prefix)  # type: ignore[arg-type]  # that is the point


def test_the_refusal_of_a_brace_says_why() -> None:
    with pytest.raises(ConfigurationError, match="a cluster would hash"):
        Keys("{shop}:")


@given(KEY, KEY)
def test_two_keys_have_two_records(one: str, other: str) -> None:
    keys = RecordKeys("idem:")
    assert keys.record(one) == f"idem:{one}".encode()
    assert (keys.record(one) == keys.record(other)) == (one == other)


@pytest.mark.parametrize("prefix", ["{a}", "a{", 1, "a" * 201, "a\0", "\ud800"])
def test_a_prefix_of_records_that_cannot_be_is_refused(prefix: object) -> None:
    with pytest.raises(ConfigurationError, match=r"[Tt]he prefix"):
        RecordKeys(prefix)  # type: ignore[arg-type]  # that is the point
