"""
Whether what customers were told, what the database has and what accounting booked fit together.

Pure: three lists go in, findings come out. An order that somebody wants is known by its customer's name, which no
other order has, so that a second placing of it is seen whatever its id.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Final

from cat_store_load.answers import NOT_STORED, Answer

__all__ = ["Books", "Finding", "PlacedOrder", "Rule", "audit", "duplicates_without_keys"]


class Rule(Enum):
    """What must not be."""

    DUPLICATE_ORDER = "an order is in the database more than once"
    LOST_ORDER = "an order that its customer was told of is not in the database"
    WRONG_ORDER = "an order is not what was ordered, or not the one that its customer was told of"
    UNKNOWN_ORDER = "an order is in the database that nobody sent"
    UNSETTLED = "nobody ever learned what became of an order"
    DUPLICATE_INVOICE = "an order is in accounting's books more than once"
    LOST_INVOICE = "an order is not in accounting's books"
    UNKNOWN_INVOICE = "accounting booked an order that is not in the database"
    DIFFERING_REPLAY = "two answers under one key differ"
    UNEXPECTED_ANSWER = "an answer that no request should have had"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One violation.

    Attributes:
        rule: Which.
        text: What was seen.
    """

    rule: Rule
    text: str


@dataclass(frozen=True, slots=True)
class PlacedOrder:
    """
    A row of the orders table.

    Attributes:
        id: Its id.
        customer: Its customer.
        cents: Its total.
    """

    id: str
    customer: str
    cents: int


@dataclass(slots=True)
class Books:
    """
    What was looked at, and what was found.

    Attributes:
        orders: Orders that somebody wanted and sent under a key.
        requests: The requests that were sent for them.
        repeats: How many of those were not the first one for their order.
        replays: Answers that were given once more.
        in_database: Rows of the orders table, those without keys among them.
        invoices: Invoices in accounting's books.
        exports: Exports by hand that were answered.
        known_duplicates: Orders that were placed twice where the records are apart from the orders, and the replica
            that placed the second one said so.
        findings: The violations.
    """

    orders: int = 0
    requests: int = 0
    repeats: int = 0
    replays: int = 0
    in_database: int = 0
    invoices: int = 0
    exports: int = 0
    known_duplicates: int = 0
    findings: list[Finding] = field(default_factory=list)

    def count(self, *rules: Rule) -> int:
        """How many findings there are of some rules."""
        return sum(finding.rule in rules for finding in self.findings)


_ORDER_ANSWERS: Final = frozenset({HTTPStatus.CREATED, HTTPStatus.CONFLICT})
_EXPORT_ANSWERS: Final = frozenset({HTTPStatus.OK, HTTPStatus.CONFLICT})


def audit(
    answers: Iterable[Answer],
    orders: Sequence[PlacedOrder],
    booked: Iterable[str],
    *,
    announced: frozenset[str] = frozenset(),
) -> Books:
    """
    Hold the books against one another, when nothing is under way any more and the last export has ended.

    Args:
        answers: Every answer of every user, in any order.
        orders: The orders table.
        booked: The order ids in accounting's books, one each time that it was booked.
        announced: Ids of orders of which the replica that placed them said that an earlier attempt may have placed them
            too. Only where the records of keys are apart from the orders; a duplicate among them is no violation.
    """
    heard = list(answers)
    keyed: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in heard:
        if answer.key:
            keyed[answer.key].append(answer)
    rows: defaultdict[str, list[PlacedOrder]] = defaultdict(list)
    for order in orders:
        rows[order.customer].append(order)
    wanted = [group for group in keyed.values() if group[0].customer]
    books = Books(
        orders=len(wanted),
        requests=sum(map(len, wanted)),
        repeats=sum(map(len, wanted)) - len(wanted),
        replays=sum(answer.replayed for group in keyed.values() for answer in group),
        in_database=len(orders),
        exports=sum(not group[0].customer and any(one.final for one in group) for group in keyed.values()),
    )
    books.findings += _wrong_answers(keyed)
    books.findings += _wrong_placings(heard, wanted, rows)
    for customer, placed in ((group[0].customer, rows.get(group[0].customer, ())) for group in wanted):
        second = [order for order in placed if order.id in announced]
        books.known_duplicates += min(len(second), max(0, len(placed) - 1))
        if len(placed) - len(second) > 1:
            ids = ", ".join(order.id for order in placed)
            books.findings.append(Finding(Rule.DUPLICATE_ORDER, f"{customer!r} has {len(placed)} orders: {ids}"))
    known = {answer.customer for answer in heard if answer.customer}
    books.findings += [
        Finding(Rule.UNKNOWN_ORDER, f"{order.id} of {order.customer!r}")
        for order in orders
        if order.customer not in known
    ]
    bookings = Counter(booked)
    books.invoices = bookings.total()
    books.findings += _wrong_invoices(orders, bookings)
    return books


def _wrong_answers(keyed: Mapping[str, Sequence[Answer]]) -> Iterator[Finding]:
    """Under one key there is one answer, and 409 for who comes too early or too late for it."""
    for key, group in keyed.items():
        expected = _ORDER_ANSWERS if group[0].customer else _EXPORT_ANSWERS
        for answer in group:
            if answer.final and answer.status not in expected:
                yield Finding(Rule.UNEXPECTED_ANSWER, f"{answer.status} {answer.code} to key {key}")
        told = {answer.told() for answer in group if answer.final and answer.code != NOT_STORED}
        if len(told) > 1:
            shown = "; ".join(f"{status} {location} {body[:120]}" for status, location, body in sorted(told))
            yield Finding(Rule.DIFFERING_REPLAY, f"key {key}: {shown}")


def _wrong_placings(
    heard: Iterable[Answer], wanted: Iterable[Sequence[Answer]], rows: Mapping[str, Sequence[PlacedOrder]]
) -> Iterator[Finding]:
    """Whoever was told that an order is placed finds it, as it was sent, and every order under a key has an outcome."""
    for answer in heard:
        if not answer.placed:
            continue
        found = next((row for row in rows.get(answer.customer, ()) if row.id == answer.order_id), None)
        if found is None:
            rule = Rule.WRONG_ORDER if answer.customer in rows else Rule.LOST_ORDER
            yield Finding(rule, f"{answer.customer!r} was told of order {answer.order_id or 'without an id'}")
        elif found.cents != answer.cents:
            yield Finding(Rule.WRONG_ORDER, f"{found.id} is over {found.cents} cents, and {answer.cents} were ordered")
    for group in wanted:
        customer = group[0].customer
        if not any(answer.final for answer in group):
            yield Finding(Rule.UNSETTLED, f"{customer!r}, after {len(group)} requests")
        elif customer not in rows and any(answer.code == NOT_STORED for answer in group):
            yield Finding(Rule.LOST_ORDER, f"{customer!r} was told that the order was carried out")


def _wrong_invoices(orders: Sequence[PlacedOrder], bookings: Counter[str]) -> Iterator[Finding]:
    ids = {order.id for order in orders}
    yield from (
        Finding(Rule.DUPLICATE_INVOICE, f"order {order_id} is booked {times} times")
        for order_id, times in bookings.items()
        if times > 1
    )
    yield from (Finding(Rule.LOST_INVOICE, f"order {order_id}") for order_id in sorted(ids - bookings.keys()))
    yield from (Finding(Rule.UNKNOWN_INVOICE, f"order {order_id}") for order_id in sorted(bookings.keys() - ids))


def duplicates_without_keys(answers: Iterable[Answer], orders: Iterable[PlacedOrder]) -> int:
    """Count how often an order that was sent without a key was placed beyond its first time."""
    customers = {answer.customer for answer in answers if answer.customer and not answer.key}
    placed = Counter(order.customer for order in orders if order.customer in customers)
    return placed.total() - len(placed)
