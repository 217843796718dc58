"""One request under its key, from the header to the settled record: what every framework's adapter shares."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, final

from tenure.errors import ConfigurationError, IdempotencyError, LeaseStateError, SealError, StoreError, TenureError
from tenure.events import IdempotencyOutcome, RecordOutcome
from tenure.ext.asgi._digests import fingerprint_parts, record_key
from tenure.ext.asgi._exchange import Exchange
from tenure.ext.asgi._headers import accepts_coding, header_lines
from tenure.ext.asgi._inbox import BodyTooLongError, ClientGoneError, Inbox, read_body
from tenure.ext.asgi._inner_scope import InnerScope, is_executed
from tenure.ext.asgi._key_header import MalformedKeyError, read_key
from tenure.ext.asgi._options import UNSCOPED, IdempotencyOptions, Principal, Unscoped
from tenure.ext.asgi._problems import (
    BODY_TOO_LONG,
    NOT_SCOPED,
    PROBLEMS,
    UNREADABLE,
    Problem,
    not_acceptable,
    problem_of,
)
from tenure.ext.asgi._quota import ClientQuota, OverQuotaError, Places
from tenure.ext.asgi._record import StoredResponse, UnreadableRecordError
from tenure.ext.asgi._types import ASGIApp, Receive, Scope, Send
from tenure.idempotency import Execution, Idempotency, Phase, Replay

__all__ = ["DEFAULT_NAMESPACE", "DEFAULT_PROBLEM_BASE", "RequestGuard"]

DEFAULT_NAMESPACE: Final = "http"
DEFAULT_PROBLEM_BASE: Final = "urn:tenure:idempotency:"

_log: Final = logging.getLogger("tenure.idempotency")


class _RefusedError(Exception):
    """The request is answered with a problem, and nothing runs."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem


@final
class RequestGuard:
    """
    Has each request under an idempotency key carried out once, and its response sent to each repeat.

    Args:
        idempotency: The engine; it must be entered before the first request, and left after the last.
        principal: Whom a request belongs to, or `UNSCOPED`. One principal's keys are nothing to another: they neither
            collide nor can they be found out.
        namespace: Tells this API's keys from those of others that use the same store.
        problem_base: What a problem's code is appended to for its type. With an http(s) URL, under which the codes are
            described, problems link to it.
        quota: What each principal may have on this instance, whatever the route; None: what comes is carried out.

    Raises:
        ConfigurationError: The principal is no function and not `UNSCOPED`, the namespace or the base is no text, or
            the quota is none.
    """

    def __init__(
        self,
        idempotency: Idempotency,
        *,
        principal: Principal | Unscoped,
        namespace: str = DEFAULT_NAMESPACE,
        problem_base: str = DEFAULT_PROBLEM_BASE,
        quota: ClientQuota | None = None,
    ) -> None:
        if not isinstance(idempotency, Idempotency):
            raise ConfigurationError("idempotency is a tenure.idempotency.Idempotency.")
        if principal is not UNSCOPED and not callable(principal):
            raise ConfigurationError(
                "principal is a function that names whom a request belongs to, from its scope. Where all clients may "
                "see one another's responses, say so with UNSCOPED."
            )
        _check_text("namespace", namespace, "orders-api")
        _check_text("problem_base", problem_base, DEFAULT_PROBLEM_BASE)
        if quota is not None and not isinstance(quota, ClientQuota):
            raise ConfigurationError(
                "quota is a ClientQuota, such as ClientQuota(in_flight=32, new_keys=1000), or None."
            )
        self._idempotency = idempotency
        self._places = None if quota is None else Places(quota, idempotency.clock)
        self._principal = principal
        self._namespace = namespace
        self.problem_base = problem_base

    async def handle(  # noqa: PLR0913 -- an ASGI call, and what is known of its route
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        app: ASGIApp,
        *,
        options: IdempotencyOptions,
        authorize: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """
        Answer one request: by *app*, or with what it answered before, or with a problem.

        Args:
            scope: The request's. Anything but HTTP passes untouched, and so does a request that a guard further out
                executes already: under the same key, it would find itself in flight.
            receive: Of the server, or of the layer outside.
            send: Likewise.
            app: What carries the request out.
            options: The rules of its route.
            authorize: Asked before the store is, so before any replay, 409 or 422: may this client ask at all? What it
                raises goes out as it is.

        Raises:
            LeaseStateError: The `Idempotency` was not entered, or belongs to another event loop or process.
            Exception: What *app*, *authorize*, the principal or the fingerprint function raises.
        """
        if scope["type"] != "http" or scope["method"] not in options.methods or is_executed(scope):
            await app(scope, receive, send)
            return
        lines = header_lines(scope["headers"], options.header.lower().encode("ascii"))
        if not lines and not options.required:
            self._idempotency.emit(RecordOutcome("", IdempotencyOutcome.BYPASSED))
            await app(scope, receive, send)
            return
        with ExitStack() as left:
            try:
                principal, key = await self._key(scope, lines, options)
                body = await _body(scope, receive, options)
                fingerprint = self._idempotency.fingerprint(*fingerprint_parts(scope, body, options.fingerprint))
                if authorize is not None:
                    await authorize()
                begun = await self._begin_in_place(principal, key, fingerprint, options, left)
                if isinstance(begun, Replay):
                    await _replay(_stored(begun, scope), send)
                    return
            except _RefusedError as refused:
                await refused.problem.send(send, base=self.problem_base)
            except ClientGoneError:
                return
            else:
                await self._execute(begun, scope, Inbox(receive, body), send, app, options=options)

    async def _key(self, scope: Scope, lines: list[bytes], options: IdempotencyOptions) -> tuple[str | None, str]:
        """Give whose the request is, and what it is recorded under."""
        if not lines:
            raise _RefusedError(PROBLEMS["missing-key"])
        try:
            key = read_key(lines, syntax=options.syntax)
        except MalformedKeyError:
            raise _RefusedError(PROBLEMS["malformed-key"]) from None
        principal = await self._principal_of(scope)
        return principal, record_key(self._namespace, principal, key)

    async def _principal_of(self, scope: Scope) -> str | None:
        if isinstance(self._principal, Unscoped):
            return None
        named = self._principal(scope)
        if inspect.isawaitable(named):
            named = await named
        if not isinstance(named, str) or not named.strip():
            _log.error(
                "The principal of a request under an idempotency key is %s: nothing ran. Authenticate before the "
                "middleware, return a text that is not empty, or waive the scope with UNSCOPED.",
                "an empty text" if isinstance(named, str) else f"a {type(named).__name__}",
            )
            raise _RefusedError(NOT_SCOPED)
        return named

    async def _begin_in_place(
        self, principal: str | None, key: str, fingerprint: str, options: IdempotencyOptions, left: ExitStack
    ) -> Execution | Replay:
        """Begin among what the principal may have. An execution has its place until *left* is closed."""
        if self._places is None:
            return await self._begin(key, fingerprint, options)
        try:
            place = self._places.take(principal, key)
        except OverQuotaError as over:
            self._idempotency.emit(RecordOutcome("", IdempotencyOutcome.OVER_QUOTA))
            problem = replace(PROBLEMS["too-many-requests"], retry_after_s=over.retry_after_s)
            raise _RefusedError(problem) from None
        left.callback(place.leave)
        begun = await self._begin(key, fingerprint, options)
        if isinstance(begun, Replay):
            # A client that reads slowly has no place for it.
            place.leave()
        else:
            # An attempt that is not the first took a record over: there is none more than before.
            place.answered(began=begun.context.attempt == 1)
        return begun

    async def _begin(self, key: str, fingerprint: str, options: IdempotencyOptions) -> Execution | Replay:
        try:
            return await self._idempotency.begin(
                key,
                fingerprint,
                wait=options.wait,
                retention=options.retention,
                on_abandoned=options.on_abandoned,
                max_execution=options.max_execution,
            )
        except IdempotencyError as error:
            raise _RefusedError(problem_of(error, max_retry_after_s=options.max_retry_after_s)) from None
        except SealError:
            raise _RefusedError(UNREADABLE) from None
        except LeaseStateError:
            # Shutting down, another instance may take it. Never started is a mistake in the program, to be seen.
            if self._idempotency.phase in (Phase.DRAINING, Phase.CLOSED):
                raise _RefusedError(PROBLEMS["store-unavailable"]) from None
            raise
        except StoreError as error:
            raise _RefusedError(PROBLEMS["store-unavailable"]) from error
        except TenureError:
            raise
        except Exception as error:
            # A driver's own. Without the store nothing runs: a request that asked for protection gets it or 503.
            raise _RefusedError(PROBLEMS["store-unavailable"]) from error

    async def _execute(  # noqa: PLR0913 -- an ASGI call, and its execution
        self,
        execution: Execution,
        scope: Scope,
        inbox: Inbox,
        send: Send,
        app: ASGIApp,
        *,
        options: IdempotencyOptions,
    ) -> None:
        inner = InnerScope(scope, execution.context)
        exchange = Exchange(execution, options, send, inbox=inbox, publish=inner.publish)
        try:
            await app(inner.scope, inbox.receive, exchange.send)
        except IdempotencyError as error:
            await exchange.raised(error)
            if exchange.started:
                raise
            problem = problem_of(error, max_retry_after_s=options.max_retry_after_s)
            await problem.send(send, base=self.problem_base)
        except Exception as error:
            await exchange.raised(error)
            raise
        except BaseException:
            exchange.abandon()
            raise
        else:
            await exchange.returned()
        finally:
            inner.publish()


def _check_text(name: str, value: object, example: str) -> None:
    if not isinstance(value, str) or not value or not value.isprintable() or not value.isascii():
        raise ConfigurationError(f'{name} is a text of printable ASCII, such as "{example}".')


async def _body(scope: Scope, receive: Receive, options: IdempotencyOptions) -> bytes:
    try:
        return await read_body(scope, receive, options.max_request_bytes)
    except BodyTooLongError:
        raise _RefusedError(BODY_TOO_LONG) from None


def _stored(replay: Replay, scope: Scope) -> StoredResponse:
    """Read a stored response, if this client can."""
    try:
        response = StoredResponse.decode(replay.payload)
    except UnreadableRecordError:
        raise _RefusedError(UNREADABLE) from None
    codings = header_lines(response.headers, b"content-encoding")
    if not accepts_coding(scope["headers"], b",".join(codings)):
        raise _RefusedError(not_acceptable(response))
    return response


async def _replay(response: StoredResponse, send: Send) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": response.replay_headers()})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})
