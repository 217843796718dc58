"""The report: a demo whose facts do not hold must say so."""

from typing import Any

import msgspec
import pytest

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
    broken_facts,
)

HOLDS = Report(
    store="postgres",
    ttl_s=3.0,
    tick_s=2,
    without_locks=WithoutLocks(batches=3, full_counts=3, duplicate_invoices=6),
    with_locks=WithLocks(batches=1, full_counts=1, skipped_ticks=8, orders=30),
    kill9=Kill(takeover_s=6.0, repeated_uploads=1, new_batches=0),
    kill9_takeover_s=6.0,
    sigterm=Term(handover_s=3.0, exit_code=0),
    sigterm_handover_s=3.0,
    fencing=Fencing(stale_writes_refused=12, final_stock_is_fresh=True, stale_count=12, fresh_count=9, paused_s=5.0),
    orders=Orders(22, 42, 0, 40, KilledInTheMiddle("cat-store-3", 2, 2, 40, "201", "409 response-not-stored")),
    overlap=Overlap(counts_during_long_count=1, skipped_ticks=3),
    manual_export=ManualExport(orders=3, exported=[3, 0], conflict_status=409, forbidden_status=403),
    conflict_status=409,
    forbidden_status=403,
    feed=Feed(max_connections=1, takeover_s=6.19),
    dst_night=DstNight(["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"], 4, 0, 0),
    history=History(events=900, grants=12, broken=[]),
    took_s=50.0,
)


def test_a_report_at_its_bounds_holds() -> None:
    assert broken_facts(HOLDS) == []


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        ("without_locks", "batches", 2, "booked 2 batches, and not one for each"),
        ("without_locks", "full_counts", 1, "counted 1 times"),
        ("with_locks", "batches", 2, "With locks accounting booked 2 batches"),
        ("with_locks", "full_counts", 2, "2 full counts were begun"),
        ("with_locks", "duplicate_invoices", 1, "1 invoices were booked twice"),
        ("with_locks", "lost_orders", 1, "1 of 30 orders were never booked"),
        ("kill9", "repeated_uploads", 0, "was not seen through under its own id"),
        ("kill9", "new_batches", 1, "was not seen through under its own id"),
        ("sigterm", "exit_code", -9, "ended with code -9"),
        ("orders", "duplicates", 1, "With keys 1 orders were placed twice"),
        ("orders", "duplicates_without_keys", 0, "nothing was shown"),
        ("fencing", "stale_writes_refused", 0, "No late write"),
        ("fencing", "final_stock_is_fresh", False, "stale count replaced the fresh one"),
        ("overlap", "counts_during_long_count", 2, "During a long count 2 counts were begun"),
        ("overlap", "skipped_ticks", 2, "2 ticks were skipped, and not 3"),
        ("manual_export", "exported", [3, 3], "two replicas exported [3, 3] by hand"),
        ("manual_export", "exported", [0, 0], "two replicas exported [0, 0] by hand"),
        ("feed", "max_connections", 2, "had 2 connections to its feed at once"),
        ("feed", "max_connections", 0, "had 0 connections to its feed at once"),
        ("feed", "takeover_s", 6.21, "The takeover of the feed took 6.21 s, over 6.2 s"),
        ("dst_night", "ticks", ["2026-10-25T02:00:00+02:00"], "had 1 ticks: nothing was shown"),
        ("dst_night", "duplicate_invoices", 2, "2 invoices were booked twice"),
        ("dst_night", "lost_orders", 1, "1 of 4 orders were not booked"),
        ("history", "grants", 0, "has no lease: nothing was checked"),
        ("history", "broken", ["H1 A token came back."], "H1 A token came back."),
    ],
)
def test_each_fact_that_does_not_hold_is_reported(part: str, field: str, value: Any, said: str) -> None:
    changed = msgspec.structs.replace(getattr(HOLDS, part), **{field: value})
    (sentence,) = broken_facts(msgspec.structs.replace(HOLDS, **{part: changed}))
    assert said in sentence


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("orders", 1, "Of 2 orders in the replica that was killed 1 were placed"),
        ("before_the_commit", "409 outcome-unknown", "were told 409 outcome-unknown and 409 response-not-stored"),
        ("after_the_commit", "201", "were told 201 and 201"),
    ],
)
def test_each_fact_of_the_orders_in_a_killed_replica_that_does_not_hold_is_reported(
    field: str, value: Any, said: str
) -> None:
    killed = msgspec.structs.replace(HOLDS.orders.killed_in_the_middle, **{field: value})
    orders = msgspec.structs.replace(HOLDS.orders, killed_in_the_middle=killed)
    (sentence,) = broken_facts(msgspec.structs.replace(HOLDS, orders=orders))
    assert said in sentence


@pytest.mark.parametrize(("field", "value"), [("kill9_takeover_s", 6.01), ("sigterm_handover_s", 3.01)])
def test_a_takeover_over_its_bound_is_reported(field: str, value: Any) -> None:
    (sentence,) = broken_facts(msgspec.structs.replace(HOLDS, **{field: value}))
    assert f"took {value:.2f} s, over" in sentence


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("conflict_status", 200, "beside one that takes long was answered with 200"),
        ("forbidden_status", 200, "without the token was answered with 200"),
    ],
)
def test_an_answer_to_an_export_by_hand_that_is_not_the_right_one_is_reported(
    field: str, value: Any, said: str
) -> None:
    (sentence,) = broken_facts(msgspec.structs.replace(HOLDS, **{field: value}))
    assert said in sentence
