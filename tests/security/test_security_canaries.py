"""
Secrets that are planted in what an application passes, and looked for in everything that comes out again.

Real servers behind a proxy that cuts the line, and every hook there is. Driver errors pass through as they are, so they
are looked at too, with all that they are chained to.
"""

import asyncio
import contextlib
import json
import logging
import re
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from tenure import LeaseLostError, LockNotAcquiredError, Locks, open_store
from tenure.config import open_idempotency_store
from tenure.ext.asgi import IdempotencyMiddleware
from tenure.idempotency import Idempotency
from tenure.instrumentation import LoggingHook, OpenTelemetryHook, PrometheusHook, StructlogHook
from tenure_postgres import create_idempotency_schema_sql, create_schema_sql
from tenure_testbed import FaultProxy, ValkeyServer
from tenure_testbed.postgres_access import PostgresAccess, database_of

PASSWORD = "canary-password-5150"
BODY = "canary-body-5150"
REQUEST_KEY = "canary-request-key-5150"
PRINCIPAL = "canary-principal-5150"

TTL_S = 1.0
PATIENCE_S = 20.0


class Ears:
    """Every hook that there is, and what they made of what they heard."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.events: list[Any] = []
        self.registry = CollectorRegistry()
        self.structured = structlog.testing.CapturingLogger()
        self._metrics = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        tracing = TracerProvider()
        tracing.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer: trace.Tracer = tracing.get_tracer("canaries")
        meter = MeterProvider([self._metrics]).get_meter("canaries")
        self.hooks: list[Any] = [
            self.events.append,
            LoggingHook(),
            StructlogHook(structlog.wrap_logger(self.structured, processors=[])),
            PrometheusHook(self.registry),
            OpenTelemetryHook(meter),
        ]

    def measured(self) -> str:
        """What metrics and traces hold."""
        metrics = self._metrics.get_metrics_data()
        spans = [span.to_json() for span in self._spans.get_finished_spans()]
        return "\n".join([generate_latest(self.registry).decode(), metrics.to_json() if metrics else "", *spans])

    def everything(self) -> str:
        """All of it, log records with whatever they carry."""
        records = [f"{record.getMessage()} {record.__dict__!r}" for record in self._caplog.records]
        events = [f"{event!r} {event}" for event in self.events]
        return "\n".join([self._caplog.text, *records, *events, repr(self.structured.calls), self.measured()])


def told_by(error: BaseException) -> str:
    """Everything that an error says, and all that it is chained to: in a traceback, and hidden from it."""
    seen: list[str] = ["".join(traceback.format_exception(error))]
    following: BaseException | None = error
    while following is not None:
        seen.append(
            f"{following} {following!r} {following.args} {following.__dict__} {getattr(following, '__notes__', '')}"
        )
        following = following.__cause__ or following.__context__
    return "\n".join(seen)


@pytest.fixture
def ears(caplog: pytest.LogCaptureFixture) -> Ears:
    caplog.set_level(logging.DEBUG)
    return Ears(caplog)


class Line(NamedTuple):
    """A server behind a proxy, and the URLs of stores on it."""

    proxy: FaultProxy
    locks: str
    records: str

    def cut(self) -> None:
        self.proxy.refuse()
        self.proxy.reset_all()


@contextlib.asynccontextmanager
async def to_postgres(server: PostgresAccess, url: str) -> AsyncIterator[Line]:
    for sql in (create_schema_sql(), create_idempotency_schema_sql()):
        server.execute(sql, database_of(url))
    async with FaultProxy((server.host, server.port)) as proxy:
        rest = f"postgres:{PASSWORD}@127.0.0.1:{proxy.port}/{database_of(url)}"
        yield Line(proxy, f"postgresql+asyncpg://{rest}", f"postgresql+asyncpg://{rest}")


@contextlib.asynccontextmanager
async def to_valkey(server: ValkeyServer) -> AsyncIterator[Line]:
    server.execute("ACL", "SETUSER", "canary-user", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    async with FaultProxy(("127.0.0.1", server.port)) as proxy:
        url = f"redis://canary-user:{PASSWORD}@127.0.0.1:{proxy.port}?timeout=300ms"
        yield Line(proxy, url, url)
    server.execute("ACL", "DELUSER", "canary-user")


@pytest.fixture(params=["postgres", "valkey"])
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    if request.param == "postgres":
        server, url = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_url")
        async with to_postgres(server, url) as made:
            yield made
    else:
        async with to_valkey(request.getfixturevalue("valkey_server")) as made:
            yield made


class Noting:
    """A store that notes the owners which it is given: an engine draws them itself, and shows them to nobody else."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.reach = inner.reach
        self.owners: set[str] = set()

    async def acquire(self, key: str, owner: str, *rest: Any, **options: Any) -> Any:
        self.owners.add(owner)
        return await self._inner.acquire(key, owner, *rest, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def secrets_of(owners: set[str]) -> Iterator[str]:
    """What is secret of owners: the 128 bits. The instance's name in front of them is not."""
    for owner in owners:
        found = re.fullmatch(r"[\w-]+:([0-9a-f]{32,})", owner)
        assert found is not None, "an owner has 128 bits"
        yield found[1]


async def test_no_owner_and_no_password_gets_out_of_a_lock_whose_store_goes_away(line: Line, ears: Ears) -> None:
    errors: list[BaseException] = []
    async with open_store(line.locks) as opened:
        noting = Noting(opened)
        locks = Locks(noting, ttl=TTL_S, instance="shop-1", hooks=ears.hooks, drain=0)
        async with asyncio.timeout(PATIENCE_S), locks:
            said = [repr(opened), repr(locks)]
            lease = await locks.acquire("canary-key")
            said += [repr(lease), repr(noting.owners and lease.lost)]
            other = Locks(noting, ttl=TTL_S, instance="shop-2", hooks=ears.hooks, drain=0)
            async with other:
                with pytest.raises(LockNotAcquiredError) as held:
                    await other.acquire("canary-key", wait=0)
                errors.append(held.value)
            with ears.tracer.start_as_current_span("job"), pytest.raises(LeaseLostError) as lost:
                async with locks.hold("another-canary-key"):
                    line.cut()
                    await asyncio.Event().wait()
            errors.append(lost.value)
            with pytest.raises(Exception) as away:
                await locks.try_acquire("a-third-canary-key")
            errors.append(away.value)
            said.append(repr(lease))
    everything = "\n".join([ears.everything(), *said, *map(told_by, errors)])
    assert "LeaseLost" in everything
    assert "canary-key" in everything, "keys are logged: they are no secret"
    assert len(noting.owners) >= 3
    for secret in (PASSWORD, *secrets_of(noting.owners)):
        assert secret not in everything
    assert "canary-key" not in ears.measured(), "keys are no labels"


class Handler:
    """An application that may be held up in the middle of a request."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.contexts: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.contexts.append(scope["state"]["idempotency"])
        self.reached.set()
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": BODY.encode()})


async def post(app: Any, body: str = BODY, key: str = REQUEST_KEY) -> list[Any]:
    sent: list[Any] = []
    inbox = [{"type": "http.request", "body": body.encode(), "more_body": False}]

    async def receive() -> Any:
        return inbox.pop() if inbox else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", key.encode()), (b"content-type", b"text/plain")]
    await app({"type": "http", "method": "POST", "path": "/orders", "headers": headers}, receive, send)
    return sent


def problem(sent: list[Any]) -> tuple[int, str]:
    return sent[0]["status"], str(json.loads(sent[1]["body"]).get("code"))


async def test_nothing_of_a_request_gets_out_of_the_idempotency_layer_whose_store_goes_away(
    line: Line, ears: Ears
) -> None:
    handler = Handler()
    answers: list[Any] = []
    async with open_idempotency_store(line.records) as opened:
        noting = Noting(opened)
        idempotency = Idempotency(
            noting, lock_ttl=TTL_S, hooks=ears.hooks, instance="shop-1", drain=0, secret=PASSWORD.encode()
        )
        app = IdempotencyMiddleware(handler, idempotency=idempotency, principal=lambda _: PRINCIPAL)
        async with asyncio.timeout(PATIENCE_S), idempotency:
            first = asyncio.create_task(post(app))
            await handler.reached.wait()
            answers += [await post(app), await post(app, body="another body")]
            line.cut()
            handler.go_on.set()
            assert (await first)[1]["body"] == BODY.encode()
            answers.append(await post(app, key=REQUEST_KEY + "-2"))
            [context] = handler.contexts
            said = [repr(opened), repr(idempotency), repr(context), context.downstream_key("charge")]
    assert [problem(sent) for sent in answers] == [(409, "in-flight"), (422, "key-reused"), (503, "store-unavailable")]
    everything = "\n".join([ears.everything(), repr(answers), *said])
    assert "store_error" in everything.lower(), "the completion failed, and was heard of"
    fingerprint = idempotency.fingerprint("anything")
    for secret in (PASSWORD, BODY, REQUEST_KEY, PRINCIPAL, fingerprint, *secrets_of(noting.owners)):
        assert secret not in everything


async def test_a_password_that_the_server_refuses_is_in_no_error(
    own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for url in (
        f"redis://nobody:{PASSWORD}@127.0.0.1:{own_valkey.port}?timeout=300ms",
        f"valkey://nobody:{PASSWORD}@127.0.0.1:{own_valkey.port}?timeout=300ms",
        f"postgresql://nobody:{PASSWORD}@127.0.0.1:1/none",
        f"postgresql://nobody:{PASSWORD}@127.0.0.1:{own_valkey.port}/none?connect_timeout=1",
    ):
        async with open_store(url) as store:
            with pytest.raises(Exception) as refused:
                await store.acquire("key", "owner", 1000)
            assert PASSWORD not in told_by(refused.value) + repr(store)
    assert PASSWORD not in caplog.text


def _refuse(reason: str) -> None:
    raise ValueError(reason)


def _wrap() -> None:
    try:
        _refuse(PASSWORD)
    except ValueError:
        raise RuntimeError("no secret here") from None


def test_planted_an_error_that_is_chained_to_one_with_a_secret_is_heard() -> None:
    with pytest.raises(RuntimeError) as caught:
        _wrap()
    assert PASSWORD in told_by(caught.value), "hidden from a traceback, and there for whoever looks"
