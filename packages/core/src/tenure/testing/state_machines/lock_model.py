"""
The reference model of a lock: what every call on one key must be answered.

As the store contract has it (`tenure.store`), and nothing else: a lock is its owner's until its end; whoever acquires a
free key gets a token greater than all before; its owner, asking again, gets the same one. Where the store keeps a
queue, a release grants the lock to the first in it whose place is kept still; whoever takes an expired lock takes it
without its queue.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, final

from tenure.store import MAX_TOKEN, Acquired, Ending, Held, LockRecord
from tenure.testing.state_machines.possible import UNSEEN, Branch
from tenure.testing.state_machines.spans import NEVER, Moment, Span

__all__ = ["Lock", "LockAsk", "Place", "lock_branches"]


@final
@dataclass(frozen=True, slots=True)
class LockAsk:
    """
    A call on one key.

    Attributes:
        call: Which; a look is what `list_locks` shows of the key, a record or None.
        owner: By whom.
        ttl_ms: The ttl that is asked for.
        place_ms: For how long a place in the queue is asked for, where it is.
        label: What the owner is called in a failure: the owner itself is never shown.
    """

    call: Literal["acquire", "acquire_queued", "renew", "release", "look"]
    owner: str = ""
    ttl_ms: int = 0
    label: str = field(default="", compare=False)
    place_ms: int = 0

    def __str__(self) -> str:
        match self.call:
            case "look":
                return "list_locks()"
            case "release":
                return f"release({self.label})"
            case "acquire_queued":
                return f"acquire_queued({self.label}, {self.ttl_ms}, {self.place_ms})"
            case _:
                return f"{self.call}({self.label}, {self.ttl_ms})"


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A place in the queue: whose, for how long a grant to it is, and when it ends."""

    owner: str
    ttl_ms: int
    ends: Span


@final
@dataclass(frozen=True, slots=True)
class Lock:
    """
    What is kept of a key.

    Attributes:
        owner: Whose the lock is or was; None where nobody's, before the first grant and after a release.
        ends: When the lock ends.
        token: Its token; None where the reply that told it was lost.
        floor: The greatest token that the key is known to have had.
        ended: How the lock before the next one ended, once it is nobody's.
        after: What its grant may say of the lock before it.
        queue: Who waits for it, in order.
    """

    owner: str | None = None
    ends: Span = NEVER
    token: int | None = None
    floor: int = 0
    ended: Ending | None = None
    after: frozenset[Ending | None] = frozenset({None})
    queue: tuple[Place, ...] = ()


def lock_branches(lock: Lock, ask: LockAsk, moment: Moment) -> Sequence[Branch[Lock]]:
    """List every way in which *ask* may end on *lock*."""
    branches = []
    if lock.owner is not None and moment.may_precede(lock.ends):
        held = replace(lock, ends=moment.before(lock.ends))
        branches += _on_mine(held, ask, moment) if lock.owner == ask.owner else _on_anothers(held, ask, moment)
    if lock.owner is None or moment.may_follow(lock.ends):
        free = lock if lock.owner is None else replace(lock, ends=moment.behind(lock.ends))
        branches.append(_on_free(free, ask, moment))
    return branches


def _on_free(lock: Lock, ask: LockAsk, moment: Moment) -> Branch[Lock]:
    match ask.call:
        case "acquire" | "acquire_queued":
            after: frozenset[Ending | None] = frozenset({None, lock.ended if lock.owner is None else "expired"})
            says = " or ".join(sorted(repr(one) for one in after))
            expects = f"Acquired(token above {lock.floor}, after {says})"
            admits = partial(_is_grant, least=lock.floor + 1, after=after)
            return Branch(expects, admits, partial(_granted, lock, ask, moment, after))
        case "look":
            return _answer(None, lock)
        case _:
            return _answer(False, lock)


def _on_mine(lock: Lock, ask: LockAsk, moment: Moment) -> list[Branch[Lock]]:
    match ask.call:
        case "acquire" | "acquire_queued":
            least = lock.floor + 1 if lock.token is None else lock.token
            token = f"above {lock.floor}" if lock.token is None else str(lock.token)
            says = " or ".join(sorted(repr(one) for one in lock.after))
            admits = partial(_is_grant, least=least, most=lock.token or MAX_TOKEN, after=lock.after)
            return [Branch(f"Acquired(token {token}, after {says})", admits, partial(_repeated, lock, ask, moment))]
        case "renew":
            return [_answer(True, replace(lock, ends=moment.after(ask.ttl_ms)))]
        case _:
            return [_answer(True, after) for after in _released(lock, moment)]


def _released(lock: Lock, moment: Moment) -> Iterator[Lock]:
    """Say what may be after a release: granted to the first whose place may be kept still, or nobody's."""
    for number, place in enumerate(lock.queue):
        if moment.may_precede(place.ends):
            behind, after = lock.queue[number + 1 :], frozenset[Ending | None]({None, "released"})
            yield Lock(place.owner, moment.after(place.ttl_ms), None, lock.floor, None, after, behind)
        if not moment.may_follow(place.ends):
            return
    yield replace(lock, owner=None, ends=NEVER, ended="released", queue=())


def _queued(lock: Lock, ask: LockAsk, moment: Moment) -> Iterator[Lock]:
    """
    Say what may be after a place was asked for: kept where it is, or at the end where it is new or has run out.

    Or as it was: a store may be unable to queue it now (no subscription yet, a full server), and answers the same.
    """
    yield lock
    place = Place(ask.owner, ask.ttl_ms, moment.after(ask.place_ms))
    others = tuple(one for one in lock.queue if one.owner != ask.owner)
    before = [number for number, one in enumerate(lock.queue) if one.owner == ask.owner]
    for number in before:
        # A store may leave a place that has run out where it is, until a release skips it.
        yield replace(lock, queue=(*others[:number], place, *others[number:]))
    if not before or moment.may_follow(lock.queue[before[0]].ends):
        yield replace(lock, queue=(*others, place))


def _on_anothers(lock: Lock, ask: LockAsk, moment: Moment) -> list[Branch[Lock]]:
    least, most = moment.left_ms(lock.ends)
    match ask.call:
        case "acquire" | "acquire_queued":
            after = [lock] if ask.call == "acquire" else list(_queued(lock, ask, moment))
            return [_refused(least, most, one) for one in after]
        case "look":
            # A listing is for people: whole milliseconds, rounded either way.
            look = Branch(
                f"a LockRecord of its owner and token {lock.token}, {least - 1:.1f} to {most:.1f} ms left",
                partial(_is_record, lock=lock, least=max(0.0, least - 1), most=most),
                lambda reply: lock if reply is UNSEEN else _known(lock, reply.token),
            )
            return [look]
        case "release":
            rest = tuple(place for place in lock.queue if place.owner != ask.owner)
            return [_answer(False, replace(lock, queue=rest))]
        case _:
            return [_answer(False, lock)]


def _refused(least: float, most: float, after: Lock) -> Branch[Lock]:
    return Branch(
        f"Held({least:.1f} to {most:.1f} ms left, or None)",
        lambda reply: isinstance(reply, Held) and _is_left(reply.expires_in_ms, least, most, or_none=True),
        lambda _: after,
    )


def _answer(reply: object, lock: Lock) -> Branch[Lock]:
    return Branch(repr(reply), lambda given: given is reply, lambda _: lock)


def _granted(lock: Lock, ask: LockAsk, moment: Moment, after: frozenset[Ending | None], reply: Any) -> Lock:
    new = Lock(ask.owner, moment.after(ask.ttl_ms), None, lock.floor, None, after)
    return new if reply is UNSEEN else replace(_known(new, reply.token), after=frozenset({reply.after}))


def _repeated(lock: Lock, ask: LockAsk, moment: Moment, reply: Any) -> Lock:
    again = replace(lock, ends=moment.after(ask.ttl_ms))
    return again if reply is UNSEEN else replace(_known(again, reply.token), after=frozenset({reply.after}))


def _known(lock: Lock, token: int) -> Lock:
    return replace(lock, token=token, floor=max(lock.floor, token))


def _is_grant(reply: object, *, least: int, after: frozenset[Ending | None], most: int = MAX_TOKEN) -> bool:
    if not isinstance(reply, Acquired) or type(reply.token) is not int:
        return False
    return least <= reply.token <= most and reply.after in after


def _is_left(left: object, least: float, most: float, *, or_none: bool = False) -> bool:
    if left is None:
        return or_none
    return type(left) is int and least <= left <= most


def _is_record(reply: object, *, lock: Lock, least: float, most: float) -> bool:
    if not isinstance(reply, LockRecord) or reply.owner != lock.owner or type(reply.token) is not int:
        return False
    known = reply.token == lock.token if lock.token is not None else lock.floor < reply.token <= MAX_TOKEN
    return known and _is_left(reply.expires_in_ms, least, most)
