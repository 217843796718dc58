"""
What can go wrong that is this store's own. Everything else that a call raises is the client's own error.

No message names a key, an owner or what was found under a key.
"""

from tenure.errors import StoreError

__all__ = [
    "ClientSettingsWarning",
    "ForeignValueError",
    "TokensExhaustedError",
    "UnreadableReplyError",
    "ValkeyStoreError",
]


class ValkeyStoreError(StoreError):
    """The parent of the errors below; the message names no key, no owner and no reply."""

    __module__ = "tenure_valkey"


class ForeignValueError(ValkeyStoreError):
    """
    Under the key of a lock, of its fence or of a record is what this store did not write; nothing was written.

    A value of another type (a list, say, or text where a record should be) is the server's own WRONGTYPE error.

    Attributes:
        place: "lock", "fence" or "record".
    """

    __module__ = "tenure_valkey"

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place

    def __str__(self) -> str:
        return (
            f"The key of a {self.place} holds what this store did not write, so nothing was acquired or "
            "written. Give the store a prefix that nothing else on the server uses, or delete what is there once "
            "nobody needs it."
        )


class TokensExhaustedError(ValkeyStoreError):
    """
    The key's last fencing token is 2**53 - 2 or more, and a greater one could not be told apart; nothing was written.

    Tokens are microseconds of the server's clock, which gets there in the year 2255: something else wrote the fence,
    or a clock was wrong.
    """

    __module__ = "tenure_valkey"

    def __str__(self) -> str:
        return (
            "The key's last fencing token is 2**53 - 2 or more, the end of the range, so it cannot be acquired again. "
            "Look at the key's fence on the server: set it to the greatest token that a fenced resource holds for this "
            "key, or use another key."
        )


class UnreadableReplyError(ValkeyStoreError):
    """
    A script's reply is not one that the script gives; it is never taken for a grant.

    Attributes:
        script: The script that was called.
    """

    __module__ = "tenure_valkey"

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.script = script

    def __str__(self) -> str:
        return (
            f"The reply to the script {self.script} is not one that it gives, so the outcome is unknown. Look at what "
            "the client does to replies (response callbacks, decoders, a proxy): the store reads them as they are."
        )


class ClientSettingsWarning(UserWarning):
    """A client's settings make a store less safe than it could be; the message says what to set."""

    __module__ = "tenure_valkey"
