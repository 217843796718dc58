"""What a history is made of, as the rules see it: calls, grants, what an owner did, what happened on a key."""

import math
from dataclasses import dataclass, field
from typing import final

__all__ = ["Call", "Grant", "Key", "Owner"]


@final
class Call:
    """
    One store call.

    Attributes:
        process: Who made it.
        op: "acquire", "renew" or "release".
        owner: The owner that it was made for.
        ttl_s: What it asked for, in seconds; 0.0 for a release.
        invoked: When it was sent.
        returned: When its caller went on; infinite where it never did.
        cut: When its process died under it; infinite where it did not.
        result: "ok", "no", "unknown", or "open" where it never returned.
        token: What was granted, or 0.
        place_s: For how long it may leave a place in the key's queue, in seconds, from which it is granted later.
        follows: Whether the store told of a lock that ended before this one.
    """

    __slots__ = (
        "cut",
        "follows",
        "invoked",
        "op",
        "owner",
        "place_s",
        "process",
        "result",
        "returned",
        "token",
        "ttl_s",
    )

    def __init__(self, process: str, op: str, owner: "Owner", ttl_s: float, invoked: float) -> None:
        self.process = process
        self.op = op
        self.owner = owner
        self.ttl_s = ttl_s
        self.invoked = invoked
        self.returned = math.inf
        self.cut = math.inf
        self.result = "open"
        self.token = 0
        self.follows = False
        self.place_s = 0.0

    @property
    def ended(self) -> float:
        """When it returned, or its process died; infinite where neither is known."""
        return self.returned if self.returned < math.inf else self.cut


@final
class Grant:
    """
    One token of one owner: what its process may believe, and what it showed to believe.

    Attributes:
        process: Who was granted.
        owner: The owner.
        token: Its token.
        ttl_s: The ttl that it was asked for with, in seconds.
        invoked: When the acquire was sent whose answer brought it first.
        granted: When that answer came.
        confirmed: Each later confirmation: when it came, when it was asked for, and the ttl in seconds.
        refused: When a renewal was first refused.
        lost: When the loss signal fired.
        gave_back: When the holder began to give it back.
        died: When the process died.
        last_belief: When the process last said that it believes; minus infinity where it never did.
        until: The rightful deadline: up to when the process may believe, whatever else happens.

    Moments that did not come are infinite.
    """

    __slots__ = (
        "confirmed",
        "died",
        "gave_back",
        "granted",
        "invoked",
        "last_belief",
        "lost",
        "owner",
        "process",
        "refused",
        "token",
        "ttl_s",
        "until",
    )

    def __init__(self, call: Call, token: int, granted: float) -> None:
        self.process = call.process
        self.owner = call.owner
        self.token = token
        self.ttl_s = call.ttl_s
        self.invoked = call.invoked
        self.granted = granted
        self.confirmed: list[tuple[float, float, float]] = []
        self.refused = math.inf
        self.lost = math.inf
        self.gave_back = math.inf
        self.died = math.inf
        self.last_belief = -math.inf
        self.until = -math.inf

    @property
    def ends(self) -> float:
        """When its process stopped to believe, as far as its own deeds and its deadline tell."""
        return min(self.until, self.lost, self.gave_back, self.died)

    def count_deadline(self, margin: float) -> None:
        """
        Set the rightful deadline.

        A confirmation counts from its sending, and only if it came before the deadline so far: a lease that was lost
        once is never held again.
        """
        share = 1 - margin
        until = self.invoked + self.ttl_s * share
        for returned, invoked, ttl_s in sorted(self.confirmed):
            if returned > until:
                break
            until = max(until, invoked + ttl_s * share)
        self.until = until


@final
@dataclass(slots=True, eq=False)
class Owner:
    """
    One owner, and what was asked in its name.

    Attributes:
        name: Its hash.
        key: The key.
        calls: Its calls, as they were sent.
        grants: What it was granted: one, unless the store gave it another token later.
        releasing: When its last release was sent; no lease that is granted later, and was asked for before, is held.
    """

    name: str
    key: "Key" = field(repr=False)
    calls: list[Call] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    releasing: float = math.inf


@final
@dataclass(slots=True, eq=False)
class Key:
    """
    Everything on one key.

    Attributes:
        name: The key.
        owners: Who asked for it, by name.
        acquires: Each acquire, as it was sent.
        grants: Each grant, as it came.
    """

    name: str
    owners: dict[str, Owner] = field(default_factory=dict)
    acquires: list[Call] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
