"""The instances' ends of the network: the stores as the engine sees them."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, final

from simulation.journal import Journal
from simulation.life import Life
from simulation.network import Call, Network
from simulation.observers.leases import LeaseWatch
from tenure.idempotency_store import AcquireReply, Completion
from tenure.store import Acquired, Claim, Held, LockRecord, Reach

__all__ = ["LockEnd", "QueueEnd", "RecordEnd"]

_PROBE: Final = "tenure:start:"

_OF_HISTORY: Final = {"acquire": "acquire", "acquire_queued": "acquire", "renew": "renew", "release": "release"}
"""What the history calls each call."""


class _End:
    """One instance's end. It writes down what is asked, and what is heard."""

    reach: Reach = "cluster"

    def __init__(self, network: Network, journal: Journal, watch: LeaseWatch, life: Life) -> None:
        self._network = network
        self._journal = journal
        self._watch = watch
        self._life = life

    def _send(self, op: str, *args: Any) -> Call:
        call = self._network.call(self._life, op, args)
        self._journal.say(self._life.name, f"#{call.number} {op} {self._named(op, args)}")
        self._note_invoke(call)
        return call

    async def _hear(self, call: Call) -> Any:
        try:
            reply = await call.future
        except BaseException as error:
            unheard = isinstance(error, asyncio.CancelledError)
            self._journal.say(self._life.name, f"#{call.number} -> {'given up' if unheard else type(error).__name__}")
            self._note_return(call, None)
            raise
        self._journal.say(self._life.name, f"#{call.number} -> {_words_of(reply)}")
        self._note_return(call, reply)
        return reply

    def _named(self, op: str, args: tuple[Any, ...]) -> str:
        if op == "renew_many":
            return ", ".join(f"{claim.key} by {self._watch.label(claim.owner)}" for claim in args)
        if args and str(args[0]).startswith(_PROBE):
            # Its key and its owner are drawn from the system's randomness.
            return "the start's probe"
        return str(args[0]) if len(args) < 2 else f"{args[0]} by {self._watch.label(args[1])}"

    def _note_invoke(self, call: Call) -> None:
        """Write the sending into the history, which knows of locks alone, and of each by itself."""
        if call.op == "renew_many":
            asked = [("renew", claim.key, claim.owner, claim.ttl_ms) for claim in call.args]
        elif call.op in _OF_HISTORY and not call.args[0].startswith(_PROBE):
            key, owner, *spans = call.args
            asked = [(_OF_HISTORY[call.op], key, owner, *spans)]
        else:
            return
        for place, (op, key, owner, *spans) in enumerate(asked):
            number, hashed = _number_in_history(call, place), self._watch.hashed(owner)
            lengths = dict(zip(("ttl_ms", "place_ms"), spans, strict=False))
            self._journal.note("invoke", self._life.name, call=number, op=op, key=key, owner=hashed, **lengths)

    def _note_return(self, call: Call, reply: Any) -> None:
        """Write the end of the wait into the history; a wait that heard nothing knows nothing."""
        if call.op == "renew_many":
            answers = [None] * len(call.args) if reply is None else reply
        elif call.op in _OF_HISTORY and not call.args[0].startswith(_PROBE):
            answers = [reply]
        else:
            return
        if call.op == "acquire_queued" and isinstance(reply, Held):
            return  # open: it may be granted the lock from now on
        for place, answer in enumerate(answers):
            fields: dict[str, Any] = {"call": _number_in_history(call, place), "result": "unknown"}
            if isinstance(answer, Acquired):
                fields |= {"result": "ok", "token": answer.token, "after": answer.after}
            elif answer is not None:
                fields["result"] = "ok" if answer is True else "no"
            self._journal.note("return", self._life.name, **fields)


def _number_in_history(call: Call, place: int) -> int:
    # A call that renews many locks is one call of each there.
    return call.number * 100 + place


class LockEnd(_End):
    """A `LockStore` at the other end of a network, with every capability but the start-up check."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Send an acquire."""
        call = self._send("acquire", key, owner, ttl_ms)
        try:
            reply: Acquired | Held = await self._hear(call)
        except BaseException:
            self._watch.acquire_unknown(call)
            raise
        self._watch.acquire_answered(call, reply)
        return reply

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Send a renewal."""
        call = self._send("renew", key, owner, ttl_ms)
        renewed: bool = await self._hear(call)
        self._watch.renewal_answered(call, owner, ttl_ms, renewed)
        return renewed

    async def release(self, key: str, owner: str) -> bool:
        """Send a release."""
        released: bool = await self._hear(self._send("release", key, owner))
        return released

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool]:
        """Send several renewals in one call."""
        call = self._send("renew_many", *claims)
        renewed: Sequence[bool] = await self._hear(call)
        for claim, answer in zip(claims, renewed, strict=True):
            self._watch.renewal_answered(call, claim.owner, claim.ttl_ms, answer)
        return renewed

    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """Ask who holds what."""
        records: Sequence[LockRecord] = await self._hear(self._send("list_locks", prefix))
        return records

    async def released(self, key: str) -> None:
        """Wait for a release."""
        await self._network.released(key)
        self._journal.saw("a waiter woken by a release")


@final
class QueueEnd(LockEnd):
    """The same, of a store that keeps a queue beside each lock."""

    def __init__(self, network: Network, journal: Journal, watch: LeaseWatch, life: Life) -> None:
        super().__init__(network, journal, watch, life)
        self._placed: dict[str, Call] = {}

    def _note_invoke(self, call: Call) -> None:
        if call.op in ("acquire", "acquire_queued", "release"):
            placed = self._placed.pop(call.args[1], None)
            if placed is not None:
                self._note_return(placed, None)
        super()._note_invoke(call)

    async def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        """Send an acquire that takes a place where it is refused."""
        call = self._send("acquire_queued", key, owner, ttl_ms, place_ms)
        try:
            reply: Acquired | Held = await self._hear(call)
        except BaseException:
            self._watch.acquire_unknown(call)
            raise
        if isinstance(reply, Held):
            self._placed[owner] = call
        self._watch.acquire_answered(call, reply)
        return reply

    async def granted(self, key: str, owner: str) -> Acquired:
        """Hear of a grant."""
        granted = await self._network.granted(self._life, key, owner)
        named = f"{key} by {self._watch.label(owner)}"
        self._journal.say(self._life.name, f"hears of {named}, token {granted.token}")
        if self._watch.heard(self._life, key, owner, granted) and owner in self._placed:
            self._note_return(self._placed.pop(owner), granted)
        return granted


@final
class RecordEnd(_End):
    """An `IdempotencyStore` at the other end of a network."""

    async def acquire(
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        """Send an acquire."""
        answer: AcquireReply = await self._hear(
            self._send("begin", key, owner, fingerprint, lock_ttl_ms, grace_ms, takeover)
        )
        return answer

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """Send an extension."""
        extended: bool = await self._hear(self._send("extend", key, owner, lock_ttl_ms))
        return extended

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """Send a completion."""
        completion: Completion = await self._hear(self._send("complete", key, owner, response, retention_ms))
        return completion

    async def release(self, key: str, owner: str) -> bool:
        """Send a release."""
        released: bool = await self._hear(self._send("forget", key, owner))
        return released

    async def purge(self, limit: int = 1000) -> int:
        """Refuse: nothing in a run purges."""
        raise NotImplementedError


def _words_of(reply: Any) -> str:
    match reply:
        case Acquired(token=token, after=after):
            return f"acquired, token {token}, after {after}"
        case Held(expires_in_ms=left):
            return f"held for {left} ms"
        case bool() | list():
            return str(reply)
        case Completion():
            return reply.value
        case _:
            return type(reply).__name__
