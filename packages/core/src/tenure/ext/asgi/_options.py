"""What a route may choose, checked where it is written and not at the first request."""

import enum
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, final

from tenure._durations import Duration, to_ms, to_seconds
from tenure.errors import ConfigurationError
from tenure.ext.asgi._headers import check_extra_headers
from tenure.ext.asgi._types import Scope

__all__ = ["UNSCOPED", "IdempotencyOptions", "Principal", "Unscoped"]


@final
class Unscoped(enum.Enum):
    """The type of `UNSCOPED`."""

    UNSCOPED = "unscoped"


UNSCOPED: Final = Unscoped.UNSCOPED
"""
Waives the principal by name: all clients share one space of keys.

Whoever guesses or learns a key then reads the response that is stored under it. Right for a service with one client,
or behind a gateway that has put the client into the key; wrong for anything with accounts.
"""

Principal = Callable[[Scope], str | Awaitable[str | None] | None]
"""
Names whom a request belongs to, from its scope: an account, a tenant, an API client. It may be awaitable.

None and the empty text are errors, answered with 500 before anything runs: a shared space of keys by accident shows one
client's responses to another. What it raises goes out as it is.
"""

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

_MIB: Final = 1024 * 1024


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyOptions:
    """
    The rules of one route, or the defaults of all.

    **Choose `on_failure` with care.** The default, `"release"`, says that a handler which fails has had no effect, as
    is so where its transaction is rolled back: the next request under the key runs it again. A handler that calls
    something outside (a payment, a mail, a partner) and then fails may have had its effect all the same. Give such a
    route `on_failure="abandon"`, so that what is not known is not taken for "nothing happened", and think about
    `on_abandoned="refuse"` beside it. One request can overrule its route: `context.settlement = "abandon"` before
    the outside call, or `NoEffectError` and `OutcomeUnknownError` raised by the handler.

    Attributes:
        required: Whether a request without the key is answered with 400 `missing-key`. Otherwise it passes untouched
            and unprotected, and is counted as BYPASSED.
        methods: The methods that are protected. Others pass untouched. Safe methods are refused here: they have no
            effect to be repeated.
        syntax: How the key is written. `"lenient"` takes a structured-field string (`"abc"`) or the bare `abc` that
            most clients send, as one key; `"strict"` takes the string alone, as draft-07 of the header says.
        header: The name of the header that carries the key.
        on_abandoned: What becomes of an earlier execution of unknown outcome: `"rerun"` (at least once; the handler
            sees `attempt > 1`) or `"refuse"` (at most once: 409 `outcome-unknown`). None: as the `Idempotency` says.
        on_failure: What a response of 5xx, an exception, or the lack of a response means. `"release"`: no effect, the
            key is free. `"store"`: it is the outcome, and is replayed (an exception that left no response, as a plain
            500). `"abandon"`: unknown; use it wherever something outside may have been told.
        retention: How long the outcome is replayed. None: as the `Idempotency` says.
        wait: How long a duplicate waits for the first request before it is answered 409. 0: not at all.
        max_execution: After which time an execution is no longer believed alive. None: as the `Idempotency` says.
        max_request_bytes: The longest body that is read, in bytes. A longer one is answered with 413, never let
            through unprotected.
        max_response_bytes: The longest response that is stored, in bytes. A longer one reaches its client and leaves
            a tombstone: repeats are answered with 409 `response-not-stored`, and the handler does not run again.
        headers: Response headers that are stored besides the usual ones, by name, in any case. Headers that belong to
            one connection, one client or one moment are refused, `set-cookie` first.
        fingerprint: Gives the bytes that stand for the body in the fingerprint, from scope and body: for JSON whose
            members may come in another order (`canonical_json`), or for multipart, whose boundary differs each time.
        max_retry_after_s: The most seconds that a 409 `in-flight` asks a client to wait.

    Raises:
        ConfigurationError: A value that cannot work; the message says which, and what to give instead.
    """

    required: bool = False
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    syntax: Literal["lenient", "strict"] = "lenient"
    header: str = "Idempotency-Key"
    on_abandoned: Literal["rerun", "refuse"] | None = None
    on_failure: Literal["release", "store", "abandon"] = "release"
    retention: Duration | None = None
    wait: Duration = 0
    max_execution: Duration | None = None
    max_request_bytes: int = _MIB
    max_response_bytes: int = _MIB
    headers: frozenset[str] = frozenset()
    fingerprint: Callable[[Scope, bytes], bytes] | None = None
    max_retry_after_s: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", _check_methods(self.methods))
        object.__setattr__(self, "headers", check_extra_headers(self.headers))
        _check_choice("syntax", self.syntax, ("lenient", "strict"))
        _check_choice("on_abandoned", self.on_abandoned, (None, "rerun", "refuse"))
        _check_choice("on_failure", self.on_failure, ("release", "store", "abandon"))
        if not _is_token(self.header):
            raise ConfigurationError('header is the name of a header, such as "Idempotency-Key".')
        for name in ("max_request_bytes", "max_response_bytes"):
            _check_count(name, getattr(self, name), at_least=0)
        _check_count("max_retry_after_s", self.max_retry_after_s, at_least=1)
        to_seconds(self.wait, name="wait")
        for name in ("retention", "max_execution"):
            if getattr(self, name) is not None:
                to_ms(getattr(self, name), name=name)
        if self.fingerprint is not None and not callable(self.fingerprint):
            raise ConfigurationError("fingerprint is a function of the scope and the body that returns bytes.")


def _check_methods(methods: Iterable[str]) -> frozenset[str]:
    if isinstance(methods, str):
        raise ConfigurationError('methods is a set of names: write {"POST"}, not "POST".')
    chosen = frozenset(methods)
    for method in chosen:
        if not _is_token(method) or method != method.upper():
            raise ConfigurationError('methods is a set of names in capitals, such as {"POST", "PATCH"}.')
        if method in _SAFE:
            raise ConfigurationError(f"methods names {method}, which has no effect to protect: leave it out.")
    return chosen


def _is_token(value: object) -> bool:
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def _check_choice(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is one of {', '.join(map(repr, choices))}.")


def _check_count(name: str, value: object, *, at_least: int) -> None:
    if type(value) is not int or value < at_least:
        raise ConfigurationError(f"{name} is a whole number from {at_least} on.")
