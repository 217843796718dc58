"""Each rule of the books is broken here once, in books that hold otherwise."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from cat_store_load.answers import IN_FLIGHT, NOT_STORED, Answer, Kind
from cat_store_load.books import Books, Finding, PlacedOrder, Rule, audit, duplicates_without_keys


def answer(order: str, customer: str, key: str, **differing: Any) -> Answer:
    told = Answer(
        block="storm",
        kind=Kind.ORDER,
        customer=customer,
        key=key,
        status=201,
        location=f"/orders/{order}",
        body=json.dumps({"id": order, "customer": customer}),
        cents=1899,
    )
    return msgspec.structs.replace(told, **differing)


def conflict(customer: str, key: str, code: str) -> Answer:
    return answer("", customer, key, status=409, code=code, location="", body=json.dumps({"code": code}))


@dataclass
class Shop:
    """A shop whose books hold: two orders under keys, answered twice each, and one without a key."""

    answers: list[Answer] = field(
        default_factory=lambda: [
            answer("o1", "alice", "k1"),
            answer("o1", "alice", "k1", replayed=True),
            conflict("alice", "k1", IN_FLIGHT),
            answer("o2", "bob", "k2", status=0, location="", body=""),
            conflict("bob", "k2", NOT_STORED),
            answer("o3", "carol", ""),
            Answer(block="storm", kind=Kind.EXPORT, key="x1", status=200, body='{"exported":3}'),
            Answer(block="storm", kind=Kind.EXPORT, key="x1", status=200, body='{"exported":3}', replayed=True),
            Answer(block="storm", kind=Kind.EXPORT, key="x2", status=409, code="export-under-way", body="{}"),
            Answer(block="storm", kind=Kind.READ, status=200),
        ]
    )
    orders: list[PlacedOrder] = field(
        default_factory=lambda: [
            PlacedOrder("o1", "alice", 1899),
            PlacedOrder("o2", "bob", 1899),
            PlacedOrder("o3", "carol", 1899),
        ]
    )
    booked: list[str] = field(default_factory=lambda: ["o1", "o2", "o3"])
    announced: frozenset[str] = frozenset()

    def books(self) -> Books:
        return audit(self.answers, self.orders, self.booked, announced=self.announced)

    def broken(self) -> list[Rule]:
        return [finding.rule for finding in self.books().findings]


def test_books_that_hold_have_no_finding() -> None:
    books = Shop().books()
    assert books.findings == []
    assert (books.orders, books.requests, books.repeats, books.replays) == (2, 5, 3, 2)
    assert (books.in_database, books.invoices, books.exports) == (3, 3, 2)


def test_an_order_under_a_key_that_was_placed_twice_is_found() -> None:
    shop = Shop()
    shop.orders.append(PlacedOrder("o9", "alice", 1899))
    shop.booked.append("o9")
    assert shop.broken() == [Rule.DUPLICATE_ORDER]


def test_a_second_order_of_a_request_without_a_key_is_the_control_and_no_violation() -> None:
    shop = Shop()
    shop.orders += [PlacedOrder("o9", "carol", 1899), PlacedOrder("o10", "carol", 1899)]
    shop.booked += ["o9", "o10"]
    assert shop.broken() == []
    assert duplicates_without_keys(shop.answers, shop.orders) == 2


def test_an_order_that_was_acknowledged_and_is_not_there_is_found() -> None:
    shop = Shop()
    shop.orders = [order for order in shop.orders if order.customer != "alice"]
    shop.booked.remove("o1")
    assert set(shop.broken()) == {Rule.LOST_ORDER}


def test_an_order_without_a_key_can_be_lost_too() -> None:
    shop = Shop()
    shop.orders = [order for order in shop.orders if order.customer != "carol"]
    shop.booked.remove("o3")
    assert shop.broken() == [Rule.LOST_ORDER]


def test_an_order_whose_answer_was_not_kept_must_be_there_all_the_same() -> None:
    shop = Shop()
    shop.orders = [order for order in shop.orders if order.customer != "bob"]
    shop.booked.remove("o2")
    assert shop.broken() == [Rule.LOST_ORDER]


def test_an_order_that_its_customer_was_told_another_id_of_is_found() -> None:
    shop = Shop()
    shop.orders[2] = replace(shop.orders[2], id="o7")
    shop.booked[2] = "o7"
    assert shop.broken() == [Rule.WRONG_ORDER]


def test_an_order_over_another_sum_than_was_ordered_is_found() -> None:
    shop = Shop()
    shop.orders[2] = replace(shop.orders[2], cents=1)
    assert shop.broken() == [Rule.WRONG_ORDER]


def test_an_order_that_nobody_sent_is_found() -> None:
    shop = Shop()
    shop.orders.append(PlacedOrder("o9", "mallory", 1899))
    shop.booked.append("o9")
    assert shop.broken() == [Rule.UNKNOWN_ORDER]


def test_an_order_whose_outcome_nobody_learned_is_found() -> None:
    shop = Shop()
    shop.answers.remove(conflict("bob", "k2", NOT_STORED))
    shop.answers.append(conflict("bob", "k2", IN_FLIGHT))
    assert shop.broken() == [Rule.UNSETTLED]


@pytest.mark.parametrize("differing", [{"body": '{"id": "o1"}'}, {"location": "/orders/o9"}, {"status": 409}])
def test_a_replay_that_differs_in_anything_that_a_client_reads_is_found(differing: dict[str, Any]) -> None:
    shop = Shop()
    shop.answers.append(answer("o1", "alice", "k1", replayed=True, **differing))
    assert shop.broken() == [Rule.DIFFERING_REPLAY]


def test_an_export_that_tells_two_things_under_one_key_is_found() -> None:
    shop = Shop()
    shop.answers.append(Answer(block="storm", kind=Kind.EXPORT, key="x1", status=200, body='{"exported":0}'))
    assert shop.broken() == [Rule.DIFFERING_REPLAY]


@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_an_answer_that_no_request_should_have_had_is_found(status: int) -> None:
    shop = Shop()
    shop.answers.append(answer("", "dave", "k4", status=status, location="", body="{}"))
    assert shop.broken() == [Rule.UNEXPECTED_ANSWER]


@pytest.mark.parametrize("status", [0, 500, 503])
def test_no_answer_and_an_error_of_the_server_are_no_answers_to_a_key(status: int) -> None:
    shop = Shop()
    shop.answers.append(answer("", "alice", "k1", status=status, location="", body=""))
    assert shop.broken() == []


def test_an_order_that_was_invoiced_twice_is_found() -> None:
    shop = Shop()
    shop.booked.append("o2")
    assert shop.books().findings == [Finding(Rule.DUPLICATE_INVOICE, "order o2 is booked 2 times")]


def test_an_order_that_was_never_invoiced_is_found() -> None:
    shop = Shop()
    shop.booked.remove("o3")
    assert shop.broken() == [Rule.LOST_INVOICE]


def test_an_invoice_for_no_order_is_found() -> None:
    shop = Shop()
    shop.booked.append("o9")
    assert shop.broken() == [Rule.UNKNOWN_INVOICE]


def test_a_second_order_that_its_replica_told_of_is_counted_and_no_violation() -> None:
    shop = Shop(announced=frozenset({"o9"}))
    shop.orders.append(PlacedOrder("o9", "bob", 1899))
    shop.booked.append("o9")
    books = shop.books()
    assert (books.findings, books.known_duplicates) == ([], 1)


def test_a_third_order_that_nobody_told_of_is_a_violation_beside_one_that_was_told_of() -> None:
    shop = Shop(announced=frozenset({"o9"}))
    shop.orders += [PlacedOrder("o9", "bob", 1899), PlacedOrder("o10", "bob", 1899)]
    shop.booked += ["o9", "o10"]
    assert shop.broken() == [Rule.DUPLICATE_ORDER]


def test_a_later_attempt_that_is_the_only_one_with_an_effect_is_no_duplicate() -> None:
    shop = Shop(announced=frozenset({"o2"}))
    books = shop.books()
    assert (books.findings, books.known_duplicates) == ([], 0)
