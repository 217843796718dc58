"""
What is asked in a history, drawn so that no answer hangs on a moment.

Calls come in ticks, a unit apart. Locks and graces last a third of a unit more than whole ones, retentions half of one
more. So a lock ends a third after a tick; a record a third (released), a half (completed) or two thirds (left alone)
after one; and every call, made early in its tick, is at least a third of a unit, less what the tick has taken, away
from every end.
"""

import random
import secrets
from typing import final

from tenure._idempotency_machine import IdempotencyCall
from tenure.testing.idempotency_histories.model import Ask, RecordModel, Reply

__all__ = ["PARTS", "History"]

PARTS = 6
"""A unit is a multiple of so many milliseconds: its thirds and its half are whole."""

_PAYLOADS = ("v1:" + "0a" * 32, "v1:" + "0A" * 32)
_CALLS = (
    *[IdempotencyCall.ACQUIRE] * 9,
    *[IdempotencyCall.EXTEND] * 4,
    *[IdempotencyCall.COMPLETE] * 2,
    *[IdempotencyCall.RELEASE] * 3,
)
_OWNERS = 3


@final
class History:
    """The calls on one key: drawn, answered by the model, and told."""

    def __init__(self, number: int, rng: random.Random, unit_ms: int) -> None:
        self.number = number
        # Not of the seed: a run that is repeated must not meet the records of the first.
        self.key = f"tenure-histories:{secrets.token_hex(8)}:{number}"
        self._owners = [f"histories:{secrets.token_hex(8)}:{letter}" for letter in "ABC"[:_OWNERS]]
        self._rng = rng
        self._unit_ms = unit_ms
        self._model = RecordModel()
        self.told: list[str] = []

    def ask(self, now_ms: int) -> tuple[Ask, Reply]:
        """Draw the next call, and say what it must be answered."""
        rng, unit_ms = self._rng, self._unit_ms
        call = rng.choice(_CALLS)
        recorded = self._model.owner
        owner = recorded if recorded and rng.random() < 0.4 else rng.choice(self._owners)
        completes = call is IdempotencyCall.COMPLETE
        spans = [1, 2, 4] if completes else [0, 0, 1, 2]
        ask = Ask(
            call=call,
            owner=owner,
            payload=_PAYLOADS[rng.random() < 0.2],
            takeover=rng.random() < 0.6,
            span_ms=rng.choice(spans) * unit_ms + unit_ms // (2 if completes else 3),
            grace_ms=rng.choice([0, 2, 5]) * unit_ms + unit_ms // 3,
            response=rng.randbytes(rng.choice([0, 1, 20])),
        )
        return ask, self._model.answer(ask, now_ms)

    def tell(self, ask: Ask, reply: Reply, now_ms: int) -> str:
        """Write a call down: the time, what was asked, and the answer that the model gave."""
        line = f"{now_ms:>8} ms  {self.shown(ask)} -> {reply!r}"
        self.told.append(line)
        return line

    def shown(self, ask: Ask) -> str:
        """Show a call. Owners by their letters: the rest of them is drawn."""
        who = ask.owner[-1:]
        match ask.call:
            case IdempotencyCall.ACQUIRE:
                payload = "xy"[_PAYLOADS.index(ask.payload)]
                return f"acquire({who}, {payload}, {ask.span_ms}, {ask.grace_ms}, takeover={ask.takeover})"
            case IdempotencyCall.EXTEND:
                return f"extend({who}, {ask.span_ms})"
            case IdempotencyCall.COMPLETE:
                return f"complete({who}, {len(ask.response)} bytes, {ask.span_ms})"
            case IdempotencyCall.RELEASE:
                return f"release({who})"
