"""The whole story, as a person starts it: real servers, real partners, three real replicas."""

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure_testbed import PostgresServer, ServerUnavailableError, ValkeyServer
from tenure_testbed.process import until
from tenure_testbed.pytest_plugin import or_skip

# A minute on an idle machine; most of it is the start of a dozen interpreters, which a busy one draws out.
PATIENCE_S = 300


@pytest.fixture
def mark() -> str:
    """A variable that everything started by the demo inherits, to find what it left behind."""
    with or_skip():
        if reason := PostgresServer.unavailable() or ValkeyServer.unavailable():
            raise ServerUnavailableError(reason)
    return f"TEST_MARK_{secrets.token_hex(8)}"


def start_demo(mark: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cat_store", "demo", "--headless", *arguments],
        env={**os.environ, mark: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_behind(mark: str) -> list[bytes]:
    needle = mark.encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue  # gone meanwhile, or another account's
    return found


# A minute each. CI plays the story on PostgreSQL by the README's own command, before the tests.
@pytest.mark.chaos
@pytest.mark.parametrize("store", ["postgres", "valkey", "valkey-cluster"])
def test_the_story_holds_on_three_real_replicas(mark: str, tmp_path: Path, store: str) -> None:
    report = tmp_path / "demo.json"
    demo = start_demo(mark, "--store", store, "--report", str(report))
    told, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0, told
    lines = told.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "Without locks",
        "With locks",
        "kill -9 the owner",
        "SIGTERM the owner",
        "A paused owner wakes up",
        "A repeated order",
        "The warehouse's alert feed",
        "A count that takes longer than three ticks",
        "The export by hand",
        "The books",
        "The night that has two o'clock twice",
        "Every fact holds.",
    ]
    facts = json.loads(report.read_text())
    assert facts["store"] == store
    assert facts["broken"] == []
    assert facts["without_locks"] == {"batches": 3, "full_counts": 3, "duplicate_invoices": 6}
    assert facts["with_locks"]["batches"] == facts["with_locks"]["full_counts"] == 1
    assert facts["with_locks"]["duplicate_invoices"] == facts["with_locks"]["lost_orders"] == 0
    assert facts["with_locks"]["orders"] > 5
    assert (facts["ttl_s"], facts["tick_s"]) == (3.0, 2)
    assert facts["kill9_takeover_s"] <= facts["ttl_s"] + facts["tick_s"] + 1
    assert facts["kill9"]["repeated_uploads"] == 1
    assert facts["sigterm_handover_s"] <= facts["tick_s"] + 1
    assert facts["fencing"]["stale_writes_refused"] >= 1
    assert facts["fencing"]["final_stock_is_fresh"] is True
    assert facts["orders"]["duplicates"] == 0
    assert facts["orders"]["duplicates_without_keys"] == 40
    assert facts["orders"]["retries"] >= 42
    assert facts["orders"]["killed_in_the_middle"]["orders"] == 2
    assert facts["overlap"]["counts_during_long_count"] == 1
    assert facts["overlap"]["skipped_ticks"] >= 3
    assert facts["manual_export"]["exported"] == [3, 0]
    assert (facts["conflict_status"], facts["forbidden_status"]) == (409, 403)
    assert facts["feed"]["max_connections"] == 1
    assert facts["feed"]["takeover_s"] <= 1.4 * facts["ttl_s"] + 2
    assert facts["dst_night"]["ticks"] == ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"]
    assert facts["dst_night"]["duplicate_invoices"] == facts["dst_night"]["lost_orders"] == 0
    assert left_behind(mark) == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="what is left behind is looked for in /proc")
def test_ctrl_c_ends_everything_that_the_demo_started(mark: str) -> None:
    demo = start_demo(mark)
    # Itself, its warden, the partners and three replicas: in the middle of the first scene.
    until(lambda: len(left_behind(mark)) >= 6 or demo.poll() is not None, "the start of three replicas", PATIENCE_S)
    demo.send_signal(signal.SIGINT)
    told, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, told
    assert "Traceback" not in told
    assert left_behind(mark) == []
