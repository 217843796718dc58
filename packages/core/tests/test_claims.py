"""Claims on keys: two who would exclude each other silently are refused aloud."""

import gc
from collections.abc import Iterator

import pytest

from tenure import ConfigurationError
from tenure._claims import Claimant, Claims, ambient_claims

EXPORT = Claimant("Job shop.jobs:export", ("shop.jobs:export",), frozenset({"export", "export:owner"}))
FEED = Claimant('Election "feed"', object(), frozenset({"feed"}))
RIVAL = Claimant('Election "export:owner"', object(), frozenset({"export:owner"}))
BROKEN = Claimant("Job __main__:export", ("__main__:export",), frozenset({"main"}), "It has no stable name: name one.")


class Declarer:
    """What made a claim: a decorated function, an election."""

    itself: object = None


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Garbage stays where it is until somebody collects it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_claimants_with_keys_of_their_own_live_side_by_side(claims: Claims) -> None:
    export, feed = Declarer(), Declarer()
    claims.add(export, EXPORT)
    claims.add(feed, FEED)
    assert {*claims} == {EXPORT, FEED}


def test_a_second_claimant_of_a_key_is_refused_with_both_names_and_the_key(claims: Claims) -> None:
    export = Declarer()
    claims.add(export, EXPORT)
    with pytest.raises(ConfigurationError) as refused:
        claims.add(Declarer(), RIVAL)
    assert str(refused.value) == (
        "Election \"export:owner\" and Job shop.jobs:export both use the key 'export:owner': they would exclude each "
        "other silently, and one of them would never run. Give each a key of its own."
    )
    assert [*claims] == [EXPORT]


def test_one_key_is_named_where_several_are_shared(claims: Claims) -> None:
    export = Declarer()
    claims.add(export, EXPORT)
    with pytest.raises(ConfigurationError, match="the key 'export':"):
        claims.check(Claimant("Job other:export", ("other:export",), EXPORT.keys))


def test_the_same_job_declared_three_times_is_one_job(claims: Claims) -> None:
    instances = [Declarer() for _ in range(3)]
    for instance in instances:
        claims.add(instance, EXPORT)
    assert [*claims] == [EXPORT] * 3


def test_a_check_claims_nothing(claims: Claims) -> None:
    claims.check(EXPORT)
    claims.check(RIVAL)
    assert [*claims] == []


def test_a_claim_that_was_dropped_frees_its_keys(claims: Claims) -> None:
    export, rival = Declarer(), Declarer()
    claims.add(export, EXPORT)
    claims.drop(export)
    claims.add(rival, RIVAL)
    assert [*claims] == [RIVAL]


def test_dropping_what_was_never_claimed_does_nothing(claims: Claims) -> None:
    claims.drop(Declarer())


def test_a_claim_ends_with_the_object_that_made_it(claims: Claims, no_collection: None) -> None:
    export = Declarer()
    claims.add(export, EXPORT)
    del export
    claims.check(RIVAL)
    assert [*claims] == []


def test_a_claim_of_garbage_that_was_not_collected_yet_is_no_rival(claims: Claims, no_collection: None) -> None:
    export, rival = Declarer(), Declarer()
    export.itself = export
    claims.add(export, EXPORT)
    del export
    assert [*claims] == [EXPORT]
    claims.add(rival, RIVAL)
    assert [*claims] == [RIVAL]


def test_who_looks_through_the_claims_is_not_disturbed_by_a_new_one(claims: Claims) -> None:
    export, feed = Declarer(), Declarer()
    claims.add(export, EXPORT)
    for _ in claims:
        claims.add(feed, FEED)
    assert {*claims} == {EXPORT, FEED}


def test_two_sets_of_claims_start_together_where_no_key_is_shared(claims: Claims) -> None:
    export, feed, others = Declarer(), Declarer(), Claims()
    claims.add(export, EXPORT)
    others.add(feed, FEED)
    claims.check_all(others)


def test_two_sets_of_claims_do_not_start_together_where_a_key_is_shared(claims: Claims) -> None:
    export, rival, others = Declarer(), Declarer(), Claims()
    claims.add(export, EXPORT)
    others.add(rival, RIVAL)
    with pytest.raises(ConfigurationError, match="both use the key 'export:owner'"):
        claims.check_all(others)
    with pytest.raises(ConfigurationError, match="both use the key 'export:owner'"):
        others.check_all(claims)


@pytest.mark.parametrize("among_the_others", [False, True])
def test_a_claimant_that_cannot_run_stops_the_start_with_its_own_words(claims: Claims, among_the_others: bool) -> None:
    broken, others = Declarer(), Claims()
    (others if among_the_others else claims).add(broken, BROKEN)
    with pytest.raises(ConfigurationError, match=r"^It has no stable name: name one\.$"):
        claims.check_all(others)


def test_jobs_that_name_no_locks_share_one_set_of_claims() -> None:
    assert isinstance(ambient_claims, Claims)
