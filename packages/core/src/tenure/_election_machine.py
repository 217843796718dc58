"""
The election machine: one candidate, as it campaigns, leads and stands down.

Theory
------
An election is a lease on the election's key, held for as long as its holder leads. Each candidate is a small
machine of its own; nothing is agreed on between candidates but who has the lease.

    IDLE ------START-------> CAMPAIGNING
    CAMPAIGNING --GRANTED--> LEADING        the lease is ours: lead() runs
    CAMPAIGNING --REFUSED--> CAMPAIGNING    another leads: try again in about a third of a ttl
    LEADING ------LOST-----> CAMPAIGNING    the lease ended: lead() is cancelled first
    LEADING ------DONE-----> RESTING        lead() returned or raised, or step_down() was called: the lease is
                                            given back, and the others get the first chance
    RESTING ------RESTED---> CAMPAIGNING
    any ----------STOP-----> STOPPED        shutdown: a leader gives the lease back first

Events to the outside come in strict order, acquired then lost, and only from one that led: `acquired` on every
edge into LEADING, `lost` on every edge out of it. So `lost` never comes twice, and never to a follower.

The rules stand in this file and nowhere else. It reads no clock, knows no event loop and does no I/O.
"""

import enum
from typing import Final, final

__all__ = ["TRANSITIONS", "CandidateEvent", "CandidateState", "step"]


@final
class CandidateState(enum.Enum):
    """Where a candidate stands."""

    IDLE = "idle"
    CAMPAIGNING = "campaigning"
    LEADING = "leading"
    RESTING = "resting"
    STOPPED = "stopped"


@final
class CandidateEvent(enum.Enum):
    """What can happen to a candidate."""

    START = "start"
    GRANTED = "granted"
    REFUSED = "refused"
    LOST = "lost"
    DONE = "done"
    RESTED = "rested"
    STOP = "stop"


TRANSITIONS: Final[dict[tuple[CandidateState, CandidateEvent], CandidateState]] = {
    (CandidateState.IDLE, CandidateEvent.START): CandidateState.CAMPAIGNING,
    (CandidateState.CAMPAIGNING, CandidateEvent.GRANTED): CandidateState.LEADING,
    (CandidateState.CAMPAIGNING, CandidateEvent.REFUSED): CandidateState.CAMPAIGNING,
    (CandidateState.LEADING, CandidateEvent.LOST): CandidateState.CAMPAIGNING,
    (CandidateState.LEADING, CandidateEvent.DONE): CandidateState.RESTING,
    (CandidateState.RESTING, CandidateEvent.RESTED): CandidateState.CAMPAIGNING,
    **{(state, CandidateEvent.STOP): CandidateState.STOPPED for state in CandidateState},
}
"""Every legal step; a pair that is not here is a mistake in the election, not in the world."""


def step(state: CandidateState, event: CandidateEvent) -> CandidateState:
    """
    Follow one event.

    Raises:
        AssertionError: The event cannot happen in this state; the election that reported it has a bug.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise AssertionError(f"A candidate that is {state.value} cannot meet {event.value!r}.") from None
