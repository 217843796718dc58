"""The web server of a replica whose database goes away: it says so, does nothing twice, and comes back by itself."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.replica import open_replica, server_of
from cat_store.settings import Settings
from cat_store.web.server import Listener, ListenError, serving
from tenure_testbed import PostgresServer

Log = Callable[[str], list[str]]

ORDER = {"customer": "alice", "lines": [{"product_id": SALMON_KIBBLE, "quantity": 2}]}
KEY = {"Idempotency-Key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}
PATIENCE_S = 30.0


async def test_without_its_database_a_replica_is_alive_and_not_ready_and_places_nothing(
    own_postgres: PostgresServer, settings: Settings, partners: Any, log: Log
) -> None:
    url = own_postgres.create_database("shop")
    settings = replace(settings, database_url=url)
    async with Shop(url) as shop:
        with Listener("127.0.0.1", 0) as listener:
            async with (
                open_replica(settings, partners=partners.transport) as replica,
                server_of(replica, listener),
                httpx.AsyncClient(base_url=listener.url, timeout=PATIENCE_S) as web,
            ):
                await asyncio.to_thread(own_postgres.kill)
                assert (await web.get("/health/live")).status_code == 200
                ready = await web.get("/health/ready")
                assert ready.status_code == 503
                assert ready.json() == dict.fromkeys(("database", "locks", "idempotency"), "unreachable")
                for headers, code in (
                    ({}, "urn:cat-store:database-unavailable"),
                    # Fail closed: without its record a request under a key is not carried out.
                    (KEY, "urn:tenure:idempotency:store-unavailable"),
                ):
                    refused = await web.post("/orders", json=ORDER, headers=headers)
                    assert (refused.status_code, refused.json()["type"]) == (503, code)
                    assert int(refused.headers["retry-after"]) >= 1
                assert log("The database failed under POST /orders")
                await asyncio.to_thread(own_postgres.start)
                async with asyncio.timeout(PATIENCE_S):
                    while (await web.get("/health/ready")).status_code != 200:
                        await asyncio.sleep(0.05)
                    while (await web.post("/orders", json=ORDER, headers=KEY)).status_code != 201:
                        await asyncio.sleep(0.05)
                assert (await web.post("/orders", json=ORDER, headers=KEY)).headers["idempotent-replayed"] == "true"
                assert await shop.orders_of(["alice"]) == {"alice": 1}


def test_a_port_that_is_taken_is_told_from_every_other_failure() -> None:
    with (
        Listener("127.0.0.1", 0) as first,
        pytest.raises(ListenError, match=f"cannot have port {first.port} of 127.0.0.1: Address already in use"),
    ):
        # Taken as soon as it is listened on, by whomever.
        first.socket.listen()
        Listener("127.0.0.1", first.port)


async def test_of_two_replicas_that_take_a_port_at_once_the_one_that_listens_later_is_refused() -> None:
    with Listener("127.0.0.1", 0) as first, Listener("127.0.0.1", first.port) as second:
        first.listen()
        with pytest.raises(ListenError, match=f"cannot have port {first.port} of 127.0.0.1: Address already in use"):
            async with serving(lambda *_: asyncio.sleep(0), second, drain_s=1):
                pytest.fail("it serves")


def test_an_interface_that_is_not_this_machines_is_refused() -> None:
    with pytest.raises(ListenError, match="CAT_STORE_HOST"):
        Listener("192.0.2.1", 0)


class Heard(asyncio.Protocol):
    """Takes note of the connection that it is given."""

    def __init__(self) -> None:
        self.given: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.given.set_result(transport)


async def test_an_answer_is_not_held_back_until_the_client_has_acknowledged_its_first_part() -> None:
    heard = Heard()
    with Listener("127.0.0.1", 0) as listener:
        async with await asyncio.get_running_loop().create_server(lambda: heard, sock=listener.socket):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            accepted = (await heard.given).get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            writer.close()
            (await heard.given).close()  # type: ignore[attr-defined]


async def test_an_application_that_does_not_start_fails_its_replica_and_not_the_process() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with Listener("127.0.0.1", 0) as listener, pytest.raises(ListenError, match="did not start"):
        async with serving(fails, listener, drain_s=1):
            pytest.fail("it serves")
