"""The table of events, and reading them: what is no event is an error that says where, why and what instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.testing.history import EVENTS, HistoryError, check_event, check_history

HEAD = {"at": 1.0, "process": "a"}
INVOKE = {"what": "invoke", **HEAD, "call": 1, "op": "acquire", "key": "k", "owner": "0123456789ab", "ttl_ms": 3000}
RETURN = {"what": "return", **HEAD, "call": 1, "result": "ok", "token": 5}
RUN = {"what": "run", **HEAD, "topology": "one server", "ttl_s": 3, "retry_s": 0.5, "call_timeout_s": 1}

GOOD: list[dict[str, Any]] = [
    RUN,
    {**RUN, "margin": 0.0, "stall_s": 0.1, "overlap_s": 1, "takeover_s": None, "late_expiry_s": 0},
    {"what": "phase", **HEAD, "name": "warm"},
    INVOKE,
    {**INVOKE, "op": "release", "ttl_ms": None},
    RETURN,
    {**RETURN, "after": "expired", "error": None},
    {"what": "return", **HEAD, "call": 1, "result": "unknown", "error": "TimeoutError"},
    {"what": "believes", **HEAD, "key": "k", "token": 5},
    {"what": "lost", **HEAD, "key": "k", "token": 5, "reason": "refused"},
    {"what": "gave_back", **HEAD, "key": "k", "token": 5},
    {"what": "write", **HEAD, "resource": "r", "key": "k", "token": 5, "accepted": True, "sent_at": 0.5},
    {"what": "enter", **HEAD, "key": "k", "token": 5},
    {"what": "exit", **HEAD, "key": "k", "token": 5},
    {"what": "paused", **HEAD, "by": "nemesis"},
    {"what": "resumed", **HEAD},
    {"what": "died", **HEAD},
    {"what": "started", **HEAD},
    {"what": "fault", **HEAD, "fault": "f1", "kind": "blackhole", "scope": "a"},
    {"what": "healed", **HEAD, "fault": "f1", "scope": None},
    {"what": "effect", **HEAD, "record": "r", "attempt": 1, "committed": False},
    {"what": "answer", **HEAD, "record": "r", "principal": "", "status": 201, "body": "ab", "replayed": False},
]


@pytest.mark.parametrize("event", GOOD, ids=lambda event: str(event["what"]))
def test_an_event_of_the_table_is_taken(event: dict[str, Any]) -> None:
    check_event(event)
    check_event(json.loads(json.dumps(event)))


def test_every_event_of_the_table_is_tried_here_and_says_what_it_is() -> None:
    assert {event["what"] for event in GOOD} == set(EVENTS)
    for kind in EVENTS.values():
        assert kind.says.endswith(".")
        assert kind.writer


BAD: list[tuple[Any, str]] = [
    ([], "JSON object"),
    (None, "JSON object"),
    ({}, "no known name"),
    ({**INVOKE, "what": "invoked"}, "no known name"),
    ({**INVOKE, "what": ["invoke"]}, "no known name"),
    ({"what": "believes", **HEAD, "key": "k"}, "lacks the field 'token'"),
    ({"what": "believes", "at": 1.0, "key": "k", "token": 5}, "lacks the field 'process'"),
    ({**RETURN, "tokn": 5}, "a field that it may not have"),
    ({**RETURN, "token": True}, "'token' of the event 'return' must be a token"),
    ({**RETURN, "token": 0}, "must be a token"),
    ({**RETURN, "token": 2**53}, "must be a token"),
    ({**RETURN, "token": 5.0}, "must be a token"),
    ({**RETURN, "after": "later"}, "released, expired or null"),
    ({**RETURN, "result": "no"}, "only what was granted"),
    ({**RETURN, "result": "maybe"}, "one of ok, no, unknown"),
    ({**RETURN, "call": 0}, "whole number"),
    ({**INVOKE, "at": float("nan")}, "finite"),
    ({**INVOKE, "at": float("inf")}, "finite"),
    ({**INVOKE, "at": "1"}, "finite"),
    ({**INVOKE, "at": False}, "finite"),
    ({**INVOKE, "at": 10**400}, "too large"),
    ({**INVOKE, "op": "extend"}, "one of acquire, renew, release"),
    ({**INVOKE, "owner": "cat-store-1:0123456789abcdef"}, "never the owner"),
    ({**INVOKE, "owner": "0123456789AB"}, "never the owner"),
    ({**INVOKE, "owner": "0123456789a\n"}, "never the owner"),
    ({**INVOKE, "ttl_ms": None}, "has a ttl_ms where"),
    ({**INVOKE, "op": "release"}, "none for a release"),
    ({**INVOKE, "ttl_ms": 0}, "whole milliseconds"),
    ({**INVOKE, "process": ""}, "not empty"),
    ({**INVOKE, "key": 5}, "a text"),
    ({**RUN, "margin": 1.0}, "a share"),
    ({**RUN, "ttl_s": -1}, "0 or more"),
    ({**RUN, "takeover_s": "soon"}, "or null"),
    ({"what": "lost", **HEAD, "key": "k", "token": 5, "reason": "bored"}, "one of refused"),
    ({"what": "write", **HEAD, "resource": "r", "key": "k", "token": 5, "accepted": 1}, "true or false"),
    ({"what": "answer", **HEAD, "record": "r", "principal": "", "status": 99, "body": "", "replayed": True}, "status"),
]


@pytest.mark.parametrize(("event", "says"), BAD)
def test_what_is_no_event_of_the_table_is_refused_with_the_reason(event: Any, says: str) -> None:
    with pytest.raises(HistoryError, match=says):
        check_event(event)
    with pytest.raises(HistoryError, match=says):
        check_history([RUN, event]) if isinstance(event, dict) else check_event(event)


def test_an_error_shows_no_value() -> None:
    for event, _ in BAD:
        with pytest.raises(HistoryError) as failure:
            check_event(event)
        assert "cat-store-1" not in str(failure.value)
        assert "bored" not in str(failure.value)


# ------------------------------------------------------------------------------------------- files


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"{",
        b"null",
        b"[]",
        b'"what"',
        b"{}",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf" + json.dumps(INVOKE).encode(),
        json.dumps(INVOKE).encode() + b" ",
        json.dumps(INVOKE).encode() * 2,
        b"[" * 100_000,
        b'{"what":' * 5_000,
        b'{"what":"invoke","at":' + b"9" * 5000 + b"}",
        json.dumps(INVOKE).replace("1.0", "NaN").encode(),
        json.dumps(INVOKE).replace("1.0", "1e999").encode(),
        b"\x00",
        b"# a comment",
    ],
    ids=range(18),
)
def test_a_hostile_line_is_an_error_that_says_where(line: bytes, file: Path) -> None:
    file.write_bytes(lines(RUN) + line + b"\n" + lines(INVOKE, RETURN))
    with pytest.raises(HistoryError, match=r"a\.jsonl, line 2: "):
        check_history(file)


def test_the_last_line_of_a_killed_process_is_accepted_and_counted(file: Path) -> None:
    whole = lines(RUN, INVOKE, RETURN)
    for cut in range(1, len(lines(RETURN)) - 1):
        file.write_bytes(whole[:-cut] if cut > 1 else whole[:-2])
        report = check_history([file])
        assert report.counts["torn lines"] == 1
        assert report.counts["acquire open"] == 1


def test_a_last_line_that_lacks_only_its_end_is_whole(file: Path) -> None:
    file.write_bytes(lines(RUN, INVOKE, RETURN)[:-1])
    report = check_history(str(file))
    assert report.ok
    assert report.counts["torn lines"] == 0


def test_a_malformed_last_line_that_is_whole_is_an_error(file: Path) -> None:
    file.write_bytes(lines(RUN, INVOKE) + lines(RETURN)[:-9] + b"\n")
    with pytest.raises(HistoryError, match="line 3"):
        check_history(file)


def test_an_empty_file_is_a_history_without_events(file: Path) -> None:
    file.write_bytes(b"")
    report = check_history(file)
    assert report.counts["events"] == 0
    assert not report.violations


def test_a_file_that_is_not_there_is_an_error_of_the_system(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_history(file)


def test_files_and_events_are_merged_by_time(file: Path) -> None:
    file.write_bytes(lines(INVOKE, RETURN))
    other = file.with_name("b.jsonl")
    other.write_bytes(lines({**RUN, "process": "b"}))
    report = check_history([file, {"what": "phase", "at": 0.5, "process": "c", "name": "all"}, str(other)])
    assert report.ok
    assert report.counts["processes"] == 3


def test_events_may_be_any_mapping() -> None:
    from types import MappingProxyType

    report = check_history([MappingProxyType(event) for event in (RUN, INVOKE, RETURN)])
    assert report.ok
    with pytest.raises(HistoryError, match="Event 2 is no mapping"):
        check_history([RUN, 5])  # type: ignore[list-item]
