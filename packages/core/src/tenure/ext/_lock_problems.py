"""What a client is told of errors of locks, in every framework. No text holds a key or an owner."""

from collections.abc import Mapping
from typing import Final

from tenure.errors import LeaseLostError, LockNotAcquiredError, StoreError
from tenure.ext.asgi import Problem

__all__ = ["LOCKS_BASE", "LOCK_PROBLEMS"]

LOCKS_BASE: Final = "urn:tenure:"
"""What stands before the code of a problem with locks."""

LOCK_PROBLEMS: Final[Mapping[type[Exception], Problem]] = {
    LockNotAcquiredError: Problem(
        code="lock-not-acquired",
        status=LockNotAcquiredError.status_hint,
        title="Somebody else is at work on this",
        detail="Another request or job holds the lock that this one needs. Repeat it after a pause.",
        # What is left of the lock is not known here, and a lock that is renewed has no end.
        retry_after_s=1,
    ),
    LeaseLostError: Problem(
        code="lease-lost",
        status=503,
        title="The lock was lost while the request was being worked on",
        detail="The work was stopped. Find out how far it came before the request is repeated.",
    ),
    StoreError: Problem(
        code="store-unavailable",
        status=503,
        title="The store of the locks did not answer",
        detail="Repeat the request after a pause.",
        retry_after_s=1,
    ),
}
"""By the error, and its children."""
