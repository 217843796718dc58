"""What has to hold in a run, and whether it does."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cat_store_load.books import Rule
from cat_store_load.figures import BlockFigures, compare_p95, middle
from cat_store_load.outcome import Outcome

__all__ = ["Fact", "facts_of"]

_MOST_FAILED: Final = 0.01
"""The share of requests that may fail in a calm block. Beyond it the shop is overloaded, and times say nothing."""

_NAMED: Final = (
    Rule.DUPLICATE_ORDER,
    Rule.LOST_ORDER,
    Rule.DUPLICATE_INVOICE,
    Rule.LOST_INVOICE,
    Rule.DIFFERING_REPLAY,
)


@dataclass(frozen=True, slots=True)
class Fact:
    """
    One thing that has to hold.

    Attributes:
        name: What it is about.
        holds: Whether it does.
        text: What was measured.
    """

    name: str
    holds: bool
    text: str


def facts_of(outcome: Outcome, *, limit: float | None) -> list[Fact]:
    """
    Judge a run.

    Args:
        outcome: What was measured.
        limit: How many times as long as without keys an order with a key may take, at the p95; None not to judge it.
    """
    return [*_books(outcome), *_load(outcome), *_times(outcome, limit)]


def _books(outcome: Outcome) -> Iterator[Fact]:
    books = outcome.books

    def none(name: str, of: str, *rules: Rule) -> Fact:
        found = books.count(*rules)
        return Fact(name, not found, f"{found} of {of}")

    orders = f"{books.orders} orders under keys, {books.repeats} repeats"
    known = f"; {books.known_duplicates} that were told of" if books.known_duplicates else ""
    yield none("duplicate orders", f"{orders}{known}", Rule.DUPLICATE_ORDER)
    yield none("lost orders", orders, Rule.LOST_ORDER)
    yield none(
        "duplicate invoices", f"{books.invoices} invoices, {books.exports} exports by hand", Rule.DUPLICATE_INVOICE
    )
    yield none("lost invoices", f"{books.in_database} orders", Rule.LOST_INVOICE)
    yield none("differing replays", f"{books.replays} replays", Rule.DIFFERING_REPLAY)
    yield none("anything else", f"{books.requests} requests", *(rule for rule in Rule if rule not in _NAMED))
    text = "; ".join(outcome.history) or "no rule broken"
    yield Fact("history of the locks", not outcome.history, text)


def _load(outcome: Outcome) -> Iterator[Fact]:
    """The zeros above say nothing of a load in which nothing could have gone wrong."""
    duplicates = outcome.duplicates_without_keys
    yield Fact("the control: duplicates without keys", duplicates > 0, str(duplicates))
    killed = sum(trouble.what == "killed" for trouble in outcome.troubles)
    paused = sum(trouble.what == "paused" for trouble in outcome.troubles)
    storm = outcome.storm
    yield Fact(
        "troubles in the storm",
        bool(killed and paused and storm.failed and storm.in_flight and storm.replays),
        f"{killed} killed, {paused} paused; {storm.failed} requests failed, {storm.in_flight} met the first one, "
        f"{storm.replays} replays, {outcome.settled} orders settled afterwards",
    )
    calm = [block for pair in outcome.pairs for block in pair]
    failed, requests = sum(block.failed for block in calm), sum(block.requests for block in calm)
    yield Fact("failures in calm blocks", failed <= _MOST_FAILED * requests, f"{failed} of {requests} requests")


def _times(outcome: Outcome, limit: float | None) -> Iterator[Fact]:
    ratios = compare_p95(outcome.pairs)
    ratio = middle(ratios)
    if ratio is None:
        yield Fact("p95 of an order with a key, to one without", False, "no pair of blocks has orders in both")
        return
    each = ", ".join(f"{one:.2f}" for one in ratios)
    judged = "not judged" if limit is None else f"at most {limit:g}"
    yield Fact(
        "p95 of an order with a key, to one without",
        limit is None or ratio <= limit,
        f"{ratio:.2f} ({judged}; pairs: {each}{_cpu(outcome.pairs)})",
    )


def _cpu(pairs: list[tuple[BlockFigures, BlockFigures]]) -> str:
    """What the keys cost the replicas' processors, which a busy machine distorts less than times."""
    ratios = sorted(b.cpu_ms / a.cpu_ms for a, b in pairs if a.cpu_ms and b.cpu_ms)
    found = middle(ratios)
    return "" if found is None else f"; processor time of the replicas a request: {found:.2f}"
