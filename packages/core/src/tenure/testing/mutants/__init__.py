"""
A museum of broken stores: the proof that the contract has teeth.

Every rule, and every case, has a store here that breaks it with one planted bug, and each fails exactly the
cases that it names. Run them where you run the contract, to see that your runner and your clock find what they
must: a case that is skipped, or a time that does not pass, finds nothing.
"""

from tenure.testing.mutants import (
    durations,
    exclusion,
    expiry,
    listing,
    names,
    ownership,
    queueing,
    remaining,
    renewing_many,
    repeating,
    tokens,
)
from tenure.testing.mutants.museum import Mutant

__all__ = ["Mutant", "lock_store_mutants"]

_WINGS = (
    exclusion.WING,
    expiry.WING,
    ownership.WING,
    repeating.WING,
    tokens.WING,
    names.WING,
    durations.WING,
    remaining.WING,
    renewing_many.WING,
    listing.WING,
    queueing.WING,
)


def lock_store_mutants() -> list[Mutant]:
    """
    List the broken stores.

    Returns:
        One `Mutant` a bug. `mutant.contract()` has the cases on it; those named in `mutant.caught_by` must
        raise `AssertionError`, and all others must not.
    """
    return [mutant for wing in _WINGS for mutant in wing.mutants]
