import pytest

from tenure_loadtests.worker.protocol import (
    Command,
    ProtocolError,
    answer_line,
    command_line,
    error_line,
    read_answer,
    read_command,
)


def test_a_command_arrives_as_it_was_sent() -> None:
    command = Command("cycles", {"tasks": 3, "prefix": "ключ"})
    assert read_command(command_line(command)) == command


def test_an_answer_arrives_as_it_was_sent() -> None:
    assert read_answer(answer_line({"p50_us": 1.5})) == {"p50_us": 1.5}


def test_an_answer_is_one_line() -> None:
    assert answer_line({"text": "one\ntwo"}).count("\n") == 1


def test_a_failure_in_the_process_is_raised_in_the_driver() -> None:
    with pytest.raises(ProtocolError, match="ValueError: no such thing"):
        read_answer(error_line(ValueError("no such thing")))


@pytest.mark.parametrize(
    ("line", "tells"),
    [("", "ended without an answer"), ("Hello\n", "no JSON"), ("[1]\n", "no JSON object"), ("{}", "'ok'")],
)
def test_what_is_no_answer_is_refused(line: str, tells: str) -> None:
    with pytest.raises(ProtocolError, match=tells):
        read_answer(line)


def test_a_command_names_its_work() -> None:
    with pytest.raises(ProtocolError, match="'do'"):
        read_command("{}")
