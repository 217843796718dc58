"""
Bugs planted in the middleware, each caught by the fact that it breaks: so the facts have teeth.

Every row replaces one piece by a wrong one, most of a kind that was reported of a released library, and runs the named
fact, which must fail. Here: what comes in, and what is replayed.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tenure.ext.asgi import _digests, _guard, _inner_scope, _problems
from tenure.ext.asgi._guard import RequestGuard
from tenure.ext.asgi._inbox import BodyTooLongError, Inbox
from tenure.ext.asgi._inner_scope import CONTEXT_KEY, InnerScope
from tenure.ext.asgi._key_header import MalformedKeyError
from tenure.ext.asgi._record import StoredResponse, UnreadableRecordError

Plant = Callable[[pytest.MonkeyPatch], None]

read_key, record_key, read_body, handle = _guard.read_key, _guard.record_key, _guard.read_body, RequestGuard.handle
inner_init, in_flight, decode = InnerScope.__init__, _problems.in_flight, StoredResponse.decode


def marks_no_replay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredResponse, "replay_headers", lambda self: self.headers)


def tells_the_handler_what_the_client_accepts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_inner_scope, "without", lambda headers, _: [*headers])


def replays_any_coding_to_anyone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_guard, "accepts_coding", lambda *_: True)


def ignores_a_key_that_cannot_be_read(patch: pytest.MonkeyPatch) -> None:
    def lax(lines: Any, **syntax: Any) -> str:
        try:
            return read_key(lines, **syntax)
        except MalformedKeyError:
            return "none"

    patch.setattr(_guard, "read_key", lax)


def takes_the_first_of_two_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_guard, "read_key", lambda lines, **syntax: read_key(lines[:1], **syntax))


def forgets_the_principal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_guard, "record_key", lambda namespace, _, key: record_key(namespace, None, key))


def shares_keys_where_the_principal_is_none(patch: pytest.MonkeyPatch) -> None:
    async def lax(self: RequestGuard, scope: Any) -> str:
        named = self._principal(scope)  # type: ignore[operator]
        return str(await named if inspect.isawaitable(named) else named)

    patch.setattr(RequestGuard, "_principal_of", lax)


def forgets_the_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_digests, "_path", lambda _: b"")


def passes_without_the_store(patch: pytest.MonkeyPatch) -> None:
    async def fails_open(self: RequestGuard, *call: Any, **rest: Any) -> None:
        scope, receive, send, app = call

        async def refuses(message: Any) -> None:
            if message.get("status") == 503:
                raise ConnectionError
            await send(message)

        try:
            await handle(self, scope, receive, refuses, app, **rest)
        except ConnectionError:
            await app({**scope, "state": {}}, Inbox(receive, b"").receive, send)

    patch.setattr(RequestGuard, "handle", fails_open)


def passes_a_body_that_is_too_long(patch: pytest.MonkeyPatch) -> None:
    async def lax(*given: Any) -> bytes:
        try:
            return await read_body(*given)
        except BodyTooLongError:
            return b""

    patch.setattr(_guard, "read_body", lax)


def authorizes_only_what_runs(patch: pytest.MonkeyPatch) -> None:
    async def late(self: RequestGuard, *call: Any, options: Any, authorize: Any = None) -> None:
        *before, app = call

        async def authorized(*inner: Any) -> None:
            if authorize is not None:
                await authorize()
            await app(*inner)

        await handle(self, *before, authorized, options=options)  # type: ignore[call-arg]

    patch.setattr(RequestGuard, "handle", late)


def shares_the_context_in_the_servers_state(patch: pytest.MonkeyPatch) -> None:
    def shared(self: InnerScope, outer: Any, context: Any) -> None:
        inner_init(self, outer, context)
        outer.setdefault("state", {})[CONTEXT_KEY] = context

    patch.setattr(InnerScope, "__init__", shared)


def keeps_the_inner_scope_to_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InnerScope, "publish", lambda _: None)


def asks_to_wait_for_the_whole_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_problems, "in_flight", lambda left_s, _: in_flight(left_s, 10_000))


def runs_again_where_a_record_cannot_be_read(patch: pytest.MonkeyPatch) -> None:
    def lax(payload: bytes) -> StoredResponse:
        try:
            return decode(payload)
        except UnreadableRecordError:
            return StoredResponse(200, [], b"")

    patch.setattr(StoredResponse, "decode", lax)


def guards_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_guard, "is_executed", lambda _: False)


GZIP = {"shop": None, "first_accepts": "gzip", "then_accepts": "identity", "where": "inside"}
COMPRESSED = "a_response_can_be_read_by_whoever_repeats_it_wherever_it_is_compressed"
CODING = "a_coding_of_the_handlers_own_is_replayed_to_a_client_that_accepts_it"
MALFORMED = "a_malformed_key_is_answered_400_and_nothing_runs_also_where_no_key_is_required"
TWO_PRINCIPALS = "two_principals_with_one_key_are_two_requests_and_neither_learns_of_the_other"
ENDPOINT = "a_key_used_on_another_endpoint_is_a_visible_error"
CLOSED = "without_the_store_nothing_runs_and_the_client_is_told_to_come_again"
TOO_LONG = "a_body_over_the_limit_is_answered_413_and_never_passes_unprotected"
CONTEXT = "the_handler_finds_its_context_and_is_not_told_what_the_client_accepts"
OUTSIDE = "layers_outside_see_what_was_put_into_the_scope_before_each_message"
RETRY_AFTER = "retry_after_is_what_is_left_of_the_lock_from_a_second_to_the_routes_limit"
UNREADABLE = "a_record_that_cannot_be_read_is_an_error_and_never_a_reason_to_run_again"

PLANTED: list[tuple[Plant, str, str, dict[str, Any]]] = [
    (marks_no_replay, "once", "a_repeat_gets_the_first_response_with_the_mark_and_nothing_runs", {}),
    (tells_the_handler_what_the_client_accepts, "frameworks", COMPRESSED, GZIP),
    (replays_any_coding_to_anyone, "settling", CODING, {"accepts": b"br", "status": 406}),
    (ignores_a_key_that_cannot_be_read, "key_header", MALFORMED, {"value": b"a b"}),
    (takes_the_first_of_two_keys, "key_header", "a_repeated_header_is_answered_400", {}),
    (forgets_the_principal, "once", TWO_PRINCIPALS, {}),
    (shares_keys_where_the_principal_is_none, "once", "an_awaitable_principal_that_is_none_is_refused_as_well", {}),
    (forgets_the_path, "digests", ENDPOINT, {"request_": {"path": "/refunds"}}),
    (passes_without_the_store, "store_failures", CLOSED, {"error": OSError("refused")}),
    (passes_a_body_that_is_too_long, "request", TOO_LONG, {"declared": False}),
    (authorizes_only_what_runs, "once", "authorize_is_asked_before_the_store_so_before_every_replay", {}),
    (shares_the_context_in_the_servers_state, "request", CONTEXT, {}),
    (keeps_the_inner_scope_to_itself, "request", OUTSIDE, {}),
    (asks_to_wait_for_the_whole_lock, "once", RETRY_AFTER, {"left_s": 30, "asked": 5}),
    (runs_again_where_a_record_cannot_be_read, "store_failures", UNREADABLE, {"payload": b"\x02"}),
    (guards_twice, "request", "a_request_that_is_executed_under_a_guard_passes_a_second_one_untouched", {}),
]


@pytest.mark.parametrize(("plant", "file", "fact", "given"), PLANTED, ids=[row[0].__name__ for row in PLANTED])
async def test_the_fact_catches_the_bug(
    catches: Any, plant: Plant, file: str, fact: str, given: dict[str, Any]
) -> None:
    await catches(plant, file, fact, given)
