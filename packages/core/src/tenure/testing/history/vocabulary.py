"""
The events of a history, in one table: what they are called, what they carry, and who writes them.

An event is a JSON object on a line of its own: `what` it is, `at` when, in seconds on a clock that every writer shares
(`CLOCK_MONOTONIC` on a host, virtual time in a simulation), and the `process` that it is about. The rest of its fields
stand in `EVENTS`. Writers and readers check every event against the table, so that a history that can be read can be
judged: a field that is missing, unknown or of another kind is an error, never a guess.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from tenure.errors import LossReason
from tenure.store import MAX_TOKEN

__all__ = ["EVENTS", "EventKind", "HistoryError", "check_event"]


class HistoryError(ValueError):
    """
    What was to be written to a history, or read from one, is no event of the table.

    The message names the file and line where there is one, the event, the field and what it must be. It shows no
    value: a history may come from anywhere.
    """

    __module__ = "tenure.testing.history"


@final
@dataclass(frozen=True, slots=True)
class _Field:
    """
    What a field must be.

    Attributes:
        says: What it must be, for the error.
        types: The types that are allowed, exactly: a bool is no int.
        allows: Decides about a value of one of these types; None where each will do.
    """

    says: str
    types: frozenset[type]
    allows: Callable[[Any], object] | None = None


def _one_of(*words: str) -> _Field:
    return _Field(f"one of {', '.join(words)}", frozenset({str}), frozenset(words).__contains__)


def _is_span(value: float) -> bool:
    return 0 <= value < math.inf


_NUMBERS: Final = frozenset({int, float})

_TEXT: Final = _Field("a text", frozenset({str}))
_NAME: Final = _Field("a text that is not empty", frozenset({str}), bool)
_WORD_OR_NONE: Final = _Field("a text or null", frozenset({str, type(None)}))
_FLAG: Final = _Field("true or false", frozenset({bool}))
_MOMENT: Final = _Field("a finite number of seconds", _NUMBERS, math.isfinite)
_SPAN: Final = _Field("a finite number of seconds, 0 or more", _NUMBERS, _is_span)
_SHARE: Final = _Field("a share from 0 to below 1", _NUMBERS, lambda value: 0 <= value < 1)
_SPAN_OR_NONE: Final = _Field(
    "a finite number of seconds, 0 or more, or null",
    _NUMBERS | {type(None)},
    lambda value: value is None or _is_span(value),
)
_COUNT: Final = _Field("a whole number, 1 or more", frozenset({int}), lambda value: value >= 1)
_TOKEN: Final = _Field("a token from 1 to 2**53 - 1", frozenset({int}), lambda value: 1 <= value <= MAX_TOKEN)
_TTL_OR_NONE: Final = _Field(
    "whole milliseconds, 1 or more; null for a release",
    frozenset({int, type(None)}),
    lambda value: value is None or value >= 1,
)
_OWNER: Final = _Field(
    "12 hexadecimal digits of the owner's SHA-256, never the owner",
    frozenset({str}),
    re.compile(r"[0-9a-f]{12}").fullmatch,
)
_TOKEN_OR_NONE: Final = _Field(
    "a token from 1 to 2**53 - 1, or null",
    frozenset({int, type(None)}),
    lambda value: value is None or 1 <= value <= MAX_TOKEN,
)
_AFTER: Final = _Field(
    "released, expired or null",
    frozenset({str, type(None)}),
    lambda value: value in ("released", "expired", None),
)
_STATUS: Final = _Field("a status from 100 to 599", frozenset({int}), lambda value: 100 <= value <= 599)


@final
@dataclass(frozen=True, slots=True)
class EventKind:
    """
    One kind of event.

    Attributes:
        what: Its name.
        says: What happened.
        writer: Who writes it.
        required: The fields that it must have beside `what`, `at` and `process`.
        optional: The fields that it may have.
    """

    what: str
    says: str
    writer: str
    required: Mapping[str, _Field] = field(default_factory=dict)
    optional: Mapping[str, _Field] = field(default_factory=dict)


_BY: Final = {"by": _NAME}

_KINDS: Final = (
    EventKind(
        "run",
        "What is promised from here on: by what, and how much of it a slow machine is allowed.",
        "who starts the run",
        {"topology": _TEXT, "ttl_s": _SPAN, "retry_s": _SPAN, "call_timeout_s": _SPAN},
        {
            "margin": _SHARE,
            "stall_s": _SPAN,
            "overlap_s": _SPAN,
            "takeover_s": _SPAN_OR_NONE,
            "late_expiry_s": _SPAN,
        },
    ),
    EventKind("phase", "A part of the run begins, and the one before it ends.", "who starts the run", {"name": _NAME}),
    EventKind(
        "invoke",
        "A store call is about to be sent.",
        "recorder",
        {"call": _COUNT, "op": _one_of("acquire", "renew", "release"), "key": _TEXT, "owner": _OWNER},
        {"ttl_ms": _TTL_OR_NONE, "place_ms": _TTL_OR_NONE},
    ),
    EventKind(
        "return",
        "A store call has ended: with an answer, or without one that counts (unknown).",
        "recorder",
        {"call": _COUNT, "result": _one_of("ok", "no", "unknown")},
        {"token": _TOKEN_OR_NONE, "after": _AFTER, "error": _WORD_OR_NONE},
    ),
    EventKind(
        "believes",
        "The process asked `lease.held`, and it was true.",
        "worker",
        {"key": _TEXT, "token": _TOKEN},
    ),
    EventKind(
        "lost",
        "The loss signal fired.",
        "recorder",
        {"key": _TEXT, "token": _TOKEN, "reason": _one_of(*(reason.value for reason in LossReason))},
    ),
    EventKind(
        "gave_back",
        "The holder began to give its lease back, or to leave it to its end; it holds nothing any more.",
        "recorder",
        {"key": _TEXT, "token": _TOKEN},
    ),
    EventKind(
        "write",
        "A write that carries a token was accepted, or refused. `sent_at` is when it was sent: without it, a holder "
        "that is paused before it notes the outcome seems to have written late.",
        "worker",
        {"resource": _NAME, "key": _TEXT, "token": _TOKEN, "accepted": _FLAG},
        {"sent_at": _MOMENT},
    ),
    EventKind(
        "enter", "A guarded section begins, under a lease that is held.", "worker", {"key": _TEXT, "token": _TOKEN}
    ),
    EventKind("exit", "A guarded section has ended.", "worker", {"key": _TEXT, "token": _TOKEN}),
    EventKind("paused", "The process does not run.", "nemesis", optional=_BY),
    EventKind("resumed", "The process runs again.", "nemesis", optional=_BY),
    EventKind("died", "The process has ended.", "nemesis", optional=_BY),
    EventKind("started", "The process was started, or started again.", "nemesis", optional=_BY),
    EventKind(
        "fault",
        "A fault begins.",
        "nemesis",
        {"fault": _NAME, "kind": _NAME},
        {"scope": _WORD_OR_NONE, **_BY},
    ),
    EventKind(
        "healed",
        "The fault of this name (and scope) has ended.",
        "nemesis",
        {"fault": _NAME},
        {"kind": _NAME, "scope": _WORD_OR_NONE, **_BY},
    ),
    EventKind(
        "effect",
        "An execution under an idempotency record reached its effect, which was committed or rolled back.",
        "idempotency worker",
        {"record": _NAME, "attempt": _COUNT, "committed": _FLAG},
    ),
    EventKind(
        "answer",
        "A client was answered; `body` is a digest.",
        "client",
        {"record": _NAME, "principal": _TEXT, "status": _STATUS, "body": _TEXT, "replayed": _FLAG},
    ),
)

EVENTS: Final[Mapping[str, EventKind]] = {kind.what: kind for kind in _KINDS}
"""Every event that a history may hold, by its name."""

_HEAD: Final = {"what": _NAME, "at": _MOMENT, "process": _NAME}


def check_event(event: object) -> None:
    """
    Refuse what is no event of the table.

    Raises:
        HistoryError: It is no mapping, or its name is unknown, or a field of it is missing, unknown or of another kind.
    """
    if not isinstance(event, dict):
        raise HistoryError(f"An event is a JSON object, and this is a {type(event).__name__}.")
    what = event.get("what")
    reader = _READERS.get(what) if type(what) is str else None
    if reader is None:
        raise HistoryError(f"An event has no known name: its `what` must be one of {', '.join(EVENTS)}.")
    required, names, optional = reader
    try:
        for name, types, allows in required:
            value = event[name]
            if type(value) not in types or (allows is not None and not allows(value)):
                raise _wrong(event, name)
    except KeyError as missing:
        fields = ", ".join(["what", *(name for name, _, _ in required)])
        raise HistoryError(f"The event {what!r} lacks the field {missing}; it must have {fields}.") from None
    except OverflowError:
        raise HistoryError(f"A number of the event {what!r} is too large for a time.") from None
    if len(event) > len(names):
        _check_optional(event, names, optional)
    if what in ("invoke", "return"):
        _check_call(event)


def _check_optional(event: Mapping[Any, Any], required: frozenset[str], optional: Mapping[str, _Field]) -> None:
    for name, value in event.items():
        if name in required:
            continue
        kind = optional.get(name)
        if kind is None:
            may = ", ".join([*sorted(required - {"what"}), *optional])
            raise HistoryError(f"The event {event['what']!r} has a field that it may not have; it has {may}.")
        if type(value) not in kind.types or (kind.allows is not None and not kind.allows(value)):
            raise _wrong(event, name)


def _check_call(event: Mapping[Any, Any]) -> None:
    """Refuse what a call's fields say together and not one by one."""
    if event["what"] == "invoke":
        if (event["op"] == "release") is (event.get("ttl_ms") is not None):
            raise HistoryError("The event 'invoke' has a ttl_ms where it acquires or renews, and none for a release.")
    elif event["result"] != "ok" and event.get("token") is not None:
        raise HistoryError("The event 'return' has a token, and only what was granted has one.")


def _wrong(event: Mapping[Any, Any], name: str) -> HistoryError:
    kind = EVENTS[event["what"]]
    says = {**_HEAD, **kind.required, **kind.optional}[name].says
    return HistoryError(f"The field {name!r} of the event {kind.what!r} must be {says}.")


_READERS: Final = {
    kind.what: (
        tuple((name, one.types, one.allows) for name, one in {**_HEAD, **kind.required}.items() if name != "what"),
        frozenset({**_HEAD, **kind.required}),
        kind.optional,
    )
    for kind in _KINDS
}
"""The table as it is asked a million times."""
