"""
What this process knows of its places in queues: which grants may be believed, and who is to be told.

A message says that a release granted a lock. It may come late, or twice, and so be about an earlier grant; a grant is
believed only where its token is greater than that of whoever held the lock when the place was taken. What is not
believed, or lost, costs one poll.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, final

from tenure.store import MAX_TOKEN

__all__ = ["Places"]

_MOST: Final = 10_000
"""Places that are remembered; each goes when its owner is granted the lock, or sends a release."""


@dataclass(slots=True)
class _Place:
    """
    A place in a queue.

    Attributes:
        after: The token of the one who held the lock when the place was taken; no token is greater until that is known.
        heard: The greatest token of a grant that was heard of, or 0.
        told: Whom `granted` is to tell.
    """

    after: int = MAX_TOKEN
    heard: int = 0
    told: "asyncio.Future[None] | None" = None

    @property
    def granted(self) -> bool:
        return self.heard > self.after

    def tell(self) -> None:
        if self.granted and self.told is not None and not self.told.done():
            self.told.set_result(None)


@final
class Places:
    """The places of one store in this process, by the name of the lock and the owner."""

    def __init__(self) -> None:
        self._places: dict[tuple[bytes, bytes], _Place] = {}

    def ask(self, lock: bytes, owner: bytes) -> None:
        """Expect grants from now on: a call that may take a place is about to be sent."""
        if (lock, owner) not in self._places:
            if len(self._places) >= _MOST:
                # The oldest: its owner polls.
                del self._places[next(iter(self._places))]
            self._places[lock, owner] = _Place()

    def taken(self, lock: bytes, owner: bytes, held_with: int) -> None:
        """Know that *owner* has its place behind the token *held_with*."""
        place = self._places.get((lock, owner))
        if place is not None:
            place.after = held_with
            place.tell()

    def leave(self, lock: bytes, owner: bytes) -> None:
        """Expect nothing more: *owner* holds the lock, or waits no longer."""
        self._places.pop((lock, owner), None)

    def heard(self, message: bytes) -> None:
        """Take in a message: the token, the owner and the lock's name, with NUL between them."""
        words = message.split(b"\0", 2)
        if len(words) == 3 and words[0].isdigit() and len(words[0]) <= 16:
            token, owner, lock = words
            place = self._places.get((lock, owner))
            if place is not None and int(token) <= MAX_TOKEN:
                place.heard = max(place.heard, int(token))
                place.tell()

    async def granted(self, lock: bytes, owner: bytes) -> int:
        """Return the token of a grant to *owner*, once there is one."""
        place = self._places.get((lock, owner)) or _Place()
        while not place.granted:
            place.told = asyncio.get_running_loop().create_future()
            try:
                await place.told
            finally:
                place.told = None
        self.leave(lock, owner)
        return place.heard
