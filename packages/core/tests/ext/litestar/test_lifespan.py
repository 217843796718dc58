"""The start and the end: what is entered when, and what a wrong order is told."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from advanced_alchemy.extensions.litestar import SQLAlchemyAsyncConfig, SQLAlchemyInitPlugin, SQLAlchemyPlugin
from litestar import Litestar, get
from litestar.config.app import AppConfig
from litestar.di import NamedDependency
from litestar.plugins import InitPlugin
from sqlalchemy.ext.asyncio import create_async_engine

from tenure import ConfigurationError, InMemoryLockStore, LeaseStateError, Locks
from tenure.config import TenureConfig
from tenure.events import Event, IdempotencyClosed, IdempotencyStarted, LocksClosed, LocksStarted
from tenure.ext.litestar import UNSCOPED, TenurePlugin
from tenure.ext.litestar._running import Running
from tenure.ext.litestar._sources import Source
from tenure.idempotency import Idempotency, InMemoryIdempotencyStore
from tenure.locks import Phase

Serve = Any

_NAMES = {
    LocksStarted: "locks entered",
    LocksClosed: "locks left",
    IdempotencyStarted: "idempotency entered",
    IdempotencyClosed: "idempotency left",
}


class Journal(list[str]):
    def __call__(self, event: Event) -> None:
        if type(event) in _NAMES:
            self.append(_NAMES[type(event)])

    @contextlib.asynccontextmanager
    async def manager(self, app: Litestar) -> AsyncIterator[None]:
        self.append("client opened")
        yield
        self.append("client closed")


class ClientPlugin(InitPlugin):
    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.lifespan.append(self.journal.manager)
        return app_config


@pytest.fixture
def journal() -> Journal:
    return Journal()


def failing(error: type[Exception], said: str) -> Any:
    """A start that fails: Litestar's event emitter puts the error into a group."""
    return pytest.RaisesGroup(pytest.RaisesExc(error, match=said), flatten_subgroups=True)


def locks_that_tell(journal: Journal) -> Locks:
    return Locks(InMemoryLockStore(), hooks=[journal])


ALL = [
    "client opened",
    "idempotency entered",
    "locks entered",
    "locks left",
    "idempotency left",
    "client closed",
]


@pytest.mark.parametrize("way", ["a plugin", "a manager of the application"])
async def test_locks_are_entered_after_the_client_and_left_before_it(serve: Serve, journal: Journal, way: str) -> None:
    ours = TenurePlugin(
        locks=lambda: locks_that_tell(journal),
        idempotency=lambda: Idempotency(InMemoryIdempotencyStore(), hooks=[journal]),
        principal=UNSCOPED,
    )
    if way == "a plugin":
        app = Litestar(plugins=[ClientPlugin(journal), ours])
    else:
        app = Litestar(plugins=[ours], lifespan=[journal.manager])
    async with serve(app):
        assert journal == ALL[:3]
    assert journal == ALL


async def test_a_start_that_fails_later_leaves_what_was_entered(journal: Journal) -> None:
    def fail() -> None:
        raise OSError("no port")

    app = Litestar(plugins=[TenurePlugin(locks=lambda: locks_that_tell(journal))], on_startup=[fail])
    with failing(OSError, "no port"):
        async with app.lifespan():
            pass
    assert journal == ["locks entered", "locks left"]


async def test_a_failing_locks_leaves_the_idempotency_that_was_entered_before(journal: Journal) -> None:
    def fail() -> Locks:
        raise OSError("no server")

    app = Litestar(
        plugins=[
            TenurePlugin(
                locks=fail,
                idempotency=lambda: Idempotency(InMemoryIdempotencyStore(), hooks=[journal]),
                principal=UNSCOPED,
            )
        ]
    )
    with failing(OSError, "no server"):
        async with app.lifespan():
            pass
    assert journal == ["idempotency entered", "idempotency left"]


# ------------------------------------------------------------------------------------------ sources


async def test_a_callable_is_called_inside_the_lifespan_and_may_take_the_application(serve: Serve) -> None:
    def open_client(app: Litestar) -> None:
        app.state.store = InMemoryLockStore()

    @contextlib.asynccontextmanager
    async def client(app: Litestar) -> AsyncIterator[None]:
        open_client(app)
        yield

    made: list[Locks] = []

    def make(app: Litestar) -> Locks:
        made.append(Locks(app.state.store))
        return made[-1]

    app = Litestar(plugins=[TenurePlugin(locks=make)], lifespan=[client])
    assert not made
    async with serve(app):
        assert made[0].phase is Phase.OPEN
    assert made[0].phase is Phase.CLOSED


async def test_an_application_with_a_callable_is_started_again_and_again(serve: Serve) -> None:
    app = Litestar(plugins=[TenurePlugin(locks=lambda: Locks(InMemoryLockStore()), health_path="/health")])
    for _ in range(3):
        async with serve(app) as client:
            assert (await client.get("/health")).json()["locks"]["phase"] == "open"


@pytest.mark.parametrize("kind", ["locks", "idempotency"])
async def test_an_instance_serves_one_start_and_the_second_is_told_to_pass_a_callable(kind: str) -> None:
    given: dict[str, Any] = (
        {"locks": Locks(InMemoryLockStore())}
        if kind == "locks"
        else {"idempotency": Idempotency(InMemoryIdempotencyStore()), "principal": UNSCOPED}
    )
    app = Litestar(plugins=[TenurePlugin(**given)])
    async with app.lifespan():
        pass
    with failing(LeaseStateError, r"is closed, and an? \w+ is entered once.*passes a callable: `lambda: "):
        async with app.lifespan():
            pass


async def test_an_application_is_not_entered_twice_at_a_time() -> None:
    app = Litestar()
    running = Running(Source(Locks, lambda: Locks(InMemoryLockStore())), None)
    async with running.lifespan(app):
        with pytest.raises(LeaseStateError, match="running already"):
            async with running.lifespan(app):
                pass
    async with running.lifespan(app):
        assert running.the_locks().phase is Phase.OPEN


async def test_settings_open_a_store_and_close_it(serve: Serve) -> None:
    @get("/instance")
    async def instance(locks: NamedDependency[Locks]) -> str:
        return locks.instance

    app = Litestar([instance], plugins=[TenurePlugin(locks=TenureConfig(store="memory://", instance="shop-1"))])
    async with serve(app) as client:
        assert (await client.get("/instance")).text == "shop-1"


async def test_a_callable_may_return_a_manager_that_gives_a_locks(serve: Serve) -> None:
    settings = TenureConfig(store="memory://", instance="shop-2")
    app = Litestar(plugins=[TenurePlugin(locks=settings.open, health_path="/health")])
    async with serve(app) as client:
        assert (await client.get("/health")).json()["locks"]["instance"] == "shop-2"


async def _coroutine() -> Locks:
    return Locks(InMemoryLockStore())


@contextlib.asynccontextmanager
async def _wrong() -> AsyncIterator[str]:
    yield "locks"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: 3, "returned a int"),
        (_coroutine, "returned a coroutine.*It is not awaited"),
        (_wrong, "What was entered for the Locks is a str"),
    ],
)
async def test_a_callable_that_gives_something_else_is_refused(make: Any, said: str) -> None:
    app = Litestar(plugins=[TenurePlugin(locks=make)])
    with failing(ConfigurationError, said):
        async with app.lifespan():
            pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "nothing to run with"),
        ({"locks": "memory://"}, "A str makes no Locks"),
        ({"idempotency": TenureConfig(store="memory://"), "principal": UNSCOPED}, "makes no Idempotency"),
        ({"idempotency": lambda: None}, "needs principal="),
        ({"locks": lambda: None, "protect": "some"}, "protect is 'some'"),
    ],
)
def test_a_plugin_that_cannot_work_is_refused_where_it_is_written(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        TenurePlugin(**arguments)


# ------------------------------------------------------------------------------- the database's plugin


@pytest.fixture
def alchemy(journal: Journal) -> Iterator[SQLAlchemyAsyncConfig]:
    """An engine whose disposal is written down. It never connects."""
    engine = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    config = SQLAlchemyAsyncConfig(engine_instance=engine)
    opened = config.lifespan

    @contextlib.asynccontextmanager
    async def told(self: SQLAlchemyAsyncConfig, app: Litestar) -> AsyncIterator[None]:
        async with opened(app):
            journal.append("client opened")
            yield
        journal.append("client closed")

    config.lifespan = told.__get__(config)  # type: ignore[method-assign]
    return iter([config])


@pytest.fixture
def database(alchemy: Iterator[SQLAlchemyAsyncConfig]) -> SQLAlchemyAsyncConfig:
    return next(alchemy)


@pytest.mark.parametrize("kind", [SQLAlchemyPlugin, SQLAlchemyInitPlugin])
async def test_the_engine_of_a_plugin_that_is_listed_before_outlives_the_locks(
    serve: Serve, journal: Journal, database: SQLAlchemyAsyncConfig, kind: Any
) -> None:
    app = Litestar(plugins=[kind(config=database), TenurePlugin(locks=lambda: locks_that_tell(journal))])
    async with serve(app):
        pass
    assert journal == ["client opened", "locks entered", "locks left", "client closed"]


async def test_what_is_listed_after_the_locks_is_entered_after_them_whatever_the_database_adds(
    serve: Serve, database: SQLAlchemyAsyncConfig, journal: Journal
) -> None:
    class Scheduler(InitPlugin):
        def on_app_init(self, app_config: AppConfig) -> AppConfig:
            app_config.lifespan.append(self.run)
            return app_config

        @contextlib.asynccontextmanager
        async def run(self, app: Litestar) -> AsyncIterator[None]:
            journal.append("scheduler started")
            yield
            journal.append("scheduler stopped")

    app = Litestar(
        plugins=[
            SQLAlchemyPlugin(config=database),
            TenurePlugin(locks=lambda: locks_that_tell(journal)),
            Scheduler(),
        ]
    )
    async with serve(app):
        pass
    assert journal == [
        "client opened",
        "locks entered",
        "scheduler started",
        "scheduler stopped",
        "locks left",
        "client closed",
    ]


@pytest.mark.parametrize("kind", [SQLAlchemyPlugin, SQLAlchemyInitPlugin])
def test_a_plugin_that_owns_the_database_and_is_listed_after_is_refused(
    kind: Any, database: SQLAlchemyAsyncConfig
) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"listed before {kind.__name__}.*plugins=\[{kind.__name__}\(\.\.\.\)"
    ):
        Litestar(plugins=[TenurePlugin(locks=lambda: Locks(InMemoryLockStore())), kind(config=database)])


def test_a_second_database_that_is_listed_after_is_refused_too(database: SQLAlchemyAsyncConfig) -> None:
    second = SQLAlchemyAsyncConfig(
        engine_instance=create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/other"),
        engine_dependency_key="other_engine",
        session_dependency_key="other_session",
    )
    with pytest.raises(ConfigurationError, match="listed before SQLAlchemyPlugin"):
        Litestar(
            plugins=[
                SQLAlchemyPlugin(config=database),
                TenurePlugin(locks=lambda: Locks(InMemoryLockStore())),
                SQLAlchemyPlugin(config=second),
            ]
        )


def test_a_child_of_the_databases_plugin_is_known_as_one(database: SQLAlchemyAsyncConfig) -> None:
    class Own(SQLAlchemyPlugin):
        """One of the application's."""

    with pytest.raises(ConfigurationError, match="listed before Own"):
        Litestar(plugins=[TenurePlugin(locks=lambda: Locks(InMemoryLockStore())), Own(config=database)])


def test_a_further_plugin_that_owns_a_client_is_named_by_its_type(journal: Journal) -> None:
    ours = TenurePlugin(locks=lambda: Locks(InMemoryLockStore()), after=[ClientPlugin])
    with pytest.raises(ConfigurationError, match="listed before ClientPlugin"):
        Litestar(plugins=[ours, ClientPlugin(journal)])
    assert Litestar(plugins=[ClientPlugin(journal), ours])
