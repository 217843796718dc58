"""A bench for the middleware: an engine on a clock that the test moves, a store that fails on request, and a client."""

import asyncio
import importlib.util
import inspect
import json
import pathlib
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import httpx
import pytest

from tenure.events import RecordOutcome
from tenure.ext.asgi import IdempotencyMiddleware, IdempotencyOptions
from tenure.idempotency import Idempotency, InMemoryIdempotencyStore
from tenure.testing import FaultyIdempotencyStore, ManualClock

Pairs = Iterable[tuple[bytes, bytes]]


@dataclass
class Answer:
    """What a client got."""

    messages: list[Any]

    @property
    def status(self) -> int:
        return int(next(one["status"] for one in self.messages if one["type"] == "http.response.start"))

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*next(one["headers"] for one in self.messages if one["type"] == "http.response.start")]

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.messages if one["type"] == "http.response.body")

    @property
    def ended(self) -> bool:
        return self.messages[-1]["type"] == "http.response.body" and not self.messages[-1].get("more_body", False)

    def lines(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self.headers if key.decode().lower() == name]

    def header(self, name: str) -> str | None:
        return next(iter(self.lines(name)), None)

    @property
    def replayed(self) -> bool:
        return self.lines("idempotent-replayed") == ["true"]

    @property
    def problem(self) -> dict[str, Any]:
        assert self.header("content-type") == "application/problem+json"
        content: dict[str, Any] = json.loads(self.body)
        assert content["status"] == self.status
        return content

    @property
    def code(self) -> str | None:
        return self.problem.get("code")


@dataclass
class Handler:
    """An application that answers as it is told, and counts. `pause` lets it stand still until it is let go on."""

    status: int = 201
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: [(b"content-type", b"text/plain")])
    chunks: list[bytes] | None = None
    error: BaseException | None = None
    runs: int = 0
    attempts: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    scopes: list[Any] = field(default_factory=list)
    settlement: str | None = None
    after: Callable[[], Awaitable[None]] | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.proceed.set()

    def pause(self) -> None:
        self.proceed.clear()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        run = self.runs
        self.scopes.append(scope)
        context = scope.get("state", {}).get("idempotency")
        if context is not None:
            self.attempts.append(context.attempt)
            context.settlement = self.settlement
        message = await receive()
        self.bodies.append(message["body"])
        self.reached.set()
        await self.proceed.wait()
        if self.error is not None:
            raise self.error
        *chunks, last = [b"run %d" % run] if self.chunks is None else self.chunks
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": last, "more_body": False})
        if self.after is not None:
            await self.after()


class NoJitter(random.Random):
    def random(self) -> float:
        return 0.0


class Bench:
    """
    An engine, and a client that speaks ASGI.

    Attributes:
        clock: Of the engine and of the store.
        store: Fails on request.
        outcomes: What the engine reported, by name.
    """

    lock_ttl_s = 30
    retention_s = 3600

    def __init__(self, **rest: Any) -> None:
        self.clock = ManualClock()
        self.memory = InMemoryIdempotencyStore(self.clock)
        self.store = FaultyIdempotencyStore(self.memory, clock=self.clock)
        self.events: list[Any] = []
        self.idempotency = Idempotency(
            self.store,
            lock_ttl=self.lock_ttl_s,
            retention=self.retention_s,
            hooks=[self.events.append],
            clock=self.clock,
            rng=NoJitter(),
            instance="bench",
            drain=0,
            **rest,
        )

    Handler = Handler
    Answer = Answer

    @property
    def outcomes(self) -> list[str]:
        return [event.outcome.value for event in self.events if isinstance(event, RecordOutcome)]

    def protect(self, app: Any, *, principal: Any = None, rules: Any = None, **options: Any) -> IdempotencyMiddleware:
        """Put the middleware around *app*; the principal is the value of the header `x-account`."""
        outer = {name: options.pop(name) for name in ("namespace", "problem_base", "quota") if name in options}
        return IdempotencyMiddleware(
            app,
            idempotency=self.idempotency,
            principal=principal or account,
            options=rules or IdempotencyOptions(**options),
            **outer,
        )

    @staticmethod
    def scope(
        *,
        method: str = "POST",
        path: str = "/orders",
        key: str | bytes | None = "k-1",
        headers: Pairs = (),
        account: str = "anna",
        **rest: Any,
    ) -> dict[str, Any]:
        lines = [(b"x-account", account.encode()), *headers]
        if key is not None:
            lines.append((b"idempotency-key", key.encode() if isinstance(key, str) else key))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": lines,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            **rest,
        }

    async def ask(
        self, app: Any, *, body: bytes | list[bytes] = b"{}", sent: list[Any] | None = None, **request: Any
    ) -> Answer:
        """Send one request, in one chunk or several, and give what came back. An error of the application raises."""
        messages: list[Any] = [] if sent is None else sent
        chunks = [body] if isinstance(body, bytes) else [*body]
        inbox = [
            {"type": "http.request", "body": chunk, "more_body": at < len(chunks) - 1}
            for at, chunk in enumerate(chunks)
        ]

        async def receive() -> Any:
            if not inbox:
                await asyncio.get_running_loop().create_future()  # a client that stays
            return inbox.pop(0)

        async def send(message: Any) -> None:
            messages.append(message)

        await app(self.scope(**request), receive, send)
        return Answer(messages)

    async def abandoned(self) -> None:
        """Let the lock of every execution that is no longer extended end."""
        await self.clock.advance(self.lock_ttl_s + 1)


def account(scope: Any) -> str:
    return dict(scope["headers"])[b"x-account"].decode()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    async with made.idempotency:
        yield made
        made.store.heal()  # what hangs on purpose is not waited for


@pytest.fixture
def make_bench() -> type[Bench]:
    return Bench


# ------------------------------------------------------------------------------------ planted bugs

HANG_S = 2
"""A fact that hangs has failed; the slowest takes a tenth of that."""

CAUGHT = (
    AssertionError,
    pytest.fail.Exception,
    TimeoutError,
    OSError,
    RuntimeError,
    KeyError,
    httpx.TooManyRedirects,
)


def _facts_of(file: str) -> ModuleType:
    path = str(pathlib.Path(__file__).parent / f"test_{file}.py")
    loaded = next((module for module in sys.modules.values() if getattr(module, "__file__", None) == path), None)
    if loaded is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(f"planted_asgi_{file}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def _check(caplog: Any, file: str, fact: str, given: dict[str, Any]) -> None:
    """Run one fact as pytest would, on a bench of its own."""
    facts, made = _facts_of(file), Bench()
    offered = {"bench": made, "make_bench": Bench, "caplog": caplog}
    if file == "streams":
        offered["wire"] = facts.Wire(made)
    if "shop" in given:
        offered["shop"] = facts.Shop()
    function = getattr(facts, f"test_{fact}")
    arguments = {name: offered.get(name, given.get(name)) for name in inspect.signature(function).parameters}
    async with made.idempotency, asyncio.timeout(HANG_S):
        await function(**arguments)


@pytest.fixture
def catches(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> Any:
    """Check that a fact holds, and that it fails once a bug is planted."""

    async def check(plant: Any, file: str, fact: str, given: dict[str, Any]) -> None:
        await _check(caplog, file, fact, given)
        plant(monkeypatch)
        with pytest.raises(CAUGHT):
            await _check(caplog, file, fact, given)

    return check
