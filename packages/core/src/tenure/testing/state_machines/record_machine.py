"""The calls of an idempotency store, drawn one after the other, and each compared with the reference model."""

from collections.abc import Awaitable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tenure._durations import MAX_MS
from tenure._idempotency_machine import IdempotencyCall
from tenure.testing.errors import FaultError
from tenure.testing.record_faults import FaultyIdempotencyStore
from tenure.testing.state_machines.machine import HOLDER, MOMENTS, MOST_UNDER_WAY, SHORT_MS, StoreMachine, one_of_its
from tenure.testing.state_machines.names import KEYS, OWNERS, PAYLOADS, WRONG_KEYS, WRONG_OWNERS, WRONG_SPANS
from tenure.testing.state_machines.possible import UNSEEN, Call, Possible
from tenure.testing.state_machines.record_model import Record, RecordAsk, record_branches
from tenure.testing.state_machines.spans import Span

__all__ = ["IdempotencyStoreMachine"]

_ACQUIRE, _EXTEND, _COMPLETE, _RELEASE = IdempotencyCall

_SIMULATED_LOCKS_MS = (1, 3, 150, 150, 150, 1000, 1000, 1000, 30_000, 2**31 + 5, 2**32 + 7, MAX_MS)
_SIMULATED_KEPT_MS = (1, 150, 1000, 1000, 30_000, 30_000, 30_000, 600_000, 2**32 + 7, MAX_MS)
"""What is abandoned is to be looked at more often than not before it is forgotten."""
_REAL_LOCKS_MS = (1, 150, 250, 400)
_REAL_KEPT_MS = (1, 150, 300)
"""Short ones that an example outlives: nothing but time removes an outcome from a server that others use."""

_RESPONSES: dict[str, bytes] = {
    "nothing": b"",
    "text": b"done",
    "NUL": b"a\0b\xff",
    "spaces": b" done \n",
    "JSON": b'{"b": 1,  "a": 2}',
    "100 kB": b"\x00\xfe" * 50_000,
}

_WRONG_PAYLOADS: dict[str, Any] = {
    "an empty payload": "",
    "a payload of 201 characters": "x" * 201,
    "a payload with NUL": "secret-payload\0",
    "a payload of bytes": b"secret-payload",
    "no payload": None,
}
_WRONG_RESPONSES: dict[str, Any] = {
    "a response of text": "done",
    "no response": None,
    "a bytearray": bytearray(b"done"),
}

_KEY, _OWNER, _PAYLOAD = one_of_its("keys"), one_of_its("callers"), one_of_its("payloads")
_LOCK, _KEPT = one_of_its("spans_ms"), one_of_its("kept_ms")

_ACQUIRES = st.builds(
    lambda owner, payload, lock_ms, grace_ms, takeover: (_ACQUIRE, owner, lock_ms, grace_ms, payload, takeover),
    _OWNER,
    _PAYLOAD,
    _LOCK,
    _KEPT,
    st.booleans(),
)
_OTHERS = st.one_of(
    st.tuples(st.just(_EXTEND), _OWNER, _LOCK),
    st.tuples(st.just(_COMPLETE), _OWNER, _KEPT),
    st.tuples(st.just(_RELEASE), _OWNER),
)
_ANY = st.one_of(_ACQUIRES, _OTHERS)
_TURNS = st.lists(st.integers(0, 3), min_size=4, max_size=4)


class IdempotencyStoreMachine(StoreMachine):
    """Drives an idempotency store, and the model of each of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.spans_ms = _SIMULATED_LOCKS_MS if self.simulated else _REAL_LOCKS_MS
        self.kept_ms = _SIMULATED_KEPT_MS if self.simulated else _REAL_KEPT_MS
        self.keys: tuple[str, ...] = ()
        self.owners: tuple[str, ...] = ()
        self.callers: tuple[str, ...] = ()
        self.payloads: tuple[str, ...] = ()
        self.records: dict[str, Possible[Record | None, RecordAsk]] = {}
        self._asked: set[tuple[str, str]] = set()

    @initialize(
        keys=st.sampled_from(list(KEYS)), owners=st.sampled_from(list(OWNERS)), payloads=st.sampled_from(list(PAYLOADS))
    )
    def begin(self, keys: str, owners: str, payloads: str) -> None:
        """Choose the names that the example plays on."""
        self.keys, self.owners, payload = KEYS[keys], OWNERS[owners], PAYLOADS[payloads]
        # Another payload is told off before anything else is looked at: the exception.
        self.payloads = (*payload[:1] * 4, *payload[1:])
        self.callers = (*self.owners, HOLDER, HOLDER)
        self.records = {key: Possible(repr(key), None, record_branches, late_ms=self.late_ms) for key in self.keys}

    # ------------------------------------------------------------------------------ one at a time

    @rule(key=_KEY, owner=_OWNER, payload=_PAYLOAD, lock_ms=_LOCK, grace_ms=_KEPT, takeover=st.booleans())
    def acquire(self, key: str, owner: str, payload: str, lock_ms: int, grace_ms: int, takeover: bool) -> None:  # noqa: PLR0913, PLR0917 -- the contract's
        """Begin an execution, or hear what the record allows instead."""
        self._call(key, self._ask(key, _ACQUIRE, owner, lock_ms, grace_ms, payload, takeover))

    @rule(key=_KEY, owner=_OWNER, grace_ms=_KEPT, takeover=st.booleans())
    def abandon(self, key: str, owner: str, grace_ms: int, takeover: bool) -> None:
        """Begin an execution, and let its lock end."""
        self._call(key, self._ask(key, _ACQUIRE, owner, SHORT_MS, grace_ms, self.payloads[0], takeover))
        self.pass_beyond(SHORT_MS)

    @rule(key=_KEY, owner=_OWNER, payload=_PAYLOAD)
    def look(self, key: str, owner: str, payload: str) -> None:
        """Ask what became of a request, and take nothing over."""
        self._call(key, self._ask(key, _ACQUIRE, owner, self.spans_ms[1], self.kept_ms[1], payload, takeover=False))

    @rule(key=_KEY, owner=_OWNER, lock_ms=_LOCK)
    def extend(self, key: str, owner: str, lock_ms: int) -> None:
        """Extend an execution's lock."""
        self._call(key, self._ask(key, _EXTEND, owner, lock_ms))

    @rule(key=_KEY, owner=_OWNER, response=st.sampled_from(list(_RESPONSES)), retention_ms=_KEPT)
    def complete(self, key: str, owner: str, response: str, retention_ms: int) -> None:
        """Store an outcome."""
        self._call(key, self._ask(key, _COMPLETE, owner, retention_ms, response=_RESPONSES[response]))

    @rule(key=_KEY, owner=_OWNER)
    def release(self, key: str, owner: str) -> None:
        """Say that an execution had no effect."""
        self._call(key, self._ask(key, _RELEASE, owner))

    @rule(limit=st.sampled_from([1, 1, 1000, 1000, 0, -1, True, 1.0, None, 1_000_001]))
    def purge(self, limit: Any) -> None:
        """Delete what has ended: nothing that a later call could tell by. A limit that is no number is refused."""
        if type(limit) is not int or not 1 <= limit <= 1000:
            self.refuses(f"purge({limit!r})", self.store.purge(limit), "")
            return
        reply, _ = self.ask(f"purge({limit})", self.store.purge(limit))
        if type(reply) is not int or not 0 <= reply <= limit:
            raise AssertionError(f"purge({limit}) gave {reply!r}; it must be a count from 0 to {limit}.")

    # -------------------------------------------------------------------------------- many at once

    @rule(
        key=_KEY,
        owners=st.lists(one_of_its("owners"), min_size=2, max_size=4, unique=True),
        payload=_PAYLOAD,
        lock_ms=_LOCK,
    )
    def together_acquire(self, key: str, owners: list[str], payload: str, lock_ms: int) -> None:
        """Have several begin under one key at once: exactly one does."""
        self._race(key, [self._ask(key, _ACQUIRE, owner, lock_ms, self.kept_ms[2], payload) for owner in owners], ())

    @rule(key=_KEY, calls=st.lists(_ANY, min_size=2, max_size=4), turns=_TURNS)
    def together_call(self, key: str, calls: list[Any], turns: list[int]) -> None:
        """Have several do different things to one record at once: they answer as in some order."""
        self._race(key, [self._ask(key, *call) for call in calls], turns[: len(calls)])

    # --------------------------------------------------------------------------- outcomes unknown

    @rule(key=_KEY, call=_ANY, turns=st.lists(st.integers(1, 4), min_size=1, max_size=8))
    def withdraw(self, key: str, call: Any, turns: list[int]) -> None:
        """Cancel a call on its way, and again: none costs the store a connection."""
        ask = self._ask(key, *call)
        for after in turns if self.simulated else turns[:1]:
            if self.records[key].under_way >= MOST_UNDER_WAY:
                return
            reply, moment, left = self.ask_and_leave(self._sent(ask, key), after)
            if left:
                self.records[key].given_up(ask, moment)
            else:
                self.records[key].answered(Call(ask, moment, reply))

    @precondition(lambda machine: machine.simulated)
    @rule(key=_KEY, call=_ANY, lost=st.sampled_from(["request", "reply"]))
    def send_and_lose(self, key: str, call: Any, lost: str) -> None:
        """Lose the request of a call, or its reply."""
        ask = self._ask(key, *call)
        faulty = FaultyIdempotencyStore(self.store)
        getattr(faulty.on(ask.call.value), f"lose_{lost}")(times=1)

        async def lose() -> None:
            try:
                await self._sent(ask, key, faulty)
            except FaultError:
                return

        _, moment = self.ask(ask, lose())
        if lost == "reply":
            self.records[key].answered(Call(ask, moment, UNSEEN))

    @rule(
        call=st.sampled_from(list(IdempotencyCall)),
        key=_KEY,
        owner=_OWNER,
        wrong=st.sampled_from([*WRONG_KEYS, *WRONG_OWNERS, *WRONG_SPANS, *_WRONG_PAYLOADS, *_WRONG_RESPONSES]),
    )
    def refuse(self, call: IdempotencyCall, key: str, owner: str, wrong: str) -> None:
        """Ask what no store may be asked: it is refused, and nothing has changed."""
        names = (
            WRONG_KEYS.get(wrong, self.names.key(key)),
            WRONG_OWNERS.get(wrong, self.names.owner(self._who(key, owner))),
        )
        span = WRONG_SPANS.get(wrong, 1000)
        payload, response = _WRONG_PAYLOADS.get(wrong, "v1:x"), _WRONG_RESPONSES.get(wrong, b"refused")
        meant = {
            _ACQUIRE: (payload, span, 1000),
            _EXTEND: (span,),
            _COMPLETE: (response, span),
            _RELEASE: (),
        }[call]
        if wrong not in WRONG_KEYS and wrong not in WRONG_OWNERS and meant in _SOUND:
            return
        secret = "secret" if wrong in WRONG_OWNERS or wrong in _WRONG_PAYLOADS else ""
        self.refuses(f"{call.value}() with {wrong}", getattr(self.store, call.value)(*names, *meant), secret)

    # -------------------------------------------------------------------------------------- time

    @rule(until=st.sampled_from(MOMENTS))
    def pass_time(self, until: str) -> None:
        """Let time pass, to about where something ends."""
        self.pass_until(until)

    # ------------------------------------------------------------------------------------ its own

    def ends(self) -> list[Span]:
        """Return when locks and records end."""
        states = [state for record in self.records.values() for state in record.states if state is not None]
        locks = [state.lock_ends for state in states if state.response is None and state.owner]
        return locks + [state.expires for state in states]

    def taken(self) -> list[Awaitable[object]]:
        """Return the releases of what may be begun, on a server that others use."""
        if self.simulated:
            return []
        return [self.store.release(key, owner) for key, owner in sorted(self._asked)]

    def _who(self, key: str, owner: str) -> str:
        """Return the label of *owner*, who may be the one that the key's record names."""
        if owner != HOLDER:
            return owner
        holders = {state.owner for state in self.records[key].states if state is not None}
        return next((label for label in self.owners if self.names.owner(label) in holders), self.owners[0])

    def _ask(  # noqa: PLR0913, PLR0917 -- what a call may take, in the order of the strategies
        self,
        key: str,
        call: IdempotencyCall,
        owner: str,
        span_ms: int = 0,
        grace_ms: int = 0,
        payload: str = "",
        takeover: bool = True,  # noqa: FBT002 -- drawn with the others
        response: bytes = b"drawn",
    ) -> RecordAsk:
        owner = self._who(key, owner)
        stored = response if call is _COMPLETE else b""
        fingerprint = self.names.payload(payload) if call is _ACQUIRE else ""
        return RecordAsk(
            call, self.names.owner(owner), span_ms, grace_ms, fingerprint, takeover, stored, label=repr(owner)
        )

    def _sent(self, ask: RecordAsk, key: str, store: Any = None) -> Any:
        """Return the call itself."""
        to, whole = store or self.store, self.names.key(key)
        match ask.call:
            case IdempotencyCall.ACQUIRE:
                self._asked.add((whole, ask.owner))
                return to.acquire(whole, ask.owner, ask.payload, ask.span_ms, ask.grace_ms, takeover=ask.takeover)
            case IdempotencyCall.EXTEND:
                return to.extend(whole, ask.owner, ask.span_ms)
            case IdempotencyCall.COMPLETE:
                return to.complete(whole, ask.owner, ask.response, ask.span_ms)
            case IdempotencyCall.RELEASE:
                return to.release(whole, ask.owner)

    def _call(self, key: str, ask: RecordAsk) -> None:
        reply, moment = self.ask(ask, self._sent(ask, key))
        self.records[key].answered(Call(ask, moment, reply))

    def _race(self, key: str, asks: list[RecordAsk], turns: Sequence[int]) -> None:
        replies = self.ask_at_once([(ask, self._sent(ask, key)) for ask in asks], turns)
        made = [Call(ask, moment, reply) for ask, (reply, moment) in zip(asks, replies, strict=True)]
        self.records[key].answered_at_once(made)


_SOUND: tuple[tuple[object, ...], ...] = (("v1:x", 1000, 1000), (1000,), (b"refused", 1000), ())
"""The arguments of a call that what is wrong does not touch."""
