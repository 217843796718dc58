"""Ports, logs and the start that every server shares."""

import itertools
import socket
from pathlib import Path

import pytest

from tenure_testbed import PortTakenError, free_port
from tenure_testbed.startup import PORT_ATTEMPTS, ServerLog, find_a_port


def taken(port: int) -> None:
    raise PortTakenError(f"port {port} is taken")


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()


def test_ports_are_tried_until_one_is_free() -> None:
    tried: list[int] = []

    def boot(port: int) -> None:
        tried.append(port)
        if port < 3:
            taken(port)

    assert find_a_port(boot, itertools.count(1).__next__) == 3
    assert tried == [1, 2, 3]


def test_the_search_for_a_port_ends() -> None:
    ports = itertools.count(1)
    with pytest.raises(PortTakenError, match=f"port {PORT_ATTEMPTS} is taken"):
        find_a_port(taken, ports.__next__)


def test_a_fixed_port_is_tried_once() -> None:
    with pytest.raises(PortTakenError, match="port 7 is taken"):
        find_a_port(taken, 7)


def test_the_log_of_an_earlier_start_explains_no_later_one(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "log")
    assert log.tail() == "(no log: No such file or directory)"
    with log.begin() as handle:
        handle.write(b"Address already in use\n")
    assert log.tail() == "Address already in use"
    with log.begin() as handle:
        assert log.tail() == "(the log is empty)"
        handle.write(b"out of memory\n" * 100)
    assert log.tail().splitlines() == ["out of memory"] * 20
