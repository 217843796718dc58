"""How the demo ends when it cannot say that everything holds."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from cat_store.demo import story
from cat_store.demo.facts import Fencing, Kill, KilledInTheMiddle, Orders, Report, Term, WithLocks, WithoutLocks
from cat_store.demo.journal import NotSeenError
from cat_store.demo.options import DemoOptions

REPORT = Report(
    store="postgres",
    ttl_s=3.0,
    tick_s=2,
    without_locks=WithoutLocks(3, 3, 6),
    with_locks=WithLocks(1, 1, 8),
    kill9=Kill(4.0, 1, 0),
    kill9_takeover_s=4.0,
    sigterm=Term(2.0, 0),
    sigterm_handover_s=2.0,
    fencing=Fencing(12, True, 12, 9, 5.0),
    orders=Orders(22, 42, 0, 40, KilledInTheMiddle("cat-store-3", 2, 2, 40, "201", "409 response-not-stored")),
    took_s=40.0,
)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DemoOptions:
    options = DemoOptions(headless=True, report=tmp_path / "demo.json")

    @contextlib.asynccontextmanager
    async def open_nothing(_: DemoOptions) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(options=options)

    monkeypatch.setattr(story, "open_stage", open_nothing)
    return options


def written(options: DemoOptions) -> dict[str, object]:
    assert options.report is not None
    report: dict[str, object] = json.loads(options.report.read_text())
    return report


@pytest.mark.parametrize(
    ("broken", "code"),
    [([], 0), (["With locks accounting booked 2 batches, and not one."], 1)],
    ids=["holds", "broken"],
)
async def test_a_fact_that_does_not_hold_fails_the_command(
    options: DemoOptions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: list[str],
    code: int,
) -> None:
    async def measured(*_: object) -> Report:
        return msgspec.structs.replace(REPORT, broken=broken)

    monkeypatch.setattr(story, "_play", measured)
    assert await story.play(options) == code
    assert capsys.readouterr().out.splitlines() == (broken or ["Every fact holds."])
    assert written(options)["broken"] == broken
    assert written(options)["kill9_takeover_s"] == 4.0


async def test_a_story_that_breaks_off_fails_the_command_and_says_where(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def breaks_off(*_: object) -> Report:
        raise NotSeenError("No replica told of stock.reconciled within 30 s.")

    monkeypatch.setattr(story, "_play", breaks_off)
    assert await story.play(options) == 1
    assert "The story broke off: No replica told of stock.reconciled" in capsys.readouterr().out
    assert "stock.reconciled" in str(written(options)["broken"])
