"""A storm of requests: connections that are all open before the first of them says a word."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

_PATIENCE_S = 90.0
_LINE = b"\r\n"


@final
@dataclass(frozen=True, slots=True)
class Response:
    """An answer over HTTP, as it came."""

    status: int
    body: bytes
    replayed: bool


async def storm(ports: Sequence[int], path: str, key: str, count: int, body: bytes = b"{}") -> list[Response]:
    """
    Send the same request so many times at once, spread over the servers of *ports*.

    Args:
        ports: Of the servers, on loopback.
        path: Where to.
        key: The Idempotency-Key.
        count: How many connections, with a request each.
        body: The body of each.
    """
    go = asyncio.Event()
    opened = asyncio.Semaphore(50)  # at once; a listener's queue is not what is to be tested

    async def send(number: int) -> Response:
        async with opened:
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[number % len(ports)])
        waiting.release()
        await go.wait()
        head = f"POST {path} HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: {key}\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            return _parsed(await reader.read())
        finally:
            writer.close()

    waiting = asyncio.Semaphore(0)
    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as group:
        sending = [group.create_task(send(number)) for number in range(count)]
        for _ in sending:
            await waiting.acquire()
        go.set()
    return [each.result() for each in sending]


def _parsed(raw: bytes) -> Response:
    head, _, body = raw.partition(_LINE + _LINE)
    status, *fields = head.split(_LINE)
    headers = {name.strip().lower(): value.strip() for name, _, value in (each.partition(b":") for each in fields)}
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = _joined(body)
    return Response(int(status.split()[1]), body, b"idempotent-replayed" in headers)


def _joined(body: bytes) -> bytes:
    """Put the chunks of a body together."""
    whole = b""
    while body:
        size, _, rest = body.partition(_LINE)
        length = int(size, 16)
        if not length:
            break
        whole, body = whole + rest[:length], rest[length + len(_LINE) :]
    return whole
