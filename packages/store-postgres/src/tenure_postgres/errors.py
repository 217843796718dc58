"""
What can go wrong that is PostgreSQL's alone. Everything else that a call raises is the driver's own error.

A driver's error gets a note (`BaseException.add_note`) where its text does not say what to do.
"""

from tenure.errors import StoreError

__all__ = ["TokensExhaustedError", "UnreplicatedWriteError"]


class UnreplicatedWriteError(StoreError):
    """
    The server gave up waiting for its synchronous standby: the write is on the primary alone.

    PostgreSQL reports such a commit as a success with a warning. A failover would lose it, so its outcome is
    unknown and it is never taken for a grant.
    """

    __module__ = "tenure_postgres"

    def __str__(self) -> str:
        return (
            "The wait for the synchronous standby was cancelled: the write is on the primary alone and a failover "
            "would lose it, so its outcome is unknown. See that the standby is up and that nobody cancels "
            "statements that wait for it."
        )


class TokensExhaustedError(StoreError):
    """
    The key's last fencing token is 2**53 - 1, the greatest there is; nothing was written.

    Tokens are microseconds of the server's clock, which gets there in the year 2255: the row was written by
    something else, or under a clock that was wrong.
    """

    __module__ = "tenure_postgres"

    def __str__(self) -> str:
        return (
            "The key's last fencing token is 2**53 - 1, the greatest there is, so it cannot be acquired again. "
            "Look at the row in the locks table: set its token to the greatest one that a fenced column holds for "
            "this key, or use another key."
        )
