"""
The users, for Locust. Only their own process imports this: Locust patches the standard library for gevent.

A user is at home at one replica, as behind a load balancer with sticky sessions, and goes on to the next one when an
answer stays away. An order is known by its customer's name, which no other order has.
"""

# Types are looked at where Locust is not installed, too: what comes from it is Any there.
# mypy: disable-error-code="import-not-found, import-untyped, misc, no-any-return, untyped-decorator"

import itertools
import json
import random
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import gevent
import msgspec
from locust import FastHttpUser, events, task
from locust.contrib.fasthttp import FastHttpSession
from locust.env import Environment

from cat_store.inventory.catalogue import CATALOGUE
from cat_store_load.answers import NO_ANSWER, Answer, AnswerBook, Kind, is_cut_off, problem_code
from cat_store_load.plan import Plan
from cat_store_load.storm import Storm

__all__ = ["Administrator", "Buyer", "HastyBuyer", "Reader", "StormBuyer"]

_PATIENCE_S: Final = 3.0
"""How long a patient client waits for an answer: longer than an answer takes, shorter than a replica is paused."""

_HASTE_S: Final = (0.005, 0.15)
"""How long hasty clients wait, each its own time: about what an answer takes, so that some miss it."""

_INSIST_S: Final = 15.0
"""How long a user repeats a request at most; who ends without an answer is settled after the block."""

_PAUSE_S: Final = (0.05, 0.6)
"""Between two requests under one key. Retry-After asks for whole seconds, which customers do not wait for."""

_GATHERING_S: Final = 2.5

_PLAN: Final = Plan.from_environment()
_BOOK: Final = AnswerBook(Path(_PLAN.answers))
_STORM: Final = Storm(_PLAN.storm, _PLAN.seed)
_NUMBERS: Final = itertools.count()
_PRICES: Final = {item.id: item.price_cents for item in CATALOGUE}

# What is said of each answer to Locust, whose own figures are for people who look at them; the books have their own.
_EXPECTED: Final = frozenset({200, 201, 409})


@events.quitting.add_listener
def _close(environment: Environment, **_: object) -> None:
    del environment
    _BOOK.close()


class Shopper(FastHttpUser):
    """What all users have in common: a home, and a way to ask for an answer until there is one."""

    abstract = True
    host = _PLAN.urls[0]
    network_timeout = _PATIENCE_S
    connection_timeout = _PATIENCE_S

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.number = next(_NUMBERS)
        self.random = random.Random(f"{_PLAN.seed} {_PLAN.block} {self.number}")  # noqa: S311 -- users, no secrets
        self.done = itertools.count(1)

    def on_start(self) -> None:
        """Come at a moment of one's own, and not all at once."""
        gevent.sleep(self.random.uniform(0, _PLAN.think_s))

    def wait_time(self) -> float:
        """Give the pause until the next thing, in seconds."""
        return self.random.uniform(0.5, 1.5) * _PLAN.think_s

    def name(self, kind: str) -> str:
        """Make up the name of a customer, for one order."""
        return f"{_PLAN.block} {kind} {self.number}-{next(self.done)}"

    def send(self, path: str, about: Answer, client: FastHttpSession | None = None) -> Answer:
        """
        Send one request, once, and write down what came back.

        Args:
            path: Where to.
            about: What is known of the request: its kind, customer, key, order and replica.
            client: Whose patience it is sent with; None for the user's own.
        """
        headers = {"content-type": "application/json"} if about.order else {}
        headers |= {"idempotency-key": about.key} if about.key else {}
        headers |= _PLAN.admin_headers if about.kind == Kind.EXPORT else {}
        replica = about.replica % len(_PLAN.urls)
        at = time.monotonic()
        with (client or self.client).request(
            "GET" if about.kind == Kind.READ else "POST",
            f"{_PLAN.urls[replica]}{path}",
            name=about.kind,
            data=about.order or None,
            headers=headers,
            catch_response=True,
        ) as response:
            took_ms = (time.monotonic() - at) * 1000
            status: int = response.status_code or NO_ANSWER
            heard: Mapping[str, str] = response.headers if status != NO_ANSWER else {}
            body: bytes = (response.content or b"") if status != NO_ANSWER else b""
            if is_cut_off(heard, body):
                status, heard, body = NO_ANSWER, {}, b""
            if status in _EXPECTED:
                response.success()
        answer = msgspec.structs.replace(
            about,
            replica=replica,
            at=at,
            took_ms=took_ms,
            status=status,
            code=problem_code(heard.get("content-type", ""), body),
            replayed="idempotent-replayed" in heard,
            location=heard.get("location", ""),
            body="" if about.kind == Kind.READ else body.decode("utf-8", "replace"),
        )
        _BOOK.write(answer)
        return answer

    def insist(self, customer: str, key: str, order: dict[str, Any], kinds: tuple[str, str], begin: int) -> Answer:
        """
        Send an order until its answer is final, at one replica after the other.

        Args:
            customer: Who orders.
            key: Its key, or the empty text.
            order: The order.
            kinds: What the first request is for, and what each repeat.
            begin: The replica that is asked first.
        """
        until = time.monotonic() + _INSIST_S
        text = json.dumps(order)  # once: a repeat is the same to the byte, or it is another request
        for attempt in itertools.count():
            about = Answer(
                block=_PLAN.block,
                kind=kinds[min(attempt, 1)],
                customer=customer,
                key=key,
                replica=begin + attempt,
                order=text,
                cents=_cents(order),
            )
            answer = self.send("/orders", about, self.client_of(attempt))
            if answer.final or time.monotonic() > until:
                return answer
            gevent.sleep(self.random.uniform(*_PAUSE_S))
        raise AssertionError("there is always one more attempt")

    def client_of(self, attempt: int) -> FastHttpSession:
        """Give the client that an attempt is sent with, from 0."""
        del attempt
        return self.client


class Buyer(Shopper):
    """Orders, waits for the answer, and now and then clicks once more."""

    weight = 6
    kind: ClassVar[str] = Kind.ORDER

    @task
    def order(self) -> None:
        """Place one order, and look at it or send it again."""
        customer, key = self.name(self.kind), _key()
        order = _order(customer, self.random)
        placed = self.insist(customer, key, order, (self.kind, Kind.RETRY), self.number)
        then = self.random.random()
        if then < 0.1:
            # At another replica: the answer has to be the same one to the letter, wherever it is asked for.
            self.insist(customer, key, order, (Kind.AGAIN, Kind.RETRY), self.number + 1)
        elif then < 0.3 and placed.location:
            self.send(placed.location, Answer(block=_PLAN.block, kind=Kind.READ, replica=self.number + 1))


class HastyBuyer(Buyer):
    """Gives up soon and sends its order again, twice; then it waits as everybody does."""

    weight = 2

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        haste = self.random.uniform(*_HASTE_S)
        self.hasty = FastHttpSession(
            base_url=self.host,
            request_event=environment.events.request,
            user=self,
            network_timeout=haste,
            connection_timeout=_PATIENCE_S,
        )

    def client_of(self, attempt: int) -> FastHttpSession:
        """Give the first two attempts little time."""
        return self.hasty if attempt < 2 else self.client


class StormBuyer(Shopper):
    """One of many that send the same order under the same key at the same moment, to all replicas."""

    weight = 2

    def wait_time(self) -> float:
        """Give a short pause: the next storm has to gather first, which takes as long as its slowest member."""
        return super().wait_time() / 4

    @task
    def order(self) -> None:
        """Gather, and send."""
        call = _STORM.join(_GATHERING_S)
        if call is None:
            return
        drawn = random.Random(call.seed)  # noqa: S311 -- the same order for every member
        customer = f"{_PLAN.block} {Kind.STORM} {call.number}"
        key = str(uuid.UUID(int=drawn.getrandbits(128))) if _PLAN.keys else ""
        self.insist(customer, key, _order(customer, drawn), (Kind.STORM, Kind.RETRY), self.number)


class Reader(Shopper):
    """Looks around."""

    weight = 2

    @task
    def look(self) -> None:
        """Read one of the shop's lists."""
        path = self.random.choice(("/products", "/orders?limit=20", "/orders?limit=5"))
        self.send(path, Answer(block=_PLAN.block, kind=Kind.READ, replica=self.number))


class Administrator(Shopper):
    """Starts the export by hand, at a replica of its own, beside the others' and the schedule's."""

    fixed_count = 3

    @task
    def export(self) -> None:
        """Export, and now and then ask again elsewhere what was exported."""
        key = str(uuid.uuid4())  # with every plan: without one it is refused
        for attempt in range(1 + (self.random.random() < 0.3)):
            about = Answer(block=_PLAN.block, kind=Kind.EXPORT, key=key, replica=self.number + attempt)
            self.send("/admin/invoice-export", about)


def _key() -> str:
    """Draw the key of an order; the empty text where the plan is to order without."""
    return str(uuid.uuid4()) if _PLAN.keys else ""


def _order(customer: str, drawn: random.Random) -> dict[str, Any]:
    items = drawn.sample(CATALOGUE, k=drawn.randint(1, 3))
    return {
        "customer": customer,
        "lines": [{"product_id": item.id, "quantity": drawn.randint(1, 3)} for item in items],
    }


def _cents(order: dict[str, Any]) -> int:
    return sum(_PRICES[line["product_id"]] * line["quantity"] for line in order["lines"])
