"""What handlers are given, and the names that it has."""

import sys
import types
from typing import Any

import pytest
from litestar import Litestar, Router, get, post, route
from litestar.config.app import AppConfig
from litestar.di import NamedDependency, Provide
from litestar.plugins import InitPlugin

from tenure import ConfigurationError, InMemoryLockStore, Locks
from tenure.ext.litestar import UNSCOPED, IdempotencyOptions, TenurePlugin
from tenure.idempotency import Idempotency, IdempotencyContext, InMemoryIdempotencyStore

Serve = Any


def plugin(**options: Any) -> TenurePlugin:
    return TenurePlugin(
        **{
            "locks": lambda: Locks(InMemoryLockStore(), instance="shop-1"),
            "idempotency": lambda: Idempotency(InMemoryIdempotencyStore(), instance="shop-1"),
            "principal": UNSCOPED,
            **options,
        }
    )


async def test_handlers_are_given_the_locks_and_the_idempotency(serve: Serve) -> None:
    @get("/both")
    async def both(locks: NamedDependency[Locks], idempotency: NamedDependency[Idempotency]) -> str:
        async with locks.hold("job") as lease:
            return f"{lease.key} {locks.instance} {idempotency.instance}"

    async with serve(Litestar([both], plugins=[plugin()])) as client:
        assert (await client.get("/both")).text == "job shop-1 shop-1"


async def test_the_names_may_be_others(serve: Serve) -> None:
    @get("/both")
    async def both(leases: NamedDependency[Locks], once: NamedDependency[Idempotency]) -> str:
        return f"{leases.instance} {once.instance}"

    app = Litestar([both], plugins=[plugin(locks_key="leases", idempotency_key="once")])
    async with serve(app) as client:
        assert (await client.get("/both")).text == "shop-1 shop-1"


async def test_annotations_that_are_text_find_their_types(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("handlers_of_text")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(  # a module under `from __future__ import annotations` that imports the types for type checkers alone
        "from __future__ import annotations\n"
        "from litestar import get\n"
        "from litestar.di import NamedDependency\n"
        "@get('/text')\n"
        "async def text(locks: NamedDependency[Locks], idempotency: NamedDependency[Idempotency]) -> str:\n"
        "    return locks.instance\n",
        vars(module),
    )
    async with serve(Litestar([module.text], plugins=[plugin()])) as client:
        assert (await client.get("/text")).text == "shop-1"


async def provide_other() -> str:
    return "other"


@pytest.mark.parametrize("name", ["locks", "idempotency", "idempotency_context"])
def test_a_dependency_of_the_same_name_is_not_replaced_but_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf'dependency "{name}" of its own.*rename one'):
        Litestar(plugins=[plugin()], dependencies={name: Provide(provide_other)})


def test_a_plugin_that_takes_the_name_later_is_refused_too() -> None:
    class Later(InitPlugin):
        def on_app_init(self, app_config: AppConfig) -> AppConfig:
            app_config.dependencies["locks"] = Provide(provide_other)
            return app_config

    with pytest.raises(ConfigurationError, match='dependency "locks" of its own'):
        Litestar(plugins=[plugin(), Later()])


def test_a_plugin_without_idempotency_leaves_its_names_free() -> None:
    own = {"idempotency": Provide(provide_other), "idempotency_context": Provide(lambda: "x", sync_to_thread=False)}
    assert Litestar(plugins=[plugin(idempotency=None, principal=None)], dependencies=own)


async def test_an_application_whose_lifespan_did_not_run_says_so() -> None:
    app = Litestar(plugins=[plugin()])
    provider: Any = app.dependencies["locks"]
    with pytest.raises(RuntimeError, match=r"its lifespan, and that has not run.*AsyncTestClient"):
        await provider()


# ---------------------------------------------------------------------------------------- the context


REQUIRED = {"idempotency": {"required": True}}
KEY = {"Idempotency-Key": "k-1"}


async def test_a_handler_is_given_the_context_of_its_own_execution(serve: Serve) -> None:
    @post("/orders", opt=REQUIRED)
    async def order(idempotency_context: NamedDependency[IdempotencyContext]) -> str:
        return f"attempt {idempotency_context.attempt} {len(idempotency_context.downstream_key('charge'))}"

    async with serve(Litestar([order], plugins=[plugin()])) as client:
        assert (await client.post("/orders", headers=KEY)).text == "attempt 1 32"


async def test_a_dependency_of_the_handler_may_take_it(serve: Serve) -> None:
    async def charge_key(idempotency_context: NamedDependency[IdempotencyContext]) -> str:
        return idempotency_context.downstream_key("charge")

    @post("/orders", opt=REQUIRED, dependencies={"charge": Provide(charge_key)})
    async def order(charge: NamedDependency[str]) -> str:
        return charge

    async with serve(Litestar([order], plugins=[plugin()])) as client:
        assert len((await client.post("/orders", headers=KEY)).text) == 32


async def test_where_the_key_is_optional_the_context_is_too(serve: Serve) -> None:
    @post("/orders", opt={"idempotency": True})
    async def order(idempotency_context: NamedDependency[IdempotencyContext | None]) -> str:
        return "without" if idempotency_context is None else "with"

    async with serve(Litestar([order], plugins=[plugin()])) as client:
        assert (await client.post("/orders")).text == "without"
        assert (await client.post("/orders", headers=KEY)).text == "with"


@pytest.mark.parametrize(
    ("opt", "said"),
    [({}, "its route is not idempotent"), ({"idempotency": True}, "takes requests without an idempotency key")],
)
@pytest.mark.parametrize("by", ["the handler", "a dependency"])
def test_asking_for_a_context_that_may_be_missing_is_refused_when_the_application_is_made(
    opt: dict[str, Any], said: str, by: str
) -> None:
    if by == "the handler":

        @post("/orders", opt=opt)
        async def order(idempotency_context: NamedDependency[IdempotencyContext]) -> None: ...
    else:

        async def deeper(idempotency_context: NamedDependency[IdempotencyContext]) -> str:
            return "never"

        async def charge(deep: NamedDependency[str]) -> str:
            return deep

        @post("/orders", opt=opt, dependencies={"charge": Provide(charge), "deep": Provide(deeper)})
        async def order(charge: NamedDependency[str]) -> None: ...  # type: ignore[misc]

    with pytest.raises(ConfigurationError, match=f"{said}.*IdempotencyContext | None"):
        Litestar([order], plugins=[plugin()])


async def test_a_method_that_is_not_protected_has_no_context_and_says_so(serve: Serve) -> None:
    @route("/orders", http_method=["POST", "DELETE"], opt=REQUIRED)
    async def order(idempotency_context: NamedDependency[IdempotencyContext]) -> None: ...

    told: list[Exception] = []

    async def tell(error: Exception, _: Any) -> None:
        told.append(error)

    app = Litestar([order], plugins=[plugin()], after_exception=[tell])
    async with serve(app) as client:
        assert (await client.post("/orders", headers=KEY)).status_code == 201
        failed = await client.delete("/orders", headers=KEY)
    assert failed.status_code == 500
    assert "with a method that is not protected" in str(told[0])
    assert "k-1" not in failed.text + str(told[0])


# --------------------------------------------------------------------------------------------- opt


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("yes", r'opt\["idempotency"\] of POST /orders is a str'),
        ({"requird": True}, r"names requird, which IdempotencyOptions has not: it has fingerprint, header"),
        ({"syntax": "loose"}, r'opt\["idempotency"\] of POST /orders: syntax is one of'),
        (None, "is a NoneType"),
    ],
)
def test_an_opt_that_cannot_be_read_is_refused_with_its_route(said: Any, expected: str) -> None:
    @post("/orders", opt={"idempotency": said})
    async def order() -> None: ...

    with pytest.raises(ConfigurationError, match=expected):
        Litestar([order], plugins=[plugin()])


@pytest.mark.parametrize("said", [True, {"required": True}, IdempotencyOptions(), None])
def test_a_route_that_asks_for_protection_where_there_is_none_is_refused(said: Any) -> None:
    @post("/orders", opt={"idempotency": said})
    async def order() -> None: ...

    with pytest.raises(ConfigurationError, match=r"/orders asks for idempotency.*TenurePlugin was given none"):
        Litestar([order], plugins=[plugin(idempotency=None, principal=None)])


def test_a_route_that_declines_protection_needs_none() -> None:
    @post("/orders", opt={"idempotency": False})
    async def order() -> None: ...

    assert Litestar([order], plugins=[plugin(idempotency=None, principal=None)])


LAYERS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, {}, "unprotected"),
    ({"idempotency": True}, {}, {}, "optional"),
    ({"idempotency": {"required": True}}, {}, {}, "required"),
    ({"idempotency": {"required": True}}, {"idempotency": False}, {}, "unprotected"),
    ({"idempotency": {"required": True}}, {"idempotency": False}, {"idempotency": True}, "optional"),
    ({}, {"idempotency": {"required": True}}, {"idempotency": True}, "required"),
    ({}, {"idempotency": {"required": True}}, {"idempotency": {"max_retry_after_s": 2}}, "required"),
    ({}, {"idempotency": {"required": True}}, {"idempotency": IdempotencyOptions()}, "optional"),
    ({}, {"idempotency": True}, {"idempotency": False}, "unprotected"),
]


@pytest.mark.parametrize(("app_opt", "router_opt", "handler_opt", "expected"), LAYERS)
async def test_opt_is_folded_from_the_application_down_to_the_handler(
    serve: Serve, app_opt: Any, router_opt: Any, handler_opt: Any, expected: str
) -> None:
    runs = []

    @post("/", opt=handler_opt)
    async def order() -> None:
        runs.append(1)

    app = Litestar([Router("/orders", route_handlers=[order], opt=router_opt)], opt=app_opt, plugins=[plugin()])
    async with serve(app) as client:
        keyless = (await client.post("/orders")).status_code
        for _ in range(2):
            await client.post("/orders", headers=KEY)
    found = {(201, 3): "unprotected", (201, 2): "optional", (400, 1): "required"}
    assert found[keyless, len(runs)] == expected


@pytest.mark.parametrize(("opt", "expected"), [({}, 1), ({"idempotency": False}, 2)])
async def test_all_routes_are_protected_where_that_is_said_but_those_that_decline(
    serve: Serve, opt: Any, expected: int
) -> None:
    runs = []

    @post("/orders", opt=opt)
    async def order() -> None:
        runs.append(1)

    async with serve(Litestar([order], plugins=[plugin(protect="all")])) as client:
        for _ in range(2):
            await client.post("/orders", headers=KEY)
    assert len(runs) == expected


async def test_a_route_that_is_registered_later_is_protected_and_one_that_grows_a_method_is_not_twice(
    serve: Serve,
) -> None:
    runs = []

    @post("/orders", opt={"idempotency": True})
    async def order() -> None:
        runs.append(1)

    @get("/orders")
    async def orders() -> None: ...

    app = Litestar(plugins=[plugin()])
    app.register(order)
    app.register(orders)
    async with serve(app) as client:
        for _ in range(2):
            assert (await client.post("/orders", headers=KEY)).status_code == 201
        assert (await client.get("/orders")).status_code == 200
    assert len(runs) == 1
