"""What the tests share: stores on both clients, owners, a person with valkey-cli, polls with a bound."""

import asyncio
import secrets
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from tenure_testbed import ValkeyServer
from tenure_testbed.pytest_plugin import or_skip
from tenure_valkey import ValkeyIdempotencyStore, ValkeyLockStore, open_valkey_idempotency_store, open_valkey_store

OpenStore = Callable[..., ValkeyLockStore]
OpenRecords = Callable[..., ValkeyIdempotencyStore]

with warnings.catch_warnings():
    # glide leaves modules behind that warn whoever first looks at them, as Hypothesis looks at every module there is.
    warnings.simplefilter("ignore", DeprecationWarning)
    import glide  # noqa: F401 -- imported for what follows

    for _name, _module in list(sys.modules.items()):
        if _name.startswith("glide."):
            getattr(_module, "__file__", None)


@pytest.fixture(params=["glide", "redis"])
def client(request: pytest.FixtureRequest) -> str:
    """Each test that asks for it runs on both."""
    name: str = request.param
    return name


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Open stores that are closed after the test."""
    stores: list[ValkeyLockStore] = []

    def opened(url: str, **options: Any) -> ValkeyLockStore:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        stores.append(open_valkey_store(f"{url}?{query}" if query else url))
        return stores[-1]

    yield opened
    for store in stores:
        await store.aclose()


@pytest.fixture
async def open_records() -> AsyncIterator[OpenRecords]:
    """Open idempotency stores that are closed after the test."""
    stores: list[ValkeyIdempotencyStore] = []

    def opened(url: str, **options: Any) -> ValkeyIdempotencyStore:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        stores.append(open_valkey_idempotency_store(f"{url}?{query}" if query else url))
        return stores[-1]

    yield opened
    for store in stores:
        await store.aclose()


@pytest.fixture
def records(valkey_url: str, open_records: OpenRecords) -> ValkeyIdempotencyStore:
    """An idempotency store on the shared server, by redis-py; the scripts do not care."""
    return open_records(valkey_url, client="redis")


@pytest.fixture
def own_server() -> Iterator[Callable[[type[ValkeyServer]], ValkeyServer]]:
    """Start servers of the test's own."""
    started: list[ValkeyServer] = []

    def start(kind: type[ValkeyServer]) -> ValkeyServer:
        with or_skip():
            started.append(kind().__enter__())
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def store(valkey_url: str, open_store: OpenStore) -> ValkeyLockStore:
    """A store on the shared server, by redis-py; the scripts do not care."""
    return open_store(valkey_url, client="redis")


@pytest.fixture
def person(valkey_url: str, valkey_server: ValkeyServer) -> Callable[..., Any]:
    """A person with valkey-cli."""
    return valkey_server.execute


@pytest.fixture
def owner() -> Callable[[], str]:
    """Draw an owner, as the engine does."""
    return lambda: f"cat-store-1:{secrets.token_hex(16)}"


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Poll until something holds; five seconds are plenty for a server on loopback."""

    async def wait(holds: Callable[[], Any], what: str, within_s: float = 5.0) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not holds():
            assert loop.time() < deadline, f"waited {within_s} s for {what}"
            await asyncio.sleep(0.005)

    return wait
