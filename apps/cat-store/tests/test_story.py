"""How the demo ends, what its page's buttons can do and when, and the night that it plays."""

import asyncio
import contextlib
import json
import os
import signal
import webbrowser
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cat_store.demo import story
from cat_store.demo.control import SupervisorError
from cat_store.demo.facts import (
    DstNight,
    Feed,
    Fencing,
    History,
    Kill,
    KilledInTheMiddle,
    ManualExport,
    Orders,
    Overlap,
    Report,
    Term,
    WithLocks,
    WithoutLocks,
)
from cat_store.demo.journal import Entry, NotSeenError
from cat_store.demo.listening import _listener
from cat_store.demo.narrator import Plain
from cat_store.demo.night import ticks_of_the_night
from cat_store.demo.options import DemoOptions
from cat_store.demo.page import showing
from cat_store.demo.stage import Stage
from cat_store.demo.supervisor import StageSupervisor
from cat_store.live.demo_link import DemoError, DemoLink

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
    overlap=Overlap(1, 3),
    manual_export=ManualExport(3, [3, 0], 409, 403),
    conflict_status=409,
    forbidden_status=403,
    feed=Feed(1, 3.5),
    dst_night=DstNight(["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"], 4, 0, 0),
    history=History(events=900, grants=12, broken=[]),
    took_s=40.0,
)


def stand_in(options: DemoOptions) -> Any:
    """Make a stage without servers and processes, whose replicas are up."""

    async def nothing(*_: object, **__: object) -> None:
        return None

    return SimpleNamespace(
        options=options,
        environment={},
        runs_with_locks=True,
        replicas={"cat-store-1": SimpleNamespace()},
        pause=nothing,
        resume=nothing,
        kill=nothing,
        terminate=nothing,
        state_of=lambda _: "up",
        url_of=lambda _: "http://127.0.0.1:3001",
        journal=SimpleNamespace(wait_until=nothing),
        partners=SimpleNamespace(switch_warehouse=nothing),
    )


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DemoOptions:
    options = DemoOptions(headless=True, report=tmp_path / "demo.json")

    @contextlib.asynccontextmanager
    async def open_nothing(asked: DemoOptions) -> AsyncIterator[Any]:
        yield stand_in(asked)

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


# -------------------------------------------------------------------------------------------- the page


async def linked(stage: Any) -> DemoLink:
    return DemoLink(stage.environment["CAT_STORE_DEMO_URL"], "cat-store-1")


async def test_the_replicas_are_told_the_way_to_the_supervisor_which_changes_nothing_during_the_story(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(stage: Any, *_: object) -> Report:
        async with await linked(stage) as link:
            stage.runs_with_locks = False  # as in the first scene
            state = await link.state()
            assert (dict(state.replicas), state.locks) == ({"cat-store-1": "up"}, False)
            with pytest.raises(DemoError, match="The story is being told") as refused:
                await link.slow(3)
            assert refused.value.status == 409
        return REPORT

    monkeypatch.setattr(story, "_play", look)
    assert await story.play(options) == 0


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("broken", [[], ["A fact."]], ids=["holds", "broken"])
async def test_with_the_page_open_the_shop_runs_on_after_the_story_until_it_is_told_to_end(
    options: DemoOptions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: signal.Signals,
    broken: list[str],
) -> None:
    stages: list[Any] = []
    opened: list[str] = []
    told = ""

    async def measured(stage: Any, *_: object) -> Report:
        stages.append(stage)
        while not opened:
            await asyncio.sleep(0.01)
        return msgspec.structs.replace(REPORT, broken=broken)

    @contextlib.asynccontextmanager
    async def plain(_: Stage) -> AsyncIterator[Plain]:
        yield Plain()

    monkeypatch.setattr(story, "_play", measured)
    monkeypatch.setattr(story, "_narrator", plain)
    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(open=opened.append))
    asked = DemoOptions(report=options.report, open_page=True)
    before = signal.getsignal(end)
    playing = asyncio.create_task(story.play(asked))
    async with asyncio.timeout(15):
        while "Press Ctrl-C" not in told:
            await asyncio.sleep(0.01)
            told += capsys.readouterr().out
    assert "The shop runs on, with locks, at http://127.0.0.1:3001/" in told
    assert opened == ["http://127.0.0.1:3001/"]
    assert written(options)["broken"] == broken
    async with await linked(stages[0]) as link:  # the buttons work now
        assert await link.slow(3) == "The warehouse takes 3 s for each page of a count: ticks during one are skipped."
        assert await link.act("pause", "cat-store-1")
    os.kill(os.getpid(), end)
    assert await playing == (1 if broken else 0)
    assert signal.getsignal(end) == before


async def test_without_a_browser_the_story_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []

    def none() -> None:
        asked.append(None)
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    async with showing(cast("Stage", stand_in(DemoOptions(open_page=True)))), asyncio.timeout(15):
        while not asked:
            await asyncio.sleep(0.01)


async def test_no_browser_is_opened_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "get", lambda: pytest.fail("a browser was looked for"))
    async with showing(cast("Stage", stand_in(DemoOptions()))):
        await asyncio.sleep(0.05)


def test_a_headless_run_with_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="--open and --headless are given together"):
        DemoOptions(headless=True, open_page=True)


@pytest.mark.parametrize("verb", ["pause", "resume", "kill", "stop", "start"])
async def test_no_replica_is_touched_during_the_story(verb: str) -> None:
    supervisor = StageSupervisor(cast("Stage", stand_in(DemoOptions())))
    with pytest.raises(SupervisorError, match="The story is being told"):
        await getattr(supervisor, verb)("cat-store-1")
    with pytest.raises(SupervisorError, match="The story is being told"):
        await supervisor.restart(locks=False)


# ------------------------------------------------------------------------------------------- the night


def test_the_schedule_names_both_0200_of_the_night_that_has_it_twice() -> None:
    assert [tick.isoformat() for tick in ticks_of_the_night()] == [
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:00:00+01:00",
    ]


# -------------------------------------------------------------------------------------------- the feed


@pytest.mark.parametrize(
    ("said", "listener"),
    [
        # It was paused, lost the feed meanwhile, and says so after the next one has it.
        ([(1, "connected"), (2, "connected"), (1, "disconnected")], "cat-store-2"),
        ([(1, "connected"), (1, "disconnected")], None),
        ([(1, "connected"), (1, "disconnected"), (1, "connected")], "cat-store-1"),
        # Killed, and started again since: its last word is from before.
        ([(3, "connected")], None),
        ([], None),
    ],
)
def test_who_listens_is_told_by_the_last_word_of_each_replica(
    said: list[tuple[int, str]], listener: str | None
) -> None:
    entries = [
        Entry(number, 0.0, f"cat-store-{which}", "INFO", f"feed.{what}", "")
        for number, (which, what) in enumerate(said, start=1)
    ]
    stage = SimpleNamespace(
        journal=SimpleNamespace(latest=lambda: reversed(entries)),
        launched={"cat-store-1": 0, "cat-store-2": 0, "cat-store-3": 5},
    )
    assert _listener(cast("Stage", stage)) == listener
