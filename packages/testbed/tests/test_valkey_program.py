"""Which valkey-server is run: the wheel's, or the one that a variable names."""

from pathlib import Path

import pytest

from tenure_testbed import ServerUnavailableError, ValkeyServer
from tenure_testbed.valkey_program import VALKEY_PROGRAM, find_program


def test_a_program_that_is_named_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "valkey-of-another-version"
    own.symlink_to(find_program("valkey-server"))
    monkeypatch.setenv(VALKEY_PROGRAM, str(own))
    assert find_program("valkey-server") == own
    with ValkeyServer() as server:
        assert server.execute("PING") == "PONG"


def test_a_program_that_is_none_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VALKEY_PROGRAM, "/no/such/program")
    with pytest.raises(ServerUnavailableError, match="TENURE_TEST_VALKEY_PROGRAM names '/no/such/program'"):
        find_program("valkey-server")
