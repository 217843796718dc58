"""From facts to HTML, without a server."""

import dataclasses
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from cat_store.live.demo_link import DemoNews, DemoState
from cat_store.live.facts import EventFact, Facts, OrderFact, PartnersFact, ReplicaFact, SharedFacts, ShopFacts
from cat_store.live.frames import Frame, following, message, version_of
from cat_store.live.markup import Html, h
from cat_store.live.picture import Picture, Place, Steady, event_view, hue_of, paint
from cat_store.live.sections import SECTIONS, event_item, wait_text
from tenure.store import LockRecord

PLACE = Place("cat-store-1", 30_000, ZoneInfo("Europe/Warsaw"))
AT = datetime(2026, 11, 30, 1, 0, 5, tzinfo=UTC)


def replica(number: int, **changes: object) -> ReplicaFact:
    fact = ReplicaFact(
        instance=f"cat-store-{number}",
        address=f"http://127.0.0.1:300{number}",
        locks=True,
        leads={},
        tokens={},
        up_for_s=60.0,
        silent_for_s=0.5,
        stopped=False,
        connected=True,
    )
    return dataclasses.replace(fact, **changes)  # type: ignore[arg-type]


def facts(*replicas: ReplicaFact, **changes: object) -> Facts:
    made = Facts(
        now_ms=1_000_000, shared=SharedFacts(replicas, ()), shared_at_ms=1_000_000, locks=(), locks_at_ms=1_000_000
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def painted(*replicas: ReplicaFact, **changes: object) -> Picture:
    return paint(facts(*replicas, **changes), PLACE, Steady())


def lock(key: str, instance: str, token: int, expires_in_ms: int = 20_000) -> LockRecord:
    return LockRecord(key, f"{instance}:{'5ec2e7' * 5}aa", token, expires_in_ms)


# ------------------------------------------------------------------------------------------------------- replicas


@pytest.mark.parametrize(
    ("told", "state"),
    [
        (replica(2), "up"),
        (replica(2, silent_for_s=2.9), "up"),
        (replica(2, silent_for_s=3.1), "paused"),
        (replica(2, silent_for_s=3.1, connected=False), "gone"),
        (replica(2, connected=False), "up"),  # its session was replaced a moment ago
        (replica(2, stopped=True), "gone"),
    ],
)
def test_silence_and_the_session_tell_what_a_replica_is(told: ReplicaFact, state: str) -> None:
    assert {view.instance: view.state for view in painted(told).replicas}["cat-store-2"] == state


def test_who_started_a_process_knows_better_than_its_silence() -> None:
    demo = DemoState({"cat-store-2": "paused", "cat-store-3": "gone"})
    states = {view.instance: view.state for view in painted(replica(2), demo=demo).replicas}
    assert states == {"cat-store-1": "up", "cat-store-2": "paused", "cat-store-3": "gone"}


def test_a_replica_that_went_long_ago_is_shown_no_more() -> None:
    old = replica(2, stopped=True, silent_for_s=601.0)
    assert [view.instance for view in painted(replica(1), old).replicas] == ["cat-store-1"]


def test_the_replica_that_paints_is_up_although_nobody_heard_of_it() -> None:
    (view,) = painted().replicas
    assert (view.instance, view.state, view.here, view.origin) == ("cat-store-1", "up", True, None)


def test_a_replica_keeps_its_colour_whoever_comes_and_goes() -> None:
    assert [hue_of(f"cat-store-{number}") for number in (1, 2, 3, 7)] == [1, 2, 3, 1]
    assert 1 <= hue_of("3f2a9c") <= 6
    assert 1 <= hue_of("host" + "9" * 5000) <= 6


def test_replicas_without_locks_are_an_alarm() -> None:
    html = SECTIONS["notices"](painted(replica(2, locks=False), replica(3, locks=False)))
    assert "The locks are off" in html
    assert "Each of cat-store-2, cat-store-3 runs every job" in html
    assert SECTIONS["notices"](painted(replica(2))) == ""


# --------------------------------------------------------------------------------------------------------- leases


def test_kinds_of_keys_are_told_apart() -> None:
    picture = painted(
        replica(1, leads={"feed": 4}),
        locks=[
            lock("export", "cat-store-1", 1),
            lock("export:owner", "cat-store-1", 2),
            lock("export@2026-11-30T01:00:00Z", "cat-store-1", 3),
            lock("feed", "cat-store-1", 4),
        ],
    )
    assert [view.kind for view in picture.leases or ()] == ["run", "lease", "slot", "leadership"]
    assert picture.replicas[0].leads == ["feed"]
    assert "feed" not in picture.replicas[0].holds


def test_a_key_that_is_free_shows_its_last_token_and_who_had_it() -> None:
    picture = painted(replica(1, tokens={"export": 5}), replica(2, tokens={"export": 9}))
    (view,) = picture.leases or ()
    assert (view.ends_at_ms, view.token, view.holder) == (None, 9, "cat-store-2")
    assert "last: cat-store-2" in SECTIONS["leases"](picture)


def test_a_countdown_that_was_not_renewed_stands_where_it_stood() -> None:
    steady = Steady()
    first = paint(facts(locks=[lock("a", "cat-store-1", 1, 20_000)]), PLACE, steady)
    later = facts(now_ms=1_001_003, locks_at_ms=1_001_003, locks=[lock("a", "cat-store-1", 1, 18_990)])
    assert SECTIONS["leases"](paint(later, PLACE, steady)) == SECTIONS["leases"](first)
    renewed = facts(now_ms=1_002_000, locks_at_ms=1_002_000, locks=[lock("a", "cat-store-1", 1, 30_000)])
    assert SECTIONS["leases"](paint(renewed, PLACE, steady)) != SECTIONS["leases"](first)


def test_the_page_holds_no_owner() -> None:
    picture = painted(replica(1), locks=[lock("a", "cat-store-1", 1)])
    assert "5ec2e7" not in "".join(render(picture) for render in SECTIONS.values())


# -------------------------------------------------------------------------------------------------- other sections


def test_what_should_not_be_is_marked_in_words_too() -> None:
    html = SECTIONS["partners"](painted(partners=PartnersFact(3, 6, 0, 3, 3, 3)))
    assert html.count("wrong") == html.count("(should not be)") == 3
    assert "feed" not in html
    with_feed = SECTIONS["partners"](painted(partners=PartnersFact(1, 0, 0, 1, 0, 1, 1, 2, 4)))
    assert "feed connections" in with_feed
    assert with_feed.count("(should not be)") == 1


def test_orders_show_what_became_of_their_invoices() -> None:
    orders = [
        OrderFact("0" * 28 + "aaaaaaaa", 1205, AT, None, invoiced=False),
        OrderFact("0" * 28 + "bbbbbbbb", 99, AT, "acc_1", invoiced=False),
        OrderFact("0" * 28 + "cccccccc", 100, AT, "acc_1", invoiced=True),
    ]
    html = SECTIONS["orders"](painted(shop=ShopFacts(10_001, 2, 1, orders, ())))
    assert "more than 10000" in html
    for text in ("12.05", "0.99", "acc_1, begun", "1 of them in a batch that was begun", "02:00:05"):
        assert text in html


@pytest.mark.parametrize(
    ("state", "buttons"),
    [("up", ["pause", "kill", "stop"]), ("paused", ["resume", "kill"]), ("gone", ["start"])],
)
def test_a_replica_has_the_buttons_of_its_state(state: str, buttons: list[str]) -> None:
    demo = DemoState({"cat-store-2": state})  # type: ignore[dict-item]
    html = SECTIONS["replicas"](painted(replica(1), replica(2), demo=demo))
    assert [verb for verb in ("pause", "resume", "kill", "stop", "start") if f'id="{verb}-cat-store-2"' in html] == [
        verb for verb in ("pause", "resume", "kill", "stop", "start") if verb in buttons
    ]


def test_without_a_supervisor_there_is_no_button() -> None:
    picture = painted(replica(1), replica(2))
    assert "<button" not in "".join(render(picture) for render in SECTIONS.values())


def test_what_became_of_an_action_is_shown() -> None:
    failed = DemoState({}, news=DemoNews(1, "It <b>failed</b>.", failed=True))
    assert '<p class="news failed">It &lt;b&gt;failed&lt;/b&gt;.</p>' in SECTIONS["demo"](painted(demo=failed))
    assert "being restarted" in SECTIONS["demo"](painted(demo=DemoState({}, busy=True)))


def test_a_job_is_named_without_its_module() -> None:
    event = EventFact(1, AT, "cat-store-1", "INFO", "k", "Skipped cat_store.invoices.export:InvoiceExport.run: busy", 3)
    html = event_item(event_view(event, PLACE.zone))
    assert "Skipped InvoiceExport.run: busy" in html
    assert "3 times" in html


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0.0 s"), (2_449, "2.4 s"), (31_000, "31 s"), (119_000, "119 s"), (300_000, "5 min"), (10_800_000, "3 h")],
)
def test_times_are_said_in_the_unit_that_fits(ms: int, text: str) -> None:
    assert wait_text(ms) == text


# --------------------------------------------------------------------------------------------------------- markup


def test_text_is_escaped_and_html_is_not() -> None:
    assert h("p", "<&\"'>", Html("<b>x</b>"), None, 3) == "<p>&lt;&amp;&quot;&#x27;&gt;<b>x</b>3</p>"
    assert h("a", data_x='"><script>', href=None, hidden=True) == '<a data-x="&quot;&gt;&lt;script&gt;" hidden></a>'
    assert h("ul", (h("li", str(number)) for number in range(2))) == "<ul><li>0</li><li>1</li></ul>"
    assert h("p", ["<", ">"]) == "<p>&lt;&gt;</p>"


# --------------------------------------------------------------------------------------------------------- frames


def event(number: int) -> EventFact:
    return EventFact(number, AT, "cat-store-1", "INFO", "k", f"event {number}")


def with_events(*numbers: int) -> Picture:
    return painted(replica(1), shared=SharedFacts([replica(1)], [event(number) for number in numbers]))


def body_of(sent: bytes) -> dict[str, object]:
    import msgspec

    return msgspec.json.decode(sent.split(b"data: ", 1)[1])


def test_nothing_new_is_no_new_version() -> None:
    first = following(Frame(), with_events(1))
    assert following(first, with_events(1)).version == first.version == 1


def test_a_viewer_is_sent_what_changed_since_and_nothing_else() -> None:
    first = following(Frame(), with_events(1))
    second = following(first, with_events(2, 1))
    body = body_of(message("e", second, 1))
    assert body["sections"] == {}
    assert [each["id"] for each in body["events"]] == [2]  # type: ignore[attr-defined]
    everything = body_of(message("e", second, 0))
    assert everything["reset"] is True
    assert set(everything["sections"]) == set(SECTIONS)  # type: ignore[call-overload]


def test_an_event_that_was_committed_late_is_still_sent() -> None:
    first = following(Frame(), with_events(3, 1))
    second = following(first, with_events(3, 2, 1))
    assert [each["id"] for each in body_of(message("e", second, 1))["events"]] == [2]  # type: ignore[attr-defined]


def test_a_message_is_one_line_of_data() -> None:
    sent = message("e", following(Frame(), with_events(1)), 0)
    assert sent.startswith(b"id: e-1\nevent: page\ndata: {")
    assert sent.endswith(b"\n\n")
    assert sent.count(b"\n") == 4


@pytest.mark.parametrize(
    ("last_event_id", "version"),
    [("e-7", 7), ("other-7", 0), (None, 0), ("", 0), ("e-", 0), ("e--7", 0), ("e-7x", 0), ("e-" + "9" * 5000, 0)],
)
def test_only_a_version_of_this_process_counts(last_event_id: str | None, version: int) -> None:
    assert version_of("e", last_event_id) == version
