"""What a person meets at the command line when something is wrong."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest

from cat_store import logs
from cat_store.cli import main
from tenure_testbed import free_port


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A replica that starts where it should have refused would run for ever: send it the signal that ends one."""
    signal.setitimer(signal.ITIMER_REAL, 60)
    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, postgres_url: str, valkey_url: str, partners_url: str) -> None:
    # The test's own handlers stay: logs.configure() is for processes.
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    monkeypatch.setenv("CAT_STORE_DATABASE_URL", postgres_url)
    monkeypatch.setenv("CAT_STORE_VALKEY_URL", valkey_url)
    monkeypatch.setenv("CAT_STORE_PORT", "0")
    monkeypatch.setenv("CAT_STORE_ACCOUNTING_URL", f"{partners_url}/accounting")
    monkeypatch.setenv("CAT_STORE_WAREHOUSE_URL", f"{partners_url}/warehouse")
    monkeypatch.setenv("CAT_STORE_START_WITHIN", "2")


def test_a_replica_without_settings_says_which_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CAT_STORE_DATABASE_URL")
    monkeypatch.setenv("CAT_STORE_LOCK_TTL", "-1")
    assert main(["replica"]) == 2
    told = capsys.readouterr().err
    assert "CAT_STORE_DATABASE_URL is missing" in told
    assert "CAT_STORE_LOCK_TTL (how long a lease lives without a renewal) is '-1': it must be more than 0" in told


def test_a_replica_on_a_database_that_was_not_migrated_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replica"]) == 1
    assert "run `cat-store migrate`" in capsys.readouterr().err


def test_a_replica_without_a_database_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CAT_STORE_DATABASE_URL", f"postgresql+asyncpg://shop:secret@127.0.0.1:{free_port()}/shop")
    assert main(["replica"]) == 1
    told = capsys.readouterr().err
    assert "is CAT_STORE_DATABASE_URL right?" in told
    assert "secret" not in told


def test_a_replica_without_its_valkey_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate"]) == 0
    monkeypatch.setenv("CAT_STORE_VALKEY_URL", f"redis://127.0.0.1:{free_port()}/0")
    assert main(["replica"]) == 1
    assert "is CAT_STORE_VALKEY_URL right?" in capsys.readouterr().err


def test_a_replica_whose_port_is_taken_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("CAT_STORE_PORT", str(taken.getsockname()[1]))
        assert main(["replica"]) == 1
    assert "Look at CAT_STORE_HOST and CAT_STORE_PORT" in capsys.readouterr().err


def test_migrate_needs_nothing_but_the_database(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("VALKEY_URL", "ACCOUNTING_URL", "WAREHOUSE_URL"):
        monkeypatch.delenv(f"CAT_STORE_{name}")
    assert main(["migrate"]) == 0
    assert main(["migrate", "--catalogue"]) == main(["migrate", "--catalogue"]) == 0
    assert main(["migrate", "--to", "base"]) == 0
    assert main(["migrate", "--to", "0042"]) == 1
    assert "0042" in capsys.readouterr().err
    monkeypatch.delenv("CAT_STORE_DATABASE_URL")
    assert main(["migrate"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ttl", "0.5"], "--ttl is 0.5: give 1 to 60 seconds."),
        (["--ttl", "nan"], "--ttl is nan"),
        (["--tick", "1"], "--tick is 1: give 2 to 30 seconds"),
        (["--tick", "7"], "that divide a minute"),
        (["--store", "sqlite"], "--store is 'sqlite': the demo knows postgres, valkey, valkey-cluster."),
        (["--report", "/nowhere/at/all/demo.json"], "which is no directory"),
    ],
)
def test_wrong_options_of_the_demo_are_refused_before_anything_starts(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 2
    assert said in capsys.readouterr().err
