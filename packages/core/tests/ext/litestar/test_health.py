"""The health route: who may take work, and what it does not tell."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from litestar import Litestar, get
from litestar.di import NamedDependency

from tenure import InMemoryLockStore, Locks
from tenure.ext.litestar import UNSCOPED, TenurePlugin
from tenure.idempotency import Idempotency, InMemoryIdempotencyStore
from tenure.store import Finding

Serve = Any


class Checked(InMemoryLockStore):
    """A store in memory that looks at a server which it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.does: Any = None

    async def check(self) -> Sequence[Finding]:
        self.looks += 1
        if isinstance(self.does, Exception):
            raise self.does
        if isinstance(self.does, asyncio.Event):
            await self.does.wait()
        return self.does if isinstance(self.does, list) else []


def fatal(*, fatal: bool) -> list[Finding]:
    return [Finding("role-lacks-right", fatal=fatal, message="role app at db.secret:5432", remedy="Grant it.")]


def app_on(store: InMemoryLockStore, *handlers: Any, **options: Any) -> Litestar:
    return Litestar(
        list(handlers),
        plugins=[TenurePlugin(locks=lambda: Locks(store, instance="shop-1"), health_path="/health", **options)],
    )


async def test_an_instance_that_is_well_says_what_it_does(serve: Serve) -> None:
    @get("/hold")
    async def hold(locks: NamedDependency[Locks]) -> dict[str, Any]:
        async with locks.hold("user:4711"):
            return (await client.get("/health")).json()  # type: ignore[no-any-return]

    app = app_on(
        InMemoryLockStore(),
        hold,
        idempotency=lambda: Idempotency(InMemoryIdempotencyStore(), instance="shop-1"),
        principal=UNSCOPED,
    )
    async with serve(app) as client:
        answer = await client.get("/health")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        assert answer.json() == {
            "locks": {
                "phase": "open",
                "instance": "shop-1",
                "store": {"type": "InMemoryLockStore", "server": "unchecked"},
                "held": 0,
                "waiting": 0,
                "lost": 0,
            },
            "idempotency": {
                "phase": "open",
                "instance": "shop-1",
                "store": {"type": "InMemoryIdempotencyStore", "server": "unchecked"},
                "running": 0,
            },
        }
        held = (await client.get("/hold")).json()
        assert held["locks"]["held"] == 1
        assert "4711" not in str(held)


@pytest.mark.parametrize("part", ["locks", "idempotency"])
async def test_what_shuts_down_takes_no_work(serve: Serve, part: str) -> None:
    @get("/close")
    async def close(locks: NamedDependency[Locks], idempotency: NamedDependency[Idempotency]) -> None:
        await (locks if part == "locks" else idempotency).close()

    app = app_on(
        InMemoryLockStore(), close, idempotency=lambda: Idempotency(InMemoryIdempotencyStore()), principal=UNSCOPED
    )
    async with serve(app) as client:
        await client.get("/close")
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()[part]["phase"]) == (503, "closed")


async def test_one_that_was_not_started_takes_none_either() -> None:
    from litestar.testing import AsyncTestClient

    client = AsyncTestClient(app_on(InMemoryLockStore()))  # without its lifespan
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()["locks"]["phase"]) == (503, "new")


@pytest.mark.parametrize(
    ("does", "status", "server"),
    [
        (None, 200, "ok"),
        (fatal(fatal=False), 200, "ok"),
        (fatal(fatal=True), 503, "unsafe"),
        (OSError("connection to db.secret:5432 refused"), 503, "unreachable"),
    ],
)
async def test_the_stores_own_check_decides_and_its_words_stay_inside(
    serve: Serve, does: Any, status: int, server: str
) -> None:
    store = Checked()
    async with serve(app_on(store)) as client:
        store.does = does
        answer = await client.get("/health")
    assert (answer.status_code, answer.json()["locks"]["store"]["server"]) == (status, server)
    assert "secret" not in answer.text


@pytest.mark.matrix
async def test_a_server_that_hangs_is_told_within_the_bound_and_asked_once_at_a_time(serve: Serve) -> None:
    store = Checked()
    async with serve(app_on(store)) as client:
        store.does = asyncio.Event()
        before = store.looks
        async with asyncio.timeout(15):  # the bound of a look is 3 s; a busy machine is given some more
            answers = await asyncio.gather(*(client.get("/health") for _ in range(5)))
        assert [answer.status_code for answer in answers] == [503] * 5
        assert {answer.json()["locks"]["store"]["server"] for answer in answers} == {"unreachable"}
        assert store.looks - before == 1
        store.does.set()
        store.does = None
        for _ in itertools.count():
            if (await client.get("/health")).status_code == 200:
                break
            await asyncio.sleep(0.1)


async def test_probes_of_one_second_share_a_look(serve: Serve) -> None:
    store = Checked()
    async with serve(app_on(store)) as client:
        before = store.looks
        for _ in range(5):
            assert (await client.get("/health")).status_code == 200
        assert store.looks - before <= 2


@pytest.mark.parametrize("shown", [False, True])
def test_it_is_part_of_openapi_where_that_was_asked_for(shown: bool) -> None:
    app = app_on(InMemoryLockStore(), health_in_schema=shown)
    assert ("/health" in app.openapi_schema.to_schema().get("paths", {})) is shown


async def test_without_a_path_there_is_none(serve: Serve) -> None:
    app = Litestar(plugins=[TenurePlugin(locks=lambda: Locks(InMemoryLockStore()))])
    async with serve(app) as client:
        assert (await client.get("/health")).status_code == 404
