"""The live page, the numbers and the jobs' controls, as a whole replica serves them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

Serve = Callable[..., Awaitable[httpx.AsyncClient]]
Launch = Callable[..., Awaitable[list[Any]]]

ADMIN = {"X-Admin-Token": "s3cret-administrator"}


@pytest.mark.matrix
async def test_every_replica_serves_the_page_and_tells_of_the_others(serve: Serve) -> None:
    one, other = await serve(), await serve()
    await asyncio.sleep(2.5)  # two beats: each replica tells of itself once a second
    for client in (one, other):
        page = await client.get("/")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "cat-store-1" in page.text
        assert "cat-store-2" in page.text
        assert "s3cret-administrator" not in page.text


async def test_the_numbers_are_those_of_the_replica_that_is_asked(serve: Serve) -> None:
    client = await serve()
    await client.post("/orders", json={"customer": "alice", "lines": []}, headers={"Idempotency-Key": "one"})
    numbers = (await client.get("/metrics")).text
    assert "tenure_requests_total" in numbers
    assert "alice" not in numbers


async def test_an_administrator_pauses_a_job_through_any_replica(serve: Serve) -> None:
    one, other = await serve(), await serve()
    assert (await one.post("/admin/jobs/invoice-export/pause")).status_code == 403
    assert (await one.post("/admin/jobs/invoice-export/pause", headers=ADMIN)).status_code == 200
    [export] = [
        job for job in (await other.get("/admin/jobs", headers=ADMIN)).json() if job["name"] == "invoice-export"
    ]
    assert export["paused"]
    assert (await other.post("/admin/jobs/no-such-job/pause", headers=ADMIN)).status_code == 404


@pytest.mark.matrix
async def test_an_open_page_does_not_hold_up_a_stop(launch: Launch) -> None:
    [replica] = await launch(1, DRAIN="30")
    async with (
        httpx.AsyncClient(base_url=replica.url, timeout=30) as client,
        client.stream("GET", "/live/stream") as stream,
    ):
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.aiter_lines()
        await anext(lines)
        began = time.monotonic()
        code = await asyncio.to_thread(replica.terminate, 25)
        assert code == 0
        # Of a drain of half a minute nothing is used: the stream is ended, and there is nothing else to wait for.
        assert time.monotonic() - began < 15
