"""
A museum of broken idempotency stores: the proof that the contract has teeth.

Every rule, every race and every case has a store here that breaks it with one planted bug, and each fails exactly the
cases that it names. Run them where you run the contract, to see that your runner and your clock find what they must: a
case that is skipped, or a time that does not pass, finds nothing.
"""

from tenure.testing.idempotency_mutants import (
    arguments,
    beginning,
    classifying,
    effects,
    ending,
    extending,
    names,
    ownership,
    purging,
    releasing,
    repeating,
    responses,
)
from tenure.testing.idempotency_mutants.museum import IdempotencyMutant

__all__ = ["IdempotencyMutant", "idempotency_store_mutants"]

_WINGS = (
    beginning.WING,
    classifying.WING,
    ending.WING,
    ownership.WING,
    repeating.WING,
    extending.WING,
    releasing.WING,
    responses.WING,
    names.WING,
    arguments.WING,
    purging.WING,
    effects.WING,
)


def idempotency_store_mutants() -> list[IdempotencyMutant]:
    """
    List the broken stores.

    Returns:
        One `IdempotencyMutant` a bug. `mutant.contract()` has the cases on it; those named in `mutant.caught_by` must
        raise `AssertionError`, and all others must not.
    """
    return [mutant for wing in _WINGS for mutant in wing.mutants]
