"""When each lease is to be looked at next."""

import heapq
from typing import Final, final

from tenure._kept import Kept

__all__ = ["Agenda"]

_FEW: Final = 64
"""Entries that count no more are swept out of the heap once they outnumber those that do, and these."""


@final
class Agenda:
    """
    The moments at which leases are to be looked at, the earliest first.

    One entry of a lease counts, the last that was put. The others are passed over when they are met, and swept out
    when they are most: what is held decides how long the heap is, not how often leases come and go.
    """

    __slots__ = ("_entries", "_heap", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Kept]] = []
        self._entries = 0
        self._sweep_at = _FEW

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, kept: Kept, when: float) -> None:
        """Look at *kept* at *when*, and not at the moment that was put before."""
        self._entries = kept.entry = self._entries + 1
        heapq.heappush(self._heap, (when, kept.entry, kept))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].entry]
            heapq.heapify(self._heap)
            self._sweep_at = _FEW + 2 * len(self._heap)

    @staticmethod
    def drop(kept: Kept) -> None:
        """Look at *kept* no more."""
        kept.entry = 0

    def first(self) -> tuple[float, Kept] | None:
        """Return the first moment and its lease, which stay where they are."""
        heap = self._heap
        while heap:
            when, entry, kept = heap[0]
            if entry == kept.entry:
                return when, kept
            heapq.heappop(heap)
        return None

    def pop(self) -> None:
        """Take away what `first` returned."""
        heapq.heappop(self._heap)

    def clear(self) -> None:
        """Look at nothing any more."""
        self._heap.clear()
