"""The observer of leases: sees every call, every grant and every loss, on true time, and knows what may not be."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, final

from simulation.journal import Journal
from simulation.life import Life, State
from simulation.network import Call
from simulation.observers.grants import MARGIN, Grant
from simulation.plan import Plan
from tenure import Lease, LossReason
from tenure.events import LeaseAcquired, LeaseLost, LeaseReleased
from tenure.store import Acquired, Held

__all__ = ["LeaseWatch"]

_AT_ONCE_S: Final = 0.005
"""What happens "at once" takes some turns of the loop, and no time but what floats round."""

_FREED_WITHIN_S: Final = 0.5
"""How soon the release must be sent behind an acquire of unknown outcome, once that call has ended."""

_REMEMBERED: Final = 8
"""Ended grants of a key that are looked at again, for one that is held once more."""


@final
class LeaseWatch:
    """
    Judges leases.

    Attributes:
        grants: What the engine made a lease of, by owner.
        granted_at: When the server last granted each key.
        believed_at: When somebody was last seen to hold it.
    """

    def __init__(self, journal: Journal, plan: Plan) -> None:
        self._journal = journal
        self._plan = plan
        self.grants: dict[str, Grant] = {}
        self.granted_at: dict[str, float] = {}
        self.believed_at: dict[str, float] = {}
        self.tail_lost_at = self.stepped_forward_at = float("-inf")
        self._of_key: defaultdict[str, list[Grant]] = defaultdict(list)
        self._labels: dict[str, str] = {}
        self._hashes: dict[str, str] = {}
        self._last: dict[str, tuple[int, str]] = {}
        self._granted_to: dict[tuple[str, int], str] = {}
        self._to_free: dict[str, tuple[float, Call]] = {}
        self._unknown: set[str] = set()
        # Of the queues, by owner: the place as it was asked for last; when a release granted it a lock of which nobody
        # has shown to know; who asks just now, who has heard of a grant, and who has left.
        self._places: dict[str, Call] = {}
        self._unheard: dict[str, tuple[float, Call]] = {}
        self._asking: set[str] = set()
        self._heard: set[str] = set()
        self._left: set[str] = set()
        self._in_good_faith: dict[str, Call] = {}

    def label(self, owner: str) -> str:
        """Name an owner for the trace, where its random part would be another in every run."""
        found = self._labels.get(owner)
        if found is None:
            found = self._labels[owner] = f"{owner.rpartition(':')[0]}#{len(self._labels) + 1}"
        return found

    def hashed(self, owner: str) -> str:
        """Name an owner for the history, which holds hashes of twelve characters."""
        found = self._hashes.get(owner)
        if found is None:
            found = self._hashes[owner] = hashlib.sha256(self.label(owner).encode()).hexdigest()[:12]
        return found

    # --------------------------------------------------------------------------- what is on its way

    def sent(self, call: Call) -> None:
        """See a call leave its instance."""
        if call.op in ("acquire", "acquire_queued", "release"):
            self._unheard.pop(call.args[1], None)
        if call.op == "acquire_queued":
            self._to_free.pop(call.args[1], None)
            self._asking.add(call.args[1])
        elif call.op == "release":
            self._left.add(call.args[1])
            self._to_free.pop(call.args[1], None)
            grant = self.grants.get(call.args[1])
            if grant is not None and not grant.ended:
                self._give_back(grant)
        elif call.op == "renew":
            self._renewal_sent(call.args[1], call.args[2])
        elif call.op == "renew_many":
            for claim in call.args:
                self._renewal_sent(claim.owner, claim.ttl_ms)
            self._journal.saw("leases renewed together")

    def _renewal_sent(self, owner: str, ttl_ms: int) -> None:
        grant = self.grants.get(owner)
        if grant is None:
            return
        if ttl_ms != grant.ttl_ms:
            # A lock that is left to expire: given back here, and kept in the store for the rest of a second.
            self._journal.saw("a lock left to expire")
            self._give_back(grant)
        elif grant.ended_at is not None and self._journal.now > max(grant.ended_at, grant.life.resumed_at) + _AT_ONCE_S:
            # Not in the same moment: a renewal that was begun before the end goes out a turn of the loop after it.
            self._journal.broke("renewal", f'{grant.label} renews "{grant.key}", which it does not hold any more')

    def _give_back(self, grant: Grant) -> None:
        grant.given_back, grant.ended_at = True, self._journal.now
        self._journal.note("gave_back", grant.life.name, key=grant.key, token=grant.token)

    def performed(self, call: Call, reply: Any, *, repeated: bool) -> None:
        """See the server answer."""
        if call.op in ("acquire", "acquire_queued") and isinstance(reply, Acquired):
            self._granted(call, reply, repeated=repeated)
        elif call.op == "acquire_queued":
            place = self._places.get(call.args[1])
            self._places[call.args[1]] = call if place is None or place.sent_at < call.sent_at else place
        elif call.op == "release" and reply is True and call.args[1] in self._unknown:
            self._journal.saw("an orphan freed by the release behind it")

    def granted_by_release(self, key: str, owner: str, granted: Acquired, *, lost: bool) -> None:
        """See a release grant a lock to the head of its queue; *lost* where nothing tells it."""
        place = self._places[owner]
        self._journal.saw("a grant by a release")
        if lost:
            self._journal.saw("the message of a grant lost")
        self._granted(place, granted, repeated=False)
        if owner in self._left:
            # Its release was lost, or a request that was repeated came behind it.
            self._journal.saw("a grant to a waiter that had left")
        else:
            self._unheard[owner] = (self._journal.now, place)

    def heard(self, life: Life, key: str, owner: str, granted: Acquired) -> bool:
        """See a grant heard of; return whether it may be believed."""
        if self._journal.muted or self._last.get(key, (0, ""))[0] != granted.token:
            self._journal.saw("the message of a grant that is over")
            self._unheard.pop(owner, None)
            place = self._places[owner]
            if life.clock.now() < place.sent_on_clock + place.args[2] / 1000 * (1 - MARGIN):
                # By its own clock it may believe: the store's went forward, or its own stood still. Whether that is one
                # of the published limits is judged where it overlaps with another.
                self._in_good_faith[owner] = place
            return False
        self._unheard.pop(owner, None)
        place = self._places[owner]
        self._heard.add(owner)
        if owner not in self._asking:  # who asks just now waits for the answer first
            self._to_free[owner] = (self._journal.now, place)
        self._journal.saw("a grant heard")
        until: float = place.sent_on_clock + place.args[2] / 1000 * (1 - MARGIN)
        return life.clock.now() < until

    def _granted(self, call: Call, reply: Acquired, *, repeated: bool) -> None:
        key, owner, *_ = call.args
        known = (key, reply.token) in self._granted_to
        granted_to = self._granted_to.setdefault((key, reply.token), owner)
        if granted_to != owner:
            self._journal.broke("token", f"token {reply.token} of \"{key}\" is {self.label(owner)}'s, and another's")
        top, before = self._last.get(key, (0, ""))
        if reply.token == top or (reply.token < top and known):
            # Asked again by its owner; after a lost tail, perhaps one that came before others.
            return
        if reply.token <= top:
            self._journal.broke("token", f'token {reply.token} of "{key}" comes after {top}')
        self._last[key] = (reply.token, call.life.name)
        self.granted_at[key] = self._journal.now
        self._exclude(key, owner, "the server grants")
        if repeated:
            self._journal.saw("a repeated acquire granted a lock that nobody wants")
        if before not in ("", call.life.name):
            kind = {"expired": "takeover", "released": "handover"}.get(reply.after or "")
            if kind is not None:
                self._journal.saw(f"{kind} of a {_kind_of(key)}")

    # ------------------------------------------------------------------------------ what the end hears

    def acquire_unknown(self, call: Call) -> None:
        """See an acquire end at its caller without an answer: a release must follow."""
        if not self._journal.muted:
            self._unknown.add(call.args[1])
            self._asking.discard(call.args[1])
            self._to_free[call.args[1]] = (self._journal.now, call)

    def acquire_answered(self, call: Call, reply: Any) -> None:
        """See an answer reach the engine: it makes a lease of a grant, or frees it."""
        key, owner, ttl_ms, *_ = call.args
        self._asking.discard(owner)
        if isinstance(reply, Held) and owner in self._heard:
            call = self._places[owner]
        elif not isinstance(reply, Acquired) or "@" in key or self._journal.muted:
            return
        self._to_free[owner] = (self._journal.now, call)
        if isinstance(reply, Acquired) and owner in self._places and owner not in self._heard:
            self._journal.saw("a grant found by asking")
        if call.life.clock.now() >= call.sent_on_clock + ttl_ms / 1000 * (1 - MARGIN):
            self._journal.saw("a late grant discarded")

    def renewal_answered(self, call: Call, owner: str, ttl_ms: int, reply: Any) -> None:
        """See an answer reach the engine."""
        grant = self.grants.get(owner)
        if grant is None:
            return
        if reply is True:
            grant.confirm(call, ttl_ms)

    # --------------------------------------------------------------------------- what the engine says

    def began(self, life: Life, event: LeaseAcquired) -> Grant:
        """See the engine make a lease."""
        assert life.locks is not None
        lease: Lease = life.locks.acquirer._held[event.key][0]
        claim = lease._kept.claim
        _, call = self._to_free.pop(claim.owner, (0.0, self._in_good_faith.pop(claim.owner, None)))
        sent_on_clock, sent_at = (0.0, 0.0) if call is None else (call.sent_on_clock, call.sent_at)
        deadline = sent_on_clock + claim.ttl_ms / 1000 * (1 - MARGIN)
        grant = Grant(
            key=event.key,
            owner=claim.owner,
            label=self.label(claim.owner),
            token=event.token,
            ttl_ms=claim.ttl_ms,
            life=life,
            lease=lease,
            deadline=deadline,
            confirmed_at=sent_at,
            missed_s=life.clock.missed_s if call is None else call.missed_s,
        )
        self.grants[claim.owner] = grant
        self._of_key[event.key].append(grant)
        if life.clock.now() >= deadline:
            self._journal.broke("deadline", f'{grant.label} begins "{event.key}" after the grant has ended')
        self.believes(grant)
        self._exclude(event.key, claim.owner, f"{life.name} begins", grant)
        return grant

    def lost(self, life: Life, event: LeaseLost) -> None:
        """See the engine tell of a loss."""
        grant = next((one for one in reversed(self._of_key[event.key]) if one.token == event.token), None)
        if grant is None or grant.life is not life:
            return
        at_release = grant.given_back
        if grant.told_at is not None and not at_release:
            self._journal.broke("signal", f'the loss of "{event.key}" is told to {grant.label} twice')
        grant.told_at = grant.ended_at = self._journal.now
        self._journal.note("lost", life.name, key=event.key, token=event.token, reason=event.reason.value)
        self._journal.saw("a loss found at the release" if at_release else f"a loss: {event.reason.value}")
        if at_release or event.reason not in (LossReason.EXPIRED, LossReason.STALLED):
            return
        if life.loop.time() > grant.told_by() + _AT_ONCE_S:
            late_s = life.loop.time() - grant.told_by()
            self._journal.broke("signal", f'the loss of "{event.key}" is told to {grant.label} {late_s:.3f} s late')

    def given_back(self, life: Life, event: LeaseReleased) -> None:
        """See the engine tell that a lease was given back: one that is left to expire is before anything is sent."""
        grant = next((one for one in reversed(self._of_key[event.key]) if one.token == event.token), None)
        if grant is not None and grant.life is life and not grant.ended:
            self._give_back(grant)

    # ----------------------------------------------------------------------------------- what may not be

    def believes(self, grant: Grant) -> bool:
        """Tell whether a holder believes, and judge whether it may."""
        if grant.life.state is State.DEAD:
            return False
        if not grant.lease.held:
            grant.seen_ended = True
            return False
        if grant.seen_ended:
            self._journal.broke("deadline", f'{grant.label} holds "{grant.key}" again after it was lost')
        if grant.lease._kept.term.trusted_until > grant.deadline + 1e-6:
            self._journal.broke("deadline", f'{grant.label} means to trust "{grant.key}" for longer than it may')
        elif grant.life.clock.now() >= grant.deadline + 1e-6:
            self._journal.broke("deadline", f'{grant.label} trusts "{grant.key}" beyond its deadline')
        return True

    def believers(self, key: str) -> list[Grant]:
        """Name who believes to hold *key*, and forget who never will again."""
        found = [grant for grant in self._of_key[key] if self.believes(grant)]
        if found:
            self.believed_at[key] = self._journal.now
        grants = self._of_key[key]
        if len(grants) > 2 * _REMEMBERED:
            old = grants[:-_REMEMBERED]
            self._of_key[key] = [one for one in old if not one.seen_ended] + grants[-_REMEMBERED:]
        return found

    def _exclude(self, key: str, owner: str, when: str, *others: Grant) -> None:
        for grant in [one for one in self._of_key[key] if one.owner != owner]:
            if self.believes(grant):
                self.judge_overlap(when, grant, *others)

    def resumed(self, life: Life) -> None:
        """See a life go on: whatever it believes now, nobody else may."""
        for grants in list(self._of_key.values()):
            for grant in grants:
                if grant.life is life and self.believes(grant):
                    self._exclude(grant.key, grant.owner, f"{grant.label} goes on with", grant)

    def judge_overlap(self, when: str, *grants: Grant) -> None:
        """A holder believes what another has: a violation, unless one of *grants* met a fault that is known to."""
        excuse = next((found for grant in grants if (found := self._excuse(grant)) is not None), None)
        if excuse is not None:
            self._journal.saw(f"an overlap: {excuse}")
            return
        key, label = grants[0].key, grants[0].label
        self._journal.broke("exclusion", f'{when} "{key}" while {label} believes to hold it')

    def _excuse(self, grant: Grant) -> str | None:
        """Tell which published limit *grant* has met, and within its bounds."""
        now, ttl_s, clock = self._journal.now, grant.ttl_ms / 1000, grant.life.clock
        if now <= self.tail_lost_at + ttl_s * 1.05:
            return "the store lost its tail"
        if now <= self.stepped_forward_at + ttl_s * 1.05:
            return "the store's clock went forward"
        excess_s = now - (grant.confirmed_at + ttl_s)
        if clock.rate < 1 - MARGIN and excess_s <= ttl_s * ((1 - MARGIN) / clock.rate - 1) + _AT_ONCE_S:
            return "the holder's clock is slower than the margin"
        if clock.monotonic and (grant.life.state is State.PAUSED or clock.missed_s > grant.missed_s):
            return "the holder's clock stood still"
        return None

    def guarded(self, lease: Lease) -> Grant:
        """See a line run that stands under *lease*: its task must have been cancelled if the loss was told before."""
        grant = self.grants[lease._kept.claim.owner]
        told_at = grant.told_at
        if told_at is not None and self._journal.now > max(told_at, grant.life.resumed_at) + _AT_ONCE_S:
            self._journal.broke(
                "cancelled", f'work under "{grant.key}" runs on after {grant.label} was told of its loss'
            )
        return grant

    def look_around(self) -> None:
        """Judge every grant, and every acquire that was to be freed, as of now."""
        for key in list(self._of_key):
            self.believers(key)
            for grant in self._of_key[key]:
                life = grant.life
                overdue = not grant.ended and life.running and life.loop.time() > grant.told_by() + _AT_ONCE_S
                if overdue and life.loop.time() > life.resumed_at + _AT_ONCE_S:
                    self._journal.broke("signal", f'nobody tells {grant.label} that it lost "{key}"')
                    grant.given_back = True
        for owner, (since, call) in list(self._to_free.items()):
            life = call.life
            if life.state is State.DEAD or life.closing:
                del self._to_free[owner]
            elif life.running and self._journal.now > max(since, life.resumed_at) + life.late_looks_s + _FREED_WITHIN_S:
                self._journal.broke("orphan", f'nothing frees "{call.args[0]}" behind an acquire of unknown outcome')
                del self._to_free[owner]

        for owner, (since, place) in list(self._unheard.items()):
            life = place.life
            if life.state is State.DEAD or life.closing:
                del self._unheard[owner]
            elif life.running and self._journal.now > max(since, life.resumed_at) + self._asked_within_s(life):
                self._journal.broke("orphan", f'"{place.args[0]}" is granted to {self.label(owner)}, and nobody asks')
                del self._unheard[owner]

    def _asked_within_s(self, life: Life) -> float:
        """How long it may take until a waiter asks again, or leaves: a pause, and a call that is not answered."""
        plan = self._plan
        pause_s = min(1.0, plan.ttl_s / 3)
        return (pause_s + plan.store_timeout_s) / life.clock.rate + life.late_looks_s + _FREED_WITHIN_S

    def kept(self) -> Sequence[Grant]:
        """Name every grant that somebody still believes in."""
        return [grant for key in list(self._of_key) for grant in self.believers(key)]


def _kind_of(key: str) -> str:
    return "job" if key.startswith("job") else "leadership" if key == "election" else "lock"
