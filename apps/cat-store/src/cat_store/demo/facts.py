"""The report: what was measured, and what has to hold in it."""

from collections.abc import Iterator

import msgspec

__all__ = [
    "DstNight",
    "Feed",
    "Fencing",
    "History",
    "Kill",
    "KilledInTheMiddle",
    "ManualExport",
    "Orders",
    "Overlap",
    "Report",
    "Term",
    "WithLocks",
    "WithoutLocks",
    "broken_facts",
]

_SLACK_S = 1.0
"""What a takeover may take beyond the ttl and one tick, in seconds: process start-up plays no part in it."""

_FEED_SLACK_S = 2.0
"""What the feed's takeover may take beyond an election, in seconds: a second more, for the warehouse has to hang up."""

_ELECTED_WITHIN_TTLS = 1.4
"""A lease expires after its ttl, and the others ask for it every third of one, a fifth later at most."""

_SKIPPED_TICKS = 3
"""The count is made to outlast so many ticks."""

_CONFLICT, _FORBIDDEN = 409, 403

_REPLICAS = 3


class WithoutLocks(msgspec.Struct, frozen=True):
    """
    Three replicas without locks, at one tick.

    Attributes:
        batches: How many batches accounting booked.
        full_counts: How many full counts the warehouse was asked for.
        duplicate_invoices: How often an order was booked beyond its first time.
    """

    batches: int
    full_counts: int
    duplicate_invoices: int


class WithLocks(msgspec.Struct, frozen=True):
    """
    Three replicas with locks.

    Attributes:
        batches: How many batches accounting booked for the first orders, over several ticks.
        full_counts: How many full counts were begun while the first one went on, over several ticks.
        skipped_ticks: How many ticks the replicas skipped meanwhile.
        orders: How many orders were placed from then on to the end of the story.
        duplicate_invoices: How often one of them was booked beyond its first time.
        lost_orders: How many of them were never booked.
    """

    batches: int
    full_counts: int
    skipped_ticks: int
    orders: int = 0
    duplicate_invoices: int = 0
    lost_orders: int = 0


class Kill(msgspec.Struct, frozen=True):
    """
    An owner killed after its upload was booked, before it could mark the orders.

    Attributes:
        takeover_s: From the kill to the end of the first run on another instance.
        repeated_uploads: Uploads of its batch that accounting recognised.
        new_batches: Batches that were booked for its orders besides.
    """

    takeover_s: float
    repeated_uploads: int
    new_batches: int


class Term(msgspec.Struct, frozen=True):
    """
    An owner stopped with SIGTERM.

    Attributes:
        handover_s: From the signal to the end of the first run on another instance.
        exit_code: How the stopped process ended.
    """

    handover_s: float
    exit_code: int


class Fencing(msgspec.Struct, frozen=True):
    """
    An owner paused between its reading and its write.

    Attributes:
        stale_writes_refused: Products whose late write the database refused.
        final_stock_is_fresh: Whether the product that changed meanwhile kept the newer run's count and token.
        stale_count: What the paused owner had read.
        fresh_count: What the shelf had when the newer run counted.
        paused_s: How long it was paused.
    """

    stale_writes_refused: int
    final_stock_is_fresh: bool
    stale_count: int
    fresh_count: int
    paused_s: float


class KilledInTheMiddle(msgspec.Struct, frozen=True):
    """
    A replica killed with two orders in it, both repeated under their keys at the others.

    Attributes:
        instance: Which replica.
        keys: How many orders were meant.
        orders: How many were placed.
        retries: How many requests came after the first of each.
        before_the_commit: What the customer was told in the end whose order was not committed: "201", for the repeat
            placed it.
        after_the_commit: What the customer was told whose order was: "409 response-not-stored", for the order is
            there and its answer is lost.
    """

    instance: str
    keys: int
    orders: int
    retries: int
    before_the_commit: str
    after_the_commit: str


class Orders(msgspec.Struct, frozen=True):
    """
    Orders that customers repeat.

    Attributes:
        placed: How many orders were meant, under a key each.
        retries: How many requests for them came after the first of each.
        duplicates: How often one of them was placed beyond its first time.
        duplicates_without_keys: How often an order was that was repeated without a key.
        killed_in_the_middle: The two among them that a dying replica had.
    """

    placed: int
    retries: int
    duplicates: int
    duplicates_without_keys: int
    killed_in_the_middle: KilledInTheMiddle


class Overlap(msgspec.Struct, frozen=True):
    """
    A full count that takes longer than three ticks.

    Attributes:
        counts_during_long_count: How many full counts were begun from its beginning on, until it had outlasted them.
        skipped_ticks: How many ticks another replica skipped meanwhile.
    """

    counts_during_long_count: int
    skipped_ticks: int


class ManualExport(msgspec.Struct, frozen=True):
    """
    Exports that an administrator starts.

    Attributes:
        orders: How many orders were due.
        exported: How many invoices each of two replicas exported that were asked at once, the greater number first.
        conflict_status: The answer beside an export that takes longer than two seconds.
        forbidden_status: The answer to somebody who sends no token.
    """

    orders: int
    exported: list[int]
    conflict_status: int
    forbidden_status: int


class Feed(msgspec.Struct, frozen=True):
    """
    The warehouse's alert feed, whose listener is killed.

    Attributes:
        max_connections: The most connections that the warehouse had at the same time, from the start of the story on.
        takeover_s: From the kill to another instance's connection.
    """

    max_connections: int
    takeover_s: float


class DstNight(msgspec.Struct, frozen=True):
    """
    The night that has 02:00 twice.

    Attributes:
        ticks: When the export was due.
        orders: How many orders came before one of the ticks.
        duplicate_invoices: How often one of them was booked beyond its first time.
        lost_orders: How many of them were not booked.
    """

    ticks: list[str]
    orders: int
    duplicate_invoices: int
    lost_orders: int


class History(msgspec.Struct, frozen=True):
    """
    Every call of the replicas to their lock store, checked against the rules of a history.

    Attributes:
        events: How many events were checked.
        grants: How many leases were granted.
        broken: What broke a rule: a token that came back, two holders at once, a loss that was signalled late.
    """

    events: int
    grants: int
    broken: list[str]


class Report(msgspec.Struct, frozen=True):
    """Everything that the demo measured, and what did not hold."""

    store: str
    ttl_s: float
    tick_s: int
    without_locks: WithoutLocks
    with_locks: WithLocks
    kill9: Kill
    kill9_takeover_s: float
    sigterm: Term
    sigterm_handover_s: float
    fencing: Fencing
    orders: Orders
    overlap: Overlap
    manual_export: ManualExport
    conflict_status: int
    forbidden_status: int
    feed: Feed
    dst_night: DstNight
    history: History
    took_s: float
    broken: list[str] = []


def broken_facts(report: Report) -> list[str]:
    """Return a sentence for each fact of *report* that does not hold."""
    return [
        *_of_without(report.without_locks),
        *_of_with(report.with_locks),
        *_of_deaths(report),
        *_of_fence(report),
        *_of_orders(report.orders),
        *_of_overlap(report.overlap),
        *_of_exports_by_hand(report),
        *_of_feed(report),
        *_of_night(report.dst_night),
        *_of_history(report.history),
    ]


def _of_without(facts: WithoutLocks) -> Iterator[str]:
    if facts.batches != _REPLICAS:
        yield f"Without locks accounting booked {facts.batches} batches, and not one for each of {_REPLICAS} replicas."
    if facts.full_counts != _REPLICAS:
        yield f"Without locks the warehouse counted {facts.full_counts} times, and not once for each replica."


def _of_with(facts: WithLocks) -> Iterator[str]:
    if facts.batches != 1:
        yield f"With locks accounting booked {facts.batches} batches, and not one."
    if facts.full_counts != 1:
        yield f"With locks {facts.full_counts} full counts were begun at once, and not one."
    if facts.duplicate_invoices:
        yield f"With locks {facts.duplicate_invoices} invoices were booked twice."
    if facts.lost_orders:
        yield f"With locks {facts.lost_orders} of {facts.orders} orders were never booked."


def _of_deaths(report: Report) -> Iterator[str]:
    takeover_s = report.ttl_s + report.tick_s + _SLACK_S
    if report.kill9_takeover_s > takeover_s:
        yield f"The takeover after kill -9 took {report.kill9_takeover_s:.2f} s, over {takeover_s:g} s."
    if report.kill9.repeated_uploads < 1 or report.kill9.new_batches:
        yield "The batch of the killed owner was not seen through under its own id."
    handover_s = report.tick_s + _SLACK_S
    if report.sigterm_handover_s > handover_s:
        yield f"The handover after SIGTERM took {report.sigterm_handover_s:.2f} s, over {handover_s:g} s."
    if report.sigterm.exit_code:
        yield f"The owner that got SIGTERM ended with code {report.sigterm.exit_code}."


def _of_fence(report: Report) -> Iterator[str]:
    facts = report.fencing
    if facts.stale_writes_refused < 1:
        yield "No late write of the paused owner was refused."
    if not facts.final_stock_is_fresh:
        yield "The paused owner's stale count replaced the fresh one."


def _of_orders(facts: Orders) -> Iterator[str]:
    killed = facts.killed_in_the_middle
    if facts.duplicates:
        yield f"With keys {facts.duplicates} orders were placed twice."
    if not facts.duplicates_without_keys:
        yield "Without keys no repeat was placed as an order of its own: nothing was shown."
    if killed.orders < killed.keys:
        yield f"Of {killed.keys} orders in the replica that was killed {killed.orders} were placed."
    if (killed.before_the_commit, killed.after_the_commit) != ("201", "409 response-not-stored"):
        yield (
            f"The customers of the replica that was killed were told {killed.before_the_commit} and "
            f"{killed.after_the_commit}."
        )


def _of_overlap(facts: Overlap) -> Iterator[str]:
    if facts.counts_during_long_count != 1:
        yield f"During a long count {facts.counts_during_long_count} counts were begun, and not it alone."
    if facts.skipped_ticks < _SKIPPED_TICKS:
        yield f"During a long count {facts.skipped_ticks} ticks were skipped, and not {_SKIPPED_TICKS}."


def _of_exports_by_hand(report: Report) -> Iterator[str]:
    facts = report.manual_export
    if facts.exported != [facts.orders, 0]:
        yield f"Of {facts.orders} invoices two replicas exported {facts.exported} by hand, and not one of them all."
    if report.conflict_status != _CONFLICT:
        yield f"An export by hand beside one that takes long was answered with {report.conflict_status}."
    if report.forbidden_status != _FORBIDDEN:
        yield f"An export by hand without the token was answered with {report.forbidden_status}."


def _of_feed(report: Report) -> Iterator[str]:
    facts = report.feed
    if facts.max_connections != 1:
        yield f"The warehouse had {facts.max_connections} connections to its feed at once, and not one."
    takeover_s = report.ttl_s * _ELECTED_WITHIN_TTLS + _FEED_SLACK_S
    if facts.takeover_s > takeover_s:
        yield f"The takeover of the feed took {facts.takeover_s:.2f} s, over {takeover_s:g} s."


def _of_night(facts: DstNight) -> Iterator[str]:
    if len(facts.ticks) < 2:
        yield f"The night that has 02:00 twice had {len(facts.ticks)} ticks: nothing was shown."
    if facts.duplicate_invoices:
        yield f"On the night that has 02:00 twice {facts.duplicate_invoices} invoices were booked twice."
    if facts.lost_orders:
        yield f"On the night that has 02:00 twice {facts.lost_orders} of {facts.orders} orders were not booked."


def _of_history(facts: History) -> Iterator[str]:
    if not facts.grants:
        yield "The history of the replicas' calls has no lease: nothing was checked."
    yield from facts.broken
