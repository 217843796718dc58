"""The recorder: every call is written down before it is sent, and again before its caller goes on."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from tenure import InMemoryLockStore, Locks
from tenure.store import Acquired, ChecksServer, Claim, Held, ListsLocks, QueuesWaiters, RenewsMany, WakesWaiters
from tenure.testing import (
    Case,
    FaultyStore,
    LoopClock,
    ManualClock,
    lock_store_contract,
    run_virtual,
    virtual,
)
from tenure.testing.history import HistoryError, HistoryRecorder, check_event, check_history

manual = ManualClock()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def brief(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What was recorded, without times, numbers and owners."""
    return [
        (event["what"], event.get("op") or event.get("result") or event.get("reason") or event.get("token"))
        for event in events
    ]


@pytest.fixture
def events() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def recorder(events: list[dict[str, Any]]) -> HistoryRecorder:
    return HistoryRecorder(events, process="a", clock=ManualClock())


# ---------------------------------------------------------------------------------- recorded stores


@pytest.mark.parametrize(
    "case",
    lock_store_contract(
        lambda: HistoryRecorder([], process="a", clock=manual).around(InMemoryLockStore(manual)),
        concurrent=True,
        advance_time=manual.advance,
        capabilities={RenewsMany, ListsLocks, WakesWaiters, QueuesWaiters},
    ),
    ids=str,
)
async def test_a_recorded_store_keeps_the_contract(case: Case) -> None:
    await case.run()


CAPABILITIES: list[type] = [RenewsMany, ListsLocks, WakesWaiters, ChecksServer, QueuesWaiters]


@pytest.mark.parametrize("hidden", [[], *([one] for one in CAPABILITIES[:3]), CAPABILITIES[:3]])
def test_a_recorded_store_has_the_capabilities_of_its_own(hidden: list[type], recorder: HistoryRecorder) -> None:
    inner = FaultyStore(InMemoryLockStore(manual), without=hidden)
    store: Any = recorder.around(inner)
    for capability in CAPABILITIES:
        assert isinstance(store, capability) is isinstance(inner, capability)
    assert store.reach == "process"
    assert store.inner is inner
    assert type(store).__name__ == "RecordingStore"


class Checked:
    """A store that can be checked, and whose answers a test sets."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Any:
        return self.answer

    renew = acquire

    async def release(self, key: str, owner: str) -> Any:
        return self.answer

    async def renew_many(self, claims: Sequence[Claim]) -> Any:
        return self.answer

    async def check(self) -> Sequence[Any]:
        return ["found"]


async def test_a_check_passes_through_unrecorded(events: list[Any], recorder: HistoryRecorder) -> None:
    store: Any = recorder.around(Checked())
    assert isinstance(store, ChecksServer)
    found: Any = await store.check()
    assert found == ["found"]
    assert events == []
    assert getattr(store, "reach", None) == "cluster"


async def test_a_grant_that_is_heard_of_is_the_answer_of_the_last_asking(
    events: list[Any], recorder: HistoryRecorder
) -> None:
    inner = InMemoryLockStore(manual)
    store: Any = recorder.around(inner)
    await inner.acquire("k", "x", 3000)
    assert isinstance(await store.acquire_queued("k", "y", 3000, 2000), Held)
    assert isinstance(await store.acquire_queued("k", "y", 3000, 2000), Held)
    await inner.release("k", "x")
    granted = await store.granted("k", "y")
    for event in events:
        check_event(event)
    # The first ended with the second, in nothing that was known.
    assert brief(events) == [("invoke", "acquire"), ("return", "unknown"), ("invoke", "acquire"), ("return", "ok")]
    assert [event.get("place_ms") for event in events] == [2000, None, 2000, None]
    assert events[-1]["token"] == granted.token
    assert events[-1]["call"] == events[-2]["call"]


async def test_a_grant_that_is_heard_of_while_its_owner_asks_counts_from_the_answer_on(
    events: list[Any], recorder: HistoryRecorder
) -> None:
    inner = InMemoryLockStore(manual)
    slow = FaultyStore(inner, clock=manual)
    store: Any = recorder.around(slow)
    await inner.acquire("k", "x", 3000)
    slow.on("acquire_queued").slow_reply(0.5, times=1)
    asking = asyncio.get_running_loop().create_task(store.acquire_queued("k", "y", 3000, 2000))
    await slow.executed("acquire_queued")
    await inner.release("k", "x")
    granted = await store.granted("k", "y")
    assert brief(events) == [("invoke", "acquire")]
    await manual.advance(1)
    assert isinstance(await asking, Held)
    assert brief(events) == [("invoke", "acquire"), ("return", "ok")]
    assert events[-1]["token"] == granted.token


async def test_a_message_that_is_late_by_more_than_a_ttl_is_recorded_as_no_grant(events: list[Any]) -> None:
    store: Any = HistoryRecorder(events, process="a", clock=manual).around(InMemoryLockStore(manual))
    await store.inner.acquire("k", "x", 10_000)
    assert isinstance(await store.acquire_queued("k", "y", 9000, 20_000), Held)
    await manual.advance(9.5)
    await store.inner.release("k", "x")
    await store.granted("k", "y")
    assert brief(events) == [("invoke", "acquire")]
    await store.release("k", "y")
    assert brief(events)[1:] == [("return", "unknown"), ("invoke", "release"), ("return", "ok")]


async def test_every_answer_is_recorded(events: list[Any], recorder: HistoryRecorder) -> None:
    store: Any = recorder.around(InMemoryLockStore(manual))
    first = await store.acquire("k", "x", 3000)
    assert isinstance(await store.acquire("k", "y", 3000), Held)
    assert await store.renew("k", "x", 3000)
    assert not await store.renew("k", "y", 3000)
    assert await store.renew_many([Claim("k", "x", 3000), Claim("k", "y", 3000)]) == [True, False]
    assert not await store.release("k", "y")
    assert await store.release("k", "x")
    for event in events:
        check_event(event)
    assert brief(events) == [
        ("invoke", "acquire"),
        ("return", "ok"),
        ("invoke", "acquire"),
        ("return", "no"),
        ("invoke", "renew"),
        ("return", "ok"),
        ("invoke", "renew"),
        ("return", "no"),
        ("invoke", "renew"),
        ("invoke", "renew"),
        ("return", "ok"),
        ("return", "no"),
        ("invoke", "release"),
        ("return", "no"),
        ("gave_back", first.token),
        ("invoke", "release"),
        ("return", "ok"),
    ]
    assert events[1]["token"] == first.token
    assert len({event["owner"] for event in events if event["what"] == "invoke"}) == 2


async def test_no_owner_is_written_down(tmp_path: Path) -> None:
    with HistoryRecorder(tmp_path / "a.jsonl", process="a", clock=manual) as recorder:
        await recorder.around(InMemoryLockStore(manual)).acquire("k", "a-secret-owner", 3000)
    assert "secret" not in (tmp_path / "a.jsonl").read_text()


async def test_a_call_stands_in_the_file_before_it_is_sent_and_its_answer_before_the_caller_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.jsonl"
    seen: list[list[tuple[Any, ...]]] = []

    class Looks(Checked):
        async def acquire(self, key: str, owner: str, ttl_ms: int) -> Any:
            seen.append(brief(read(path)))
            return Held()

    recorder = HistoryRecorder(path, process="a")
    await recorder.around(Looks()).acquire("k", "x", 3000)
    assert seen == [[("invoke", "acquire")]]
    assert brief(read(path)) == [("invoke", "acquire"), ("return", "no")]


@pytest.mark.parametrize("op", ["acquire", "renew", "release", "renew_many"])
@pytest.mark.parametrize("raised", [ConnectionError("no"), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_a_call_that_raises_is_unknown_and_raises_on(
    op: str, raised: BaseException, events: list[Any], recorder: HistoryRecorder
) -> None:
    class Raises:
        async def acquire(self, *_: Any) -> Any:
            raise raised

        renew = release = renew_many = acquire

    inner: Any = Raises()
    store: Any = recorder.around(inner)
    arguments = {"release": ("k", "x"), "renew_many": ([Claim("k", "x", 3000)],)}.get(op, ("k", "x", 3000))
    with pytest.raises(type(raised)):
        await getattr(store, op)(*arguments)
    assert events[-1]["result"] == "unknown"
    assert events[-1]["error"] == type(raised).__name__


@pytest.mark.parametrize(
    ("op", "reply"),
    [("acquire", None), ("acquire", Acquired(0)), ("acquire", Acquired(True)), ("renew", 1), ("release", "yes")],
)
async def test_an_answer_that_the_contract_does_not_allow_is_unknown_and_passed_on(
    op: str, reply: Any, events: list[Any], recorder: HistoryRecorder
) -> None:
    store: Any = recorder.around(Checked(reply))
    arguments = ("k", "x") if op == "release" else ("k", "x", 3000)
    assert await getattr(store, op)(*arguments) is reply
    assert (events[-1]["result"], events[-1]["error"]) == ("unknown", "StoreReplyError")


@pytest.mark.parametrize("reply", [None, [True], [True, 1], "yes", [None, None]])
async def test_of_many_renewals_each_has_its_own_answer_or_none(
    reply: Any, events: list[Any], recorder: HistoryRecorder
) -> None:
    store: Any = recorder.around(Checked(reply))
    assert await store.renew_many([Claim("k", "x", 3000), Claim("l", "y", 3000)]) is reply
    results = [event["result"] for event in events if event["what"] == "return"]
    assert results == (["ok", "unknown"] if reply == [True, 1] else ["unknown", "unknown"])


async def test_a_call_that_is_never_made_is_not_recorded(events: list[Any], recorder: HistoryRecorder) -> None:
    store: Any = recorder.around(InMemoryLockStore(manual))
    for arguments in (("", "x", 1), ("k", "\0", 1), ("k", "x", None), ("k", "x", True), (5, "x", 1)):
        with pytest.raises(ValueError, match=r"."):
            await store.acquire(*arguments)
    assert events == []


# ------------------------------------------------------------------------------------------- Locks


@virtual
async def test_losses_and_ends_are_recorded() -> None:
    events: list[dict[str, Any]] = []
    clock = LoopClock()
    recorder = HistoryRecorder(events, process="a", clock=clock)
    faulty = FaultyStore(InMemoryLockStore(clock), clock=clock)
    async with Locks(recorder.around(faulty), ttl=3, clock=clock, hooks=[recorder]) as locks:
        events.clear()  # the start asks too
        given = await locks.acquire("given back")
        await given.release()
        lost = await locks.acquire("lost")
        faulty.on("*").hang()
        assert await lost.lost.wait() is not None
        faulty.heal()
        left = await locks.acquire("left to expire")
        await locks.acquirer.let_expire(left, 0.5)
        await locks.acquire("closed")
    ends = [(event["what"], event["key"]) for event in events if event["what"] in ("lost", "gave_back")]
    assert ends == [
        ("gave_back", "given back"),
        ("lost", "lost"),
        ("gave_back", "left to expire"),
        ("lost", "closed"),
    ]
    at = {key: event["at"] for event in events if (key := event.get("key")) and event["what"] == "lost"}
    sent = next(event["at"] for event in events if event.get("key") == "lost" and event["what"] == "invoke")
    assert at["lost"] == pytest.approx(sent + 2.97)


# -------------------------------------------------------------------------------------------- sinks


def test_a_sink_may_be_a_callable(events: list[Any]) -> None:
    recorder = HistoryRecorder(events.append, process="a", clock=manual)
    recorder.note("phase", name="calm")
    assert events == [{"what": "phase", "at": manual.now(), "process": "a", "name": "calm"}]


def test_by_default_the_clock_is_the_one_that_processes_of_a_host_share(events: list[Any]) -> None:
    import time

    before = time.monotonic()
    recorder = HistoryRecorder(events, process="a")
    recorder.note("phase", name="calm")
    assert before <= events[0]["at"] <= recorder.now() <= time.monotonic()


def test_an_event_may_be_about_another_process_at_another_time(events: list[Any], recorder: HistoryRecorder) -> None:
    recorder.note("paused", process="b", at=5.0, by="nemesis")
    assert events == [{"what": "paused", "at": 5.0, "process": "b", "by": "nemesis"}]


def test_a_key_of_a_class_of_its_own_is_its_text(events: list[Any], recorder: HistoryRecorder) -> None:
    class Jobs(StrEnum):
        EXPORT = "export"

    recorder.note("believes", key=Jobs.EXPORT, token=5)
    assert type(events[0]["key"]) is str


@pytest.mark.parametrize(("what", "fields"), [("beleives", {}), ("believes", {"key": "k"}), ("phase", {"nam": "x"})])
def test_what_is_no_event_is_refused_and_not_written(
    what: str, fields: Any, events: list[Any], recorder: HistoryRecorder
) -> None:
    with pytest.raises(HistoryError):
        recorder.note(what, **fields)
    assert events == []


def test_a_process_must_have_a_name() -> None:
    with pytest.raises(HistoryError, match="'process'"):
        HistoryRecorder([], process="")


def test_a_closed_recorder_refuses_events(tmp_path: Path) -> None:
    recorder = HistoryRecorder(tmp_path / "a.jsonl", process="a")
    recorder.note("phase", name="calm")
    recorder.close()
    recorder.close()
    with pytest.raises(HistoryError, match="is closed"):
        recorder.note("phase", name="storm")
    assert "closed" in repr(recorder)
    assert len(read(tmp_path / "a.jsonl")) == 1


def test_any_key_can_be_written_and_read(tmp_path: Path) -> None:
    keys = ["żółć", "\u2028", '"}\n{"', "😀" * 500, "\x18", "\x7f"]
    path = tmp_path / "a.jsonl"
    with HistoryRecorder(path, process="ż") as recorder:
        for token, key in enumerate(keys, 1):
            recorder.note("gave_back", key=key, token=token)
    assert [event["key"] for event in read(path)] == keys
    assert check_history(path).counts["torn lines"] == 0


def test_threads_and_recorders_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    recorders = [HistoryRecorder(path, process=f"p{number}") for number in range(2)]

    def work(recorder: HistoryRecorder) -> None:
        for token in range(1, 301):
            recorder.note("exit", key="k" * 400, token=token)

    threads = [threading.Thread(target=work, args=[recorder]) for recorder in recorders * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for recorder in recorders:
        recorder.close()
    assert len(read(path)) == 1200


KILLED = """
import os, signal, sys
from pathlib import Path
from tenure.testing.history import HistoryRecorder
recorder = HistoryRecorder(Path(sys.argv[1]), process="a")
for token in range(1, 51):
    recorder.note("exit", key="k", token=token)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_takes_nothing_along_that_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [event["token"] for event in read(path)] == list(range(1, 51))


def test_a_process_that_is_started_again_ends_the_line_that_was_left(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with HistoryRecorder(path, process="a") as recorder:
        recorder.note("phase", name="calm")
    with path.open("ab") as file:
        file.write(b'{"what":"invoke","at":1.0,"pro')
    with HistoryRecorder(path, process="a") as recorder:
        recorder.note("phase", name="storm")
    report = check_history(path)
    assert report.counts["torn lines"] == 1
    assert report.counts["events"] == 2


def test_a_disk_that_is_full_is_an_error(tmp_path: Path) -> None:
    with (
        HistoryRecorder("/dev/full", process="a") as recorder,
        pytest.raises(OSError, match="No space left"),
    ):
        recorder.note("phase", name="calm")


def test_a_recorder_in_a_loop_that_ends_under_a_call_leaves_it_open(events: list[Any]) -> None:
    async def main() -> None:
        clock = LoopClock()
        faulty = FaultyStore(InMemoryLockStore(clock), clock=clock)
        faulty.on("acquire").hang()
        coroutine: Any = HistoryRecorder(events, process="a", clock=clock).around(faulty).acquire("k", "x", 1)
        coroutine.send(None)
        coroutine.close()

    run_virtual(main)
    assert brief(events) == [("invoke", "acquire")]
