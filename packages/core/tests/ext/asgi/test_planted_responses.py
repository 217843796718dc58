"""
Bugs planted in the middleware, each caught by the fact that it breaks: so the facts have teeth.

Every row replaces one piece by a wrong one, most of a kind that was reported of a released library, and runs the named
fact, which must fail. Here: what goes out, and what becomes of the record.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tenure.ext.asgi import _exchange, _headers, _record
from tenure.ext.asgi._exchange import Exchange
from tenure.ext.asgi._inbox import Inbox
from tenure.ext.asgi._record import StoredResponse
from tenure.idempotency import Execution

Plant = Callable[[pytest.MonkeyPatch], None]

body, start, raised, by_status = Exchange._body, Exchange._start, Exchange.raised, Exchange._by_status


def completes_before_the_start(patch: pytest.MonkeyPatch) -> None:
    async def early(self: Exchange, message: Any) -> None:
        await self._execution.complete(StoredResponse(message["status"], [], b"").encode())
        await start(self, message)

    patch.setattr(Exchange, "_start", early)


def completes_behind_the_last_body(patch: pytest.MonkeyPatch) -> None:
    async def late(self: Exchange, message: Any) -> None:
        self._record(message["body"])
        await self._forward(message)
        if not message.get("more_body", False):
            await self._settle(self._by_status())

    patch.setattr(Exchange, "_body", late)


def completes_when_the_call_returns(patch: pytest.MonkeyPatch) -> None:
    async def only_forwards(self: Exchange, message: Any) -> None:
        self._record(message["body"])
        await self._forward(message)

    async def at_last(self: Exchange) -> None:
        await self._settle(self._by_status())

    patch.setattr(Exchange, "_body", only_forwards)
    patch.setattr(Exchange, "returned", at_last)


def takes_an_error_behind_the_response_for_a_failure(patch: pytest.MonkeyPatch) -> None:
    async def takes_back(self: Exchange, error: Exception) -> None:
        # The store itself refuses to release what is completed.
        self._execution._recorder.store.inner._records.clear()  # type: ignore[attr-defined]
        await raised(self, error)

    patch.setattr(Exchange, "raised", takes_back)


def releases_on_cancellation(patch: pytest.MonkeyPatch) -> None:
    def release(self: Exchange) -> None:
        self._execution._recorder.keeper.spawn(self._execution.release())

    patch.setattr(Exchange, "abandon", release)


def releases_what_cannot_be_stored(patch: pytest.MonkeyPatch) -> None:
    async def release(self: Execution, _: bytes = b"") -> Any:
        return await self.release()

    patch.setattr(Execution, "leave_tombstone", release)


def stores_what_fits_of_a_long_response(patch: pytest.MonkeyPatch) -> None:
    def cut(self: Exchange, octets: bytes) -> None:
        assert self._recorded is not None
        self._recorded += octets
        del self._recorded[self._options.max_response_bytes :]

    patch.setattr(Exchange, "_record", cut)


def stores(patch: pytest.MonkeyPatch, name: bytes) -> None:
    """Store a header that is left out on the way back as well."""
    patch.setattr(_headers, "_STORED", _headers._STORED | {name})
    patch.setattr(_record, "is_replayable", lambda _: True)


def replays_cookies(patch: pytest.MonkeyPatch) -> None:
    stores(patch, b"set-cookie")


def merges_repeated_headers(patch: pytest.MonkeyPatch) -> None:
    stored = _exchange.stored_headers
    patch.setattr(_exchange, "stored_headers", lambda *given: list(dict(stored(*given)).items()))


def replays_the_length_of_the_first(patch: pytest.MonkeyPatch) -> None:
    stores(patch, b"content-length")


def takes_every_oserror_for_a_hang_up(patch: pytest.MonkeyPatch) -> None:
    async def gone(_: Inbox) -> bool:
        return True

    patch.setattr(Inbox, "client_is_gone", gone)


def takes_no_oserror_for_a_hang_up(patch: pytest.MonkeyPatch) -> None:
    async def there(_: Inbox) -> bool:
        return False

    patch.setattr(Inbox, "client_is_gone", there)


def holds_a_stream_back_to_its_end(patch: pytest.MonkeyPatch) -> None:
    async def holds(self: Exchange, message: Any) -> None:
        self._length = 0
        await body(self, message)

    patch.setattr(Exchange, "_body", holds)


def lets_the_client_have_everything_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    async def passes(self: Exchange, message: Any) -> None:
        self._length = None
        await body(self, message)

    patch.setattr(Exchange, "_body", passes)


def pins_failures(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Exchange, "_by_status", lambda _: "store")


def pins_conflicts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_exchange, "_NOT_AN_OUTCOME", frozenset())


def takes_a_broken_success_for_no_effect(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Exchange, "_unfinished", lambda self: self._options.on_failure)


def keeps_from_the_client_what_was_held_back(patch: pytest.MonkeyPatch) -> None:
    async def nothing(_: Exchange) -> None:
        return

    patch.setattr(Exchange, "_let_go", nothing)


def forgets_that_the_commit_failed(patch: pytest.MonkeyPatch) -> None:
    def forgets(self: Exchange) -> Any:
        self._start_refused = False
        return by_status(self)

    patch.setattr(Exchange, "_by_status", forgets)


def loses_the_handlers_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Exchange, "_asked", lambda _: None)


BEHIND = "a_background_task_runs_after_the_record_is_settled_once_and_its_error_takes_nothing_back"
ORDER = "the_start_goes_out_before_the_record_is_completed_and_the_last_body_after"
TOO_LONG = "a_response_one_byte_over_the_limit_reaches_its_client_and_never_runs_again"
HEADERS = "headers_that_belong_to_the_outcome_are_replayed_in_order_with_repeats"
CANCELLED = "a_cancellation_leaves_the_outcome_unknown_whatever_the_policy"
DATABASE = "a_database_that_is_gone_at_the_commit_is_not_taken_for_a_client_that_is"
HUNG_UP = "a_client_that_hung_up_after_the_handler_ended_gets_the_response_on_its_retry"
AT_ONCE = "what_a_stream_sends_reaches_its_client_at_once"
HELD = "the_chunk_that_fills_the_content_length_is_held_until_the_record_is_settled"
FREED = "an_answer_about_the_moment_the_caller_or_the_address_frees_the_key"
BROKE_OFF = "a_success_that_broke_off_is_never_taken_for_no_effect"
ALL_CAME = "a_response_that_had_all_come_is_stored_though_its_last_message_did_not"
OVERRULED = {"status": 201, "settlement": "release", "outcomes": ["acquired", "released"]}

PLANTED: list[tuple[Plant, str, str, dict[str, Any]]] = [
    (completes_before_the_start, "streams", "a_commit_that_fails_in_the_hook_of_the_start_stores_nothing", {}),
    (completes_behind_the_last_body, "streams", ORDER, {}),
    (completes_when_the_call_returns, "settling", BEHIND, {}),
    (takes_an_error_behind_the_response_for_a_failure, "settling", BEHIND, {}),
    (releases_on_cancellation, "settling", CANCELLED, {"policy": "release"}),
    (releases_what_cannot_be_stored, "streams", TOO_LONG, {"over": 1}),
    (stores_what_fits_of_a_long_response, "streams", TOO_LONG, {"over": 1}),
    (replays_cookies, "settling", HEADERS, {}),
    (replays_cookies, "frameworks", "cookies_are_sent_once_and_never_replayed", {"shop": None}),
    (merges_repeated_headers, "settling", HEADERS, {}),
    (replays_the_length_of_the_first, "settling", HEADERS, {}),
    (takes_every_oserror_for_a_hang_up, "streams", DATABASE, {"error": TimeoutError("the database")}),
    (takes_no_oserror_for_a_hang_up, "streams", HUNG_UP, {}),
    (holds_a_stream_back_to_its_end, "streams", AT_ONCE, {"content_type": b"text/event-stream"}),
    (lets_the_client_have_everything_before_it_is_stored, "streams", HELD, {}),
    (pins_failures, "settling", "a_failure_frees_the_key_so_that_a_later_success_is_the_outcome", {}),
    (pins_conflicts, "settling", FREED, {"status": 409}),
    (pins_conflicts, "frameworks", "a_client_that_is_sent_on_by_a_slash_keeps_its_key", {"shop": None}),
    (
        takes_a_broken_success_for_no_effect,
        "streams",
        BROKE_OFF,
        {"policy": "release", "outcome": "tombstone", "end": ()},
    ),
    (keeps_from_the_client_what_was_held_back, "streams", ALL_CAME, {"policy": "release", "end": ()}),
    (forgets_that_the_commit_failed, "streams", "the_report_of_a_failed_commit_is_no_outcome_whatever_its_status", {}),
    (loses_the_handlers_word, "settling", "the_handler_can_overrule_its_route", OVERRULED),
]


@pytest.mark.parametrize(("plant", "file", "fact", "given"), PLANTED, ids=[row[0].__name__ for row in PLANTED])
async def test_the_fact_catches_the_bug(
    catches: Any, plant: Plant, file: str, fact: str, given: dict[str, Any]
) -> None:
    await catches(plant, file, fact, given)
