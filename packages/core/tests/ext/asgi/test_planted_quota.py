"""Bugs planted in the quota and in what is read from a record, each caught by the fact that it breaks."""

from collections.abc import Callable
from typing import Any

import pytest

from tenure.ext.asgi import _exchange, _headers, _quota, _record
from tenure.ext.asgi._quota import Place, Places

Plant = Callable[[pytest.MonkeyPatch], None]

take, answered, leave, forget_idle = Places.take, Place.answered, Place.leave, Places._forget_idle


def shares_one_quota_among_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Places, "take", lambda self, _, key: take(self, None, key))


def counts_every_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Place, "answered", lambda self, **_: answered(self, began=True))


def counts_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Place, "answered", lambda self, **_: answered(self, began=False))


def refuses_repeats(patch: pytest.MonkeyPatch) -> None:
    """Digests a key anew each time, so that none is known again."""
    number = iter(range(10**9))
    patch.setattr(Places, "take", lambda self, principal, key: take(self, principal, f"{key} {next(number)}"))


def counts_only_what_the_store_has_answered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_quota._Client, "taken", lambda self: len(self.begun))


def keeps_the_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Place, "leave", lambda self: answered(self, began=False))


def gives_the_place_back_with_the_answer(patch: pytest.MonkeyPatch) -> None:
    def early(self: Place, *, began: bool) -> None:
        answered(self, began=began)
        leave(self)

    patch.setattr(Place, "answered", early)


def forgets_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Places, "_forget_ended", lambda *_: None)


def keeps_lines_that_split(patch: pytest.MonkeyPatch) -> None:
    for module in (_headers, _record):
        patch.setattr(module, "is_line", lambda *_: True)


def keeps_any_status(patch: pytest.MonkeyPatch) -> None:
    for module in (_exchange, _record):
        patch.setattr(module, "is_final", lambda _: True)


def record(head: bytes) -> bytes:
    return b"\x01" + len(head).to_bytes(4, "big") + head


MANY_NEW = "a_client_with_too_many_new_keys_waits_and_the_store_is_not_asked"
REPEAT = "a_repeat_of_a_key_that_was_begun_here_is_answered_as_ever"
NOT_NEW = "what_makes_no_new_record_is_not_counted"
ASKING = "new_keys_count_while_the_store_is_asked_and_not_where_it_failed"
IN_FLIGHT = "a_client_with_too_many_requests_in_flight_waits_and_nobody_else_does"
GIVEN_BACK = "a_place_is_given_back_however_a_request_ends"
UNREADABLE = "a_record_that_cannot_be_read_is_an_error_and_never_a_reason_to_run_again"
NO_STATUS = "a_status_that_no_replay_may_have_leaves_a_tombstone"
SPLITS = "a_header_that_would_split_the_response_is_not_replayed"

PLANTED: list[tuple[Plant, str, str, dict[str, Any]]] = [
    (shares_one_quota_among_all, "quota", MANY_NEW, {}),
    (shares_one_quota_among_all, "quota", IN_FLIGHT, {}),
    (counts_every_answer, "quota", NOT_NEW, {}),
    (counts_nothing, "quota", MANY_NEW, {}),
    (refuses_repeats, "quota", REPEAT, {}),
    (counts_only_what_the_store_has_answered, "quota", ASKING, {}),
    (keeps_the_place, "quota", GIVEN_BACK, {"end": "replay"}),
    (keeps_the_place, "quota", GIVEN_BACK, {"end": "cancelled"}),
    (gives_the_place_back_with_the_answer, "quota", IN_FLIGHT, {}),
    (forgets_nothing, "quota", MANY_NEW, {}),
    (keeps_lines_that_split, "settling", SPLITS, {}),
    (keeps_any_status, "settling", NO_STATUS, {"status": 150}),
    (
        keeps_lines_that_split,
        "store_failures",
        UNREADABLE,
        {"payload": record(b'{"status":201,"headers":[["etag","a\\nb"]]}')},
    ),
    (keeps_any_status, "store_failures", UNREADABLE, {"payload": record(b'{"status":700,"headers":[]}')}),
]


@pytest.mark.parametrize(("plant", "file", "fact", "given"), PLANTED, ids=[row[0].__name__ for row in PLANTED])
async def test_the_fact_catches_the_bug(
    catches: Any, plant: Plant, file: str, fact: str, given: dict[str, Any]
) -> None:
    await catches(plant, file, fact, given)
