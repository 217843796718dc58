"""How users come to send one order under one key at once."""

# gevent's stubs are not part of it.
# mypy: disable-error-code="import-untyped"

import random
from typing import Final, NamedTuple, final

import gevent
from gevent.event import AsyncResult

__all__ = ["Call", "Storm"]


class Call(NamedTuple):
    """
    What every member of a storm sends.

    Attributes:
        number: Which storm of its block it is, from 1.
        seed: What the order is drawn from, so that it is the same one for all.
    """

    number: int
    seed: int


@final
class Storm:
    """
    Gathers users, and lets them go all at once as soon as there are enough.

    Args:
        size: How many make a storm.
        seed: What the orders follow from.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size: Final = size
        self._random: Final = random.Random(seed)  # noqa: S311 -- the same storms at every run
        self._members = 0
        self._number = 0
        self._call: AsyncResult[Call] = AsyncResult()

    def join(self, within_s: float) -> Call | None:
        """
        Wait until there are enough; the last one wakes the others.

        Args:
            within_s: How long to wait, in seconds: at the end of a block the others do not come any more.

        Returns:
            What to send, or None where too few came in time.
        """
        self._members += 1
        call = self._call
        if self._members >= self._size:
            self._members, self._call = 0, AsyncResult()
            self._number += 1
            call.set(Call(self._number, self._random.getrandbits(32)))
        try:
            called: Call = call.get(timeout=within_s)
        except gevent.Timeout:
            if call is self._call:
                self._members -= 1
            return None
        return called
