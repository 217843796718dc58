import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure_loadtests.command_line import choose_contenders, main
from tenure_testbed import ValkeyServer


def test_contenders_are_chosen_by_the_beginning_of_their_name_or_a_pattern() -> None:
    names = [entry.name for entry in choose_contenders("tenure.store.p,*.advisory")]
    assert names == ["floor.postgres.advisory", "tenure.store.postgres", "peer.postgres.advisory"]


@pytest.mark.parametrize(
    ("arguments", "tells"),
    [(["--only", "sprint"], "no scenario sprint"), (["--contenders", "nobody"], "No contender is called nobody")],
)
def test_a_name_that_is_none_is_refused(arguments: list[str], tells: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert tells in capsys.readouterr().err


def test_the_smallest_benchmark_runs_on_a_real_server(
    tmp_path: Path, or_skip: Callable[[str | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    or_skip(ValkeyServer.unavailable())
    contenders = "floor.valkey.evalsha-redis,tenure.locks.valkey-redis"
    assert main(["--quick", "--only", "section", "--contenders", contenders, "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["absences"] == []
    [cell] = record["cells"]
    assert cell["contender"] == "tenure.locks.valkey-redis"
    assert cell["figures"]["sections_per_s"] > 0
    assert cell["figures"]["overlaps"] == 0
    # What was run can be rendered again.
    capsys.readouterr()
    assert main(["report", str(tmp_path / "bench.json")]) == 0
    assert "tenure.locks.valkey-redis" in capsys.readouterr().out
