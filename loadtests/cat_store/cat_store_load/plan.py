"""What a crowd of users is told: where the replicas are, whether to send keys, and where to write what it hears."""

import os
from typing import Final, Self

import msgspec

__all__ = ["PLAN", "Plan"]

PLAN: Final = "CAT_STORE_LOAD_PLAN"
"""
The variable of the environment that has the plan, as JSON.

It holds the administrators' token, so it is no argument of a command.
"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """
    One block of load.

    Attributes:
        block: Its name, which begins the name of every customer in it: an order is known by its customer.
        urls: Where the replicas answer.
        admin_headers: What administrators send.
        keys: Whether orders carry an `Idempotency-Key`.
        storm: How many users send one order at once.
        think_s: The mean pause of a user between two things that it does, in seconds.
        answers: The file that every answer is appended to.
        seed: What the users' choices follow from.
    """

    block: str
    urls: list[str]
    admin_headers: dict[str, str]
    keys: bool
    storm: int
    think_s: float
    answers: str
    seed: int = 7

    def environment(self) -> dict[str, str]:
        """Give the variable that the users' process reads it from."""
        return {PLAN: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environment(cls) -> Self:
        """
        Read the plan of this process.

        Raises:
            LookupError: There is none: the users were started by hand, without a shop.
        """
        text = os.environ.get(PLAN)
        if text is None:
            raise LookupError(
                f"{PLAN} is not set: start the users through `cat-store-load`, which starts the shop, too."
            )
        return msgspec.json.decode(text, type=cls)
