"""What is made of an answer, and what is written down of it."""

from pathlib import Path

import msgspec
import pytest

from cat_store_load.answers import (
    IN_FLIGHT,
    NOT_STORED,
    Answer,
    AnswerBook,
    Kind,
    is_cut_off,
    problem_code,
    read_answers,
)


@pytest.mark.parametrize(
    ("status", "code", "final"),
    [
        (201, "", True),
        (409, NOT_STORED, True),
        (422, "key-reused", True),
        (409, IN_FLIGHT, False),
        (503, "store-unavailable", False),
        (500, "", False),
        (0, "", False),
    ],
)
def test_an_answer_is_final_when_a_client_knows_what_became_of_its_request(status: int, code: str, final: bool) -> None:
    assert Answer(block="storm", kind=Kind.ORDER, status=status, code=code).final is final


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    written = [
        Answer(block="storm", kind=Kind.ORDER, customer="zoë\n", key="k", status=201, body='{"id":"o1"}', order="{}"),
        Answer(block="storm", kind=Kind.READ),
    ]
    book = AnswerBook(path)
    for answer in written:
        book.write(answer)
    # Before the file is closed: a process that is killed has written what it heard.
    assert list(read_answers([path])) == written
    book.close()


def test_a_line_that_is_no_answer_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"block": "storm", "kind": "order", "status": "201"}\n', encoding="utf-8")
    with pytest.raises(msgspec.ValidationError):
        list(read_answers([path]))


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/problem+json", b'{"code": "in-flight", "type": "urn:tenure:idempotency:other"}', "in-flight"),
        ("application/problem+json; charset=utf-8", b'{"type": "urn:cat-store:export-under-way"}', "export-under-way"),
        ("application/problem+json", b"<html>", ""),
        ("application/problem+json", b"[]", ""),
        ("application/json", b'{"code": "in-flight"}', ""),
    ],
)
def test_the_code_of_a_problem_is_its_member_or_the_end_of_its_type(content_type: str, body: bytes, code: str) -> None:
    assert problem_code(content_type, body) == code


@pytest.mark.parametrize(
    ("headers", "body", "cut_off"),
    [
        ({"content-length": "5"}, b"", True),
        ({"content-length": "5"}, b"12345", False),
        ({}, b"", False),
        ({"content-length": "5", "content-encoding": "gzip"}, b"1234567", False),
    ],
)
def test_an_answer_whose_end_died_with_its_replica_is_none(headers: dict[str, str], body: bytes, cut_off: bool) -> None:
    assert is_cut_off(headers, body) is cut_off


@pytest.mark.parametrize("body", ["", "{}", "[]", "<html>"])
def test_an_answer_without_an_order_has_no_order_id(body: str) -> None:
    assert Answer(block="storm", kind=Kind.ORDER, body=body).order_id == ""
