"""The calls of a lock store, drawn one after the other, and each compared with the reference model."""

from collections.abc import Awaitable, Sequence
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tenure._durations import MAX_MS
from tenure.store import Acquired, Claim, Held, ListsLocks, QueuesWaiters, RenewsMany
from tenure.testing.errors import FaultError
from tenure.testing.faults import FaultyStore
from tenure.testing.state_machines.lock_model import Lock, LockAsk, lock_branches
from tenure.testing.state_machines.machine import (
    HAIR_MS,
    HOLDER,
    LONGEST_SIMULATED_MS,
    MOMENTS,
    MOST_UNDER_WAY,
    SHORT_MS,
    StoreMachine,
    one_of_its,
)
from tenure.testing.state_machines.names import KEYS, OWNERS, WRONG_KEYS, WRONG_OWNERS, WRONG_SPANS
from tenure.testing.state_machines.possible import UNSEEN, Call, Possible
from tenure.testing.state_machines.spans import Span

__all__ = ["LockStoreMachine"]

CallName = Literal["acquire", "acquire_queued", "renew", "release"]

_CALLS: tuple[CallName, ...] = ("acquire", "renew", "release")

_SIMULATED_MS = (1, 3, 150, 150, 1000, 1000, 30_000, 2**31 + 5, 2**32 + 7, MAX_MS)
_REAL_MS = (1, 150, 250, 400, 2**32 + 7)
"""Short ones that an example outlives, and one that 32 bits do not hold."""

_KEY, _OWNER, _TTL = one_of_its("keys"), one_of_its("callers"), one_of_its("spans_ms")
_ONE_CALL = st.tuples(st.sampled_from(_CALLS), _OWNER, _TTL)
_TURNS = st.lists(st.integers(0, 3), min_size=4, max_size=4)


class LockStoreMachine(StoreMachine):
    """Drives a lock store, and the model of each of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.spans_ms = _SIMULATED_MS if self.simulated else _REAL_MS
        self.keys: tuple[str, ...] = ()
        self.owners: tuple[str, ...] = ()
        self.callers: tuple[str, ...] = ()
        self.locks: dict[str, Possible[Lock, LockAsk]] = {}
        self._told: dict[str, set[bool]] = {"how the lock before ended": set(), "what is left": set()}
        self._asked: set[tuple[str, str]] = set()

    @initialize(keys=st.sampled_from(list(KEYS)), owners=st.sampled_from(list(OWNERS)))
    def begin(self, keys: str, owners: str) -> None:
        """Choose the names that the example plays on."""
        self.keys, self.owners = KEYS[keys], OWNERS[owners]
        self.callers = (*self.owners, HOLDER, HOLDER)
        self.locks = {key: Possible(repr(key), Lock(), lock_branches, late_ms=self.late_ms) for key in self.keys}

    # ------------------------------------------------------------------------------ one at a time

    @rule(key=_KEY, owner=_OWNER, ttl_ms=_TTL)
    def acquire(self, key: str, owner: str, ttl_ms: int) -> None:
        """Acquire a key."""
        self._call("acquire", key, owner, ttl_ms)

    @rule(key=_KEY, owner=_OWNER)
    def expire(self, key: str, owner: str) -> None:
        """Acquire a key, and let its lock end."""
        self._call("acquire", key, owner, SHORT_MS)
        self.pass_beyond(SHORT_MS)

    @rule(key=_KEY, owner=_OWNER, ttl_ms=_TTL)
    def renew(self, key: str, owner: str, ttl_ms: int) -> None:
        """Renew a lock."""
        self._call("renew", key, owner, ttl_ms)

    @rule(key=_KEY, owner=_OWNER)
    def release(self, key: str, owner: str) -> None:
        """Release a lock."""
        self._call("release", key, owner, 0)

    @precondition(lambda machine: isinstance(machine.store, QueuesWaiters))
    @rule(key=_KEY, owner=_OWNER, ttl_ms=_TTL, place_ms=_TTL)
    def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> None:
        """Acquire a key, or a place in its queue."""
        self._call("acquire_queued", key, owner, ttl_ms, place_ms)

    @precondition(lambda machine: isinstance(machine.store, QueuesWaiters))
    @rule(
        key=_KEY,
        owners=st.lists(one_of_its("owners"), min_size=1, max_size=4),
        ttl_ms=_TTL,
        ends=st.sampled_from(["nothing", "a wait", "the lock", "the places"]),
    )
    def hand_on(self, key: str, owners: list[str], ttl_ms: int, ends: str) -> None:
        """Have several stand in the queue of a key, and its holder release it, perhaps after something has ended."""
        if ends == "the lock":
            self._call("renew", key, HOLDER, SHORT_MS)
        for owner in owners:
            self._call("acquire_queued", key, owner, ttl_ms, SHORT_MS if ends == "the places" else MAX_MS)
        if ends == "a wait":
            self._call("release", key, owners[0], 0)
        elif ends != "nothing":
            self.pass_beyond(SHORT_MS)
        self._call("release", key, HOLDER, 0)
        self._call("renew", key, owners[0], ttl_ms)

    @precondition(lambda machine: isinstance(machine.store, RenewsMany))
    @rule(claims=st.lists(st.tuples(_KEY, _OWNER, _TTL), max_size=4, unique_by=lambda claim: claim[:2]))
    def renew_many(self, claims: list[tuple[str, str, int]]) -> None:
        """Renew many locks, as many single renewals would."""
        many = {(key, self._who(key, owner)): ttl_ms for key, owner, ttl_ms in claims}
        for key, calls in self._renewed([many], ()).items():
            for call in calls:
                self.locks[key].answered(call)

    @precondition(lambda machine: isinstance(machine.store, ListsLocks))
    @rule(key=_KEY, part=st.sampled_from(["all of it", "all but its last character", "all but its first character"]))
    def list_locks(self, key: str, part: str) -> None:
        """List the locks whose key begins as one does; what stands inside of a key begins none."""
        whole = self.names.key(key)
        self._list(whole[part.endswith("first character") : len(whole) - part.endswith("last character")])

    @precondition(lambda machine: isinstance(machine.store, ListsLocks))
    @rule()
    def list_every_lock(self) -> None:
        """List every lock. Those of other runs on the same server are none of this one's."""
        self._list("")

    # -------------------------------------------------------------------------------- many at once

    @rule(key=_KEY, owners=st.lists(one_of_its("owners"), min_size=2, max_size=4, unique=True), ttl_ms=_TTL)
    def together_acquire(self, key: str, owners: list[str], ttl_ms: int) -> None:
        """Have several acquire one key at once: of a free one, exactly one wins."""
        self._race(key, [("acquire", owner, ttl_ms) for owner in owners], ())

    @rule(key=_KEY, calls=st.lists(_ONE_CALL, min_size=2, max_size=4), turns=_TURNS)
    def together_call(self, key: str, calls: list[tuple[CallName, str, int]], turns: list[int]) -> None:
        """Have several do different things to one key at once: they answer as in some order."""
        self._race(key, calls, turns[: len(calls)])

    @precondition(lambda machine: isinstance(machine.store, RenewsMany) and len(machine.keys) > 1)
    @rule(owner=_OWNER, ttl_ms=_TTL, turns=_TURNS)
    def together_renew_many(self, owner: str, ttl_ms: int, turns: list[int]) -> None:
        """Renew all keys in one call, and all of them in the opposite order in another: neither waits for the other."""
        there = {(key, self._who(key, owner)): ttl_ms for key in self.keys}
        for key, calls in self._renewed([there, dict(reversed(there.items()))], turns[:2]).items():
            if calls:
                self.locks[key].answered_at_once(calls)

    # --------------------------------------------------------------------------- outcomes unknown

    @rule(
        call=st.sampled_from(_CALLS),
        key=_KEY,
        owner=_OWNER,
        ttl_ms=_TTL,
        turns=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    )
    def withdraw(self, call: CallName, key: str, owner: str, ttl_ms: int, turns: list[int]) -> None:
        """Cancel a call on its way, and again: none costs the store a connection."""
        ask = self._ask(call, self._who(key, owner), ttl_ms)
        for after in turns if self.simulated else turns[:1]:
            if self.locks[key].under_way >= MOST_UNDER_WAY:
                return
            reply, moment, left = self.ask_and_leave(self._sent(ask, key), after)
            if left:
                self.locks[key].given_up(ask, moment)
            else:
                self.locks[key].answered(Call(ask, moment, reply))

    @precondition(lambda machine: machine.simulated)
    @rule(call=st.sampled_from(_CALLS), key=_KEY, owner=_OWNER, ttl_ms=_TTL, lost=st.sampled_from(["request", "reply"]))
    def send_and_lose(self, call: CallName, key: str, owner: str, ttl_ms: int, lost: str) -> None:
        """Lose the request of a call, or its reply."""
        ask = self._ask(call, self._who(key, owner), ttl_ms)
        faulty = FaultyStore(self.store)
        getattr(faulty.on(call), f"lose_{lost}")(times=1)

        async def lose() -> None:
            try:
                await self._sent(ask, key, faulty)
            except FaultError:
                return

        _, moment = self.ask(ask, lose())
        if lost == "reply":
            self.locks[key].answered(Call(ask, moment, UNSEEN))

    @rule(
        call=st.sampled_from([*_CALLS, "renew_many"]),
        key=_KEY,
        owner=_OWNER,
        wrong=st.sampled_from([*WRONG_KEYS, *WRONG_OWNERS, *WRONG_SPANS]),
    )
    def refuse(self, call: str, key: str, owner: str, wrong: str) -> None:
        """Ask what no store may be asked: it is refused, and nothing has changed."""
        key_sent = WRONG_KEYS.get(wrong, self.names.key(key))
        owner_sent = WRONG_OWNERS.get(wrong, self.names.owner(self._who(key, owner)))
        span = WRONG_SPANS.get(wrong, 1000)
        secret = owner_sent.rstrip("\0\udfff") if wrong in WRONG_OWNERS and isinstance(owner_sent, str) else ""
        if call == "release" and wrong in WRONG_SPANS:
            return
        if call != "renew_many":
            sent = getattr(self.store, call)(key_sent, owner_sent, *(() if call == "release" else (span,)))
        elif isinstance(self.store, RenewsMany):
            sent = self.store.renew_many([Claim(key_sent, owner_sent, span)])
        else:
            return
        self.refuses(f"{call}() with {wrong}", sent, secret)

    # -------------------------------------------------------------------------------------- time

    @rule(until=st.sampled_from(MOMENTS))
    def pass_time(self, until: str) -> None:
        """Let time pass, to about where something ends."""
        self.pass_until(until)

    @precondition(lambda machine: machine.simulated)
    @rule(key=_KEY, owner=_OWNER, ttl_ms=_TTL)
    def return_when_told(self, key: str, owner: str, ttl_ms: int) -> None:
        """Ask for a key, and again when what was left of its lock has passed: then it is free."""
        reply = self._call("acquire", key, owner, ttl_ms)
        # Between whole milliseconds: on one, the moment of the end itself is either.
        if (
            self.fractions
            and isinstance(reply, Held)
            and reply.expires_in_ms is not None
            and reply.expires_in_ms <= LONGEST_SIMULATED_MS
        ):
            self.pass_ms(reply.expires_in_ms + HAIR_MS)
            again = self._call("acquire", key, owner, ttl_ms)
            if isinstance(again, Held):
                raise AssertionError(f"The key {key!r} was held {reply.expires_in_ms} ms after these were left of it.")

    @precondition(lambda machine: machine.simulated)
    @rule()
    def pass_a_fraction(self) -> None:
        """Let a fraction of a millisecond pass: what is left is told in whole ones."""
        self.pass_ms(0.4)

    # ------------------------------------------------------------------------------------ its own

    def ends(self) -> list[Span]:
        """Return when locks end, and places."""
        states = [state for lock in self.locks.values() for state in lock.states if state.owner is not None]
        return [state.ends for state in states] + [place.ends for state in states for place in state.queue]

    def taken(self) -> list[Awaitable[object]]:
        """Return the releases of what may be taken, on a server that others use."""
        if self.simulated:
            return []
        return [self.store.release(key, owner) for key, owner in sorted(self._asked)]

    def _who(self, key: str, owner: str) -> str:
        """Return the label of *owner*, who may be the key's holder."""
        if owner != HOLDER:
            return owner
        holders = {state.owner for state in self.locks[key].states}
        return next((label for label in self.owners if self.names.owner(label) in holders), self.owners[0])

    def _ask(self, call: CallName, owner: str, ttl_ms: int, place_ms: int = 0) -> LockAsk:
        return LockAsk(call, self.names.owner(owner), ttl_ms, repr(owner), place_ms)

    def _sent(self, ask: LockAsk, key: str, store: Any = None) -> Any:
        """Return the call itself."""
        to, whole = store or self.store, self.names.key(key)
        match ask.call:
            case "acquire":
                self._asked.add((whole, ask.owner))
                return to.acquire(whole, ask.owner, ask.ttl_ms)
            case "acquire_queued":
                self._asked.add((whole, ask.owner))
                return to.acquire_queued(whole, ask.owner, ask.ttl_ms, ask.place_ms)
            case "renew":
                return to.renew(whole, ask.owner, ask.ttl_ms)
            case _:
                return to.release(whole, ask.owner)

    def _call(self, call: CallName, key: str, owner: str, ttl_ms: int, place_ms: int = 0) -> object:
        ask, before = self._ask(call, self._who(key, owner), ttl_ms, place_ms), self.locks[key].states
        reply, moment = self.ask(ask, self._sent(ask, key))
        self.locks[key].answered(Call(ask, moment, reply))
        self._note(ask, before, reply)
        return reply

    def _race(self, key: str, calls: list[tuple[CallName, str, int]], turns: Sequence[int]) -> None:
        asks = [self._ask(call, self._who(key, owner), ttl_ms) for call, owner, ttl_ms in calls]
        replies = self.ask_at_once([(ask, self._sent(ask, key)) for ask in asks], turns)
        made = [Call(ask, moment, reply) for ask, (reply, moment) in zip(asks, replies, strict=True)]
        self.locks[key].answered_at_once(made)

    def _renewed(self, many: list[dict[tuple[str, str], int]], turns: Sequence[int]) -> dict[str, list[Call[LockAsk]]]:
        """Renew many locks, in calls at once; return the calls on each key, with its part of the answers."""
        sent = [
            [Claim(self.names.key(key), self.names.owner(owner), ttl_ms) for (key, owner), ttl_ms in claims.items()]
            for claims in many
        ]
        replies = self.ask_at_once(
            [(f"renew_many() of {len(claims)}", self.store.renew_many(claims)) for claims in sent], turns
        )
        made: dict[str, list[Call[LockAsk]]] = {key: [] for key in self.keys}
        for claims, (reply, moment) in zip(many, replies, strict=True):
            answers = list(reply)
            if len(answers) != len(claims):
                raise AssertionError(f"renew_many() of {len(claims)} gave {len(answers)} answers.")
            for ((key, owner), ttl_ms), answer in zip(claims.items(), answers, strict=True):
                # "Could not tell" needs somebody else at the row: another call, or one that was given up.
                if answer is not None or (self.simulated and len(many) == 1):
                    made[key].append(Call(self._ask("renew", owner, ttl_ms), moment, answer))
        return made

    def _list(self, prefix: str) -> None:
        reply, moment = self.ask("list_locks()", self.store.list_locks(prefix))
        records = [record for record in reply if record.key.startswith(self.names.run) or prefix]
        shown = [record.key for record in records]
        if shown != sorted(set(shown)):
            raise AssertionError(f"list_locks() gave the keys {shown!r}; they must be sorted, each once.")
        labels = {self.names.key(label): label for label in self.keys}
        strangers = [key for key in shown if key not in labels or not key.startswith(prefix)]
        if strangers:
            raise AssertionError(
                f"list_locks({prefix!r}) gave {strangers!r}, which nobody locked or which begin so not."
            )
        found = {record.key: record for record in records}
        for whole, label in labels.items():
            if whole.startswith(prefix):
                self.locks[label].answered(Call(LockAsk("look"), moment, found.get(whole)))

    def _note(self, ask: LockAsk, before: list[Lock], reply: object) -> None:
        """Require that the store always tells what it tells, or never."""
        if isinstance(reply, Held):
            self._tells("what is left", told=reply.expires_in_ms is not None)
        if isinstance(reply, Acquired) and reply.after is not None:
            self._tells("how the lock before ended", told=True)
        elif isinstance(reply, Acquired) and all(_had_another(lock, ask) for lock in before):
            self._tells("how the lock before ended", told=False)

    def _tells(self, what: str, *, told: bool) -> None:
        self._told[what].add(told)
        if len(self._told[what]) > 1:
            raise AssertionError(f"The store tells {what} now and then; it must always, or never.")


def _had_another(lock: Lock, ask: LockAsk) -> bool:
    """Whether a grant to *ask* comes after a lock that is known to have ended."""
    return lock.owner != ask.owner and (lock.owner is not None or lock.ended is not None)
