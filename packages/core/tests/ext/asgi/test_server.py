"""The middleware behind a real server on loopback: sockets that close, streams, and many at once."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from tenure.events import RecordOutcome
from tenure.ext.asgi import IdempotencyMiddleware, IdempotencyOptions
from tenure.idempotency import Idempotency, InMemoryIdempotencyStore

KEY = {"Idempotency-Key": "k-1", "x-account": "anna"}
PATIENCE_S = 10
"""Generous: a loopback answer takes milliseconds, and a loaded machine may take a second."""


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The test runner keeps its signals."""
        yield


class Served:
    """An application behind the middleware and uvicorn."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.idempotency = Idempotency(InMemoryIdempotencyStore(), hooks=[self.events.append], drain=0)
        self.app: Any = None
        self.port = 0

    @property
    def outcomes(self) -> list[str]:
        return [event.outcome.value for event in self.events if isinstance(event, RecordOutcome)]

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not done():
                await asyncio.sleep(0.01)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=64)
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", headers=KEY, timeout=PATIENCE_S, limits=limits
        )


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    served.port = listening.getsockname()[1]
    app = IdempotencyMiddleware(
        served,
        idempotency=served.idempotency,
        principal=lambda scope: dict(scope["headers"])[b"x-account"].decode(),
        options=IdempotencyOptions(max_request_bytes=100_000),
    )
    server = Server(uvicorn.Config(app, lifespan="off", log_level="warning", ws="none", http="h11"))
    async with served.idempotency:
        serving = asyncio.create_task(server.serve([listening]))
        await served.until(lambda: server.started)
        yield served
        server.should_exit = server.force_exit = True
        # From Python 3.12 on a server waits for its connections, one of which may be half closed.
        for connection in server.server_state.connections:
            connection.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            await serving


async def test_a_client_that_hangs_up_while_the_handler_runs_gets_the_response_on_its_retry(
    served: Served, make_bench: Any
) -> None:
    handler = served.app = make_bench.Handler()
    handler.pause()
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        b"POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: k-1\r\nx-account: anna\r\ncontent-length: 2\r\n\r\n{}"
    )
    async with asyncio.timeout(PATIENCE_S):
        await handler.reached.wait()
        writer.transport.abort()
        await writer.wait_closed()
    handler.proceed.set()
    await served.until(lambda: "stored" in served.outcomes)
    async with served.client() as client:
        again = await client.post("/orders", content=b"{}")
    assert (again.status_code, again.text, again.headers["idempotent-replayed"]) == (201, "run 1", "true")
    assert handler.runs == 1


async def test_a_client_that_hangs_up_within_its_body_runs_nothing(served: Served, make_bench: Any) -> None:
    handler = served.app = make_bench.Handler()
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        b"POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: k-1\r\nx-account: anna\r\ncontent-length: 9\r\n\r\n{}"
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with served.client() as client:
        assert (await client.post("/orders", content=b"{}")).text == "run 1"
    assert handler.runs == 1


async def test_an_event_of_a_stream_reaches_its_client_at_once_and_an_endless_one_runs_once(served: Served) -> None:
    runs = 0

    async def events(_: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        runs += 1
        await receive()
        headers = [(b"content-type", b"text/event-stream"), (b"location", b"/events/1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    served.app = events
    async with served.client() as client:
        async with client.stream("POST", "/events") as response:
            async with asyncio.timeout(PATIENCE_S):
                assert await anext(response.aiter_bytes()) == b"data: 1\n\n"
        await served.until(lambda: "tombstone" in served.outcomes)
        again = await client.post("/events")
    assert (again.status_code, again.json()["code"], again.json()["location"]) == (
        409,
        "response-not-stored",
        "/events/1",
    )
    assert runs == 1


async def test_many_at_once_over_real_connections_run_once(served: Served, make_bench: Any) -> None:
    handler = served.app = make_bench.Handler()
    handler.pause()
    async with served.client() as client:
        racers = [asyncio.create_task(client.post("/orders", content=b"{}")) for _ in range(32)]
        await served.until(lambda: sum(racer.done() for racer in racers) == 31)
        handler.proceed.set()
        answers = await asyncio.gather(*racers)
        again = await client.post("/orders", content=b"{}")
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 31
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 409)
    assert again.headers["idempotent-replayed"] == "true"
    assert handler.runs == 1


async def test_a_body_that_is_sent_in_chunks_is_the_same_request(served: Served, make_bench: Any) -> None:
    handler = served.app = make_bench.Handler()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 1000

    async with served.client() as client:
        first = await client.post("/orders", content=b"x" * 50_000)
        again = await client.post("/orders", content=pieces())
    assert (first.text, again.text, handler.runs) == ("run 1", "run 1", 1)


async def test_a_body_in_chunks_over_the_limit_is_answered_413(served: Served, make_bench: Any) -> None:
    handler = served.app = make_bench.Handler()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield b"x" * 60_000

    async with served.client() as client:
        assert (await client.post("/orders", content=pieces())).status_code == 413
    assert handler.runs == 0


@pytest.mark.parametrize("status", [200, 204, 205, 303, 304, 404])
async def test_a_replay_keeps_the_connection_in_order(served: Served, make_bench: Any, status: int) -> None:
    bodiless = status in (204, 304)
    served.app = make_bench.Handler(status=status, chunks=[b""] if bodiless else [b"a", b"b", b""])
    async with served.client() as client:
        first, *replays = [await client.post("/orders", content=b"{}") for _ in range(4)]
    for replay in replays:
        assert (replay.status_code, replay.content) == (status, first.content)
        assert replay.headers["idempotent-replayed"] == "true"
        assert replay.headers.get("content-length") == (None if bodiless else "2")
