"""A protected route: carried out once, whatever kind of handler it has and however it ends."""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from litestar import Controller, MediaType, Request, Response, Router, get, patch, post
from litestar.background_tasks import BackgroundTask
from litestar.dto import DataclassDTO, DTOConfig
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.params import FromQuery, JSONBody

from tenure.errors import ExecutionLostError, NoEffectError, OutcomeUnknownError
from tenure.ext.litestar import ClientQuota

Serve = Any
AppOf = Any

PROTECTED = {"idempotency": True}


def key(value: str = "k-1") -> dict[str, str]:
    return {"Idempotency-Key": value}


def is_replay(answer: httpx.Response) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


async def test_a_repeat_gets_the_first_response_and_runs_nothing(serve: Serve, app_of: AppOf) -> None:
    runs: list[dict[str, Any]] = []

    @post("/orders", opt=PROTECTED)
    async def order(data: JSONBody[dict[str, Any]]) -> Response[dict[str, Any]]:
        runs.append(data)
        return Response({"number": len(runs), **data}, headers={"Location": "/orders/1"})

    async with serve(app_of(order)) as client:
        first = await client.post("/orders", json={"cat": "Miau"}, headers=key())
        again = await client.post("/orders", json={"cat": "Miau"}, headers=key())
    assert runs == [{"cat": "Miau"}]
    assert (first.status_code, first.json(), is_replay(first)) == (201, {"number": 1, "cat": "Miau"}, False)
    assert (again.status_code, again.content, is_replay(again)) == (201, first.content, True)
    assert again.headers["location"] == "/orders/1"


async def test_another_payload_or_route_under_the_key_is_422(serve: Serve, app_of: AppOf) -> None:
    @post(["/orders", "/refunds"], opt=PROTECTED)
    async def order(data: JSONBody[dict[str, Any]]) -> None: ...

    async with serve(app_of(order)) as client:
        await client.post("/orders", json={"n": 1}, headers=key())
        for path, body in (("/orders", {"n": 2}), ("/refunds", {"n": 1})):
            answer = await client.post(path, json=body, headers=key())
            assert (answer.status_code, answer.json()["type"]) == (422, "urn:tenure:idempotency:key-reused")


async def test_a_client_with_a_quota_waits_whichever_route_it_asks_and_nobody_else_does(
    serve: Serve, app_of: AppOf
) -> None:
    @post(["/orders", "/refunds"], opt=PROTECTED)
    async def order() -> str:
        return "done"

    def client_of(scope: Any) -> str:
        return str(dict(scope["headers"])[b"x-account"].decode())

    app = app_of(order, principal=client_of, quota=ClientQuota(new_keys=2))
    async with serve(app) as client:
        anna, ben = {"X-Account": "anna"}, {"X-Account": "ben"}
        for number, path in enumerate(("/orders", "/refunds")):
            assert (await client.post(path, headers=key(f"k-{number}") | anna)).status_code == 201
        over = await client.post("/orders", headers=key("k-2") | anna)
        assert (over.status_code, over.json()["code"]) == (429, "too-many-requests")
        assert 3500 < int(over.headers["retry-after"]) <= 3600
        assert is_replay(await client.post("/orders", headers=key("k-0") | anna))
        assert (await client.post("/orders", headers=key("k-2") | ben)).status_code == 201
        assert (await client.post("/orders", headers=anna)).status_code == 201  # without a key there is no record


async def test_a_repeat_while_the_first_runs_is_409_with_a_pause(serve: Serve, app_of: AppOf) -> None:
    go, entered = asyncio.Event(), asyncio.Event()

    @post("/orders", opt=PROTECTED)
    async def order() -> str:
        entered.set()
        await go.wait()
        return "done"

    async with serve(app_of(order)) as client:
        first = asyncio.create_task(client.post("/orders", headers=key()))
        await entered.wait()
        answer = await client.post("/orders", headers=key())
        assert (answer.status_code, answer.json()["code"]) == (409, "in-flight")
        assert 1 <= int(answer.headers["retry-after"]) <= 5
        go.set()
        assert (await first).text == "done"
        assert is_replay(await client.post("/orders", headers=key()))


# ----------------------------------------------------------------------------------- kinds of handlers


@dataclass
class Cat:
    name: str
    secret: str = "whiskers"


class CatDTO(DataclassDTO[Cat]):
    config = DTOConfig(exclude={"secret"})


class Runs:
    def __init__(self) -> None:
        self.count = 0
        self.threads: set[int] = set()

    def add(self) -> int:
        self.count += 1
        self.threads.add(threading.get_ident())
        return self.count


def _kinds(runs: Runs) -> dict[str, Any]:
    @post("/", opt=PROTECTED, dto=CatDTO, return_dto=CatDTO)
    async def asynchronous(data: JSONBody[Cat]) -> Cat:
        return Cat(f"{data.name} {runs.add()}")

    @post("/", opt=PROTECTED, dto=CatDTO, return_dto=CatDTO, sync_to_thread=False)
    def inline(data: JSONBody[Cat]) -> Cat:
        return Cat(f"{data.name} {runs.add()}")

    @post("/", opt=PROTECTED, sync_to_thread=True)
    def in_a_thread(data: JSONBody[Cat]) -> dict[str, str]:
        return {"name": f"{data.name} {runs.add()}"}

    class Cats(Controller):
        path = "/"
        opt = PROTECTED

        @post(dto=CatDTO, return_dto=CatDTO)
        async def make(self, data: JSONBody[Cat]) -> Cat:
            assert isinstance(self, Cats)
            return Cat(f"{data.name} {runs.add()}")

    class CatsInThreads(Controller):
        path = "/"
        opt = PROTECTED

        @post(sync_to_thread=True)
        def make(self, data: JSONBody[Cat]) -> dict[str, str]:
            return {"name": f"{data.name} {runs.add()}"}

    return {
        "asynchronous": asynchronous,
        "inline": inline,
        "in a thread": in_a_thread,
        "of a controller": Cats,
        "of a controller, in a thread": CatsInThreads,
    }


@pytest.mark.parametrize("kind", list(_kinds(Runs())))
async def test_every_kind_of_handler_runs_once(serve: Serve, app_of: AppOf, kind: str) -> None:
    runs = Runs()
    async with serve(app_of(_kinds(runs)[kind])) as client:
        answers = [await client.post("/", json={"name": "Miau"}, headers=key()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert [answer.json() for answer in answers] == [{"name": "Miau 1"}] * 2
    assert runs.count == 1
    assert (threading.get_ident() in runs.threads) is ("thread" not in kind)


async def test_one_handler_in_two_applications_runs_once_in_each(serve: Serve, app_of: AppOf) -> None:
    runs = Runs()

    @post("/", opt=PROTECTED)
    async def order() -> int:
        return runs.add()

    async with serve(app_of(order)) as one, serve(app_of(order)) as two:
        for client in (one, two, one, two):
            assert (await client.post("/", headers=key())).status_code == 201
    assert runs.count == 2


async def test_a_key_on_a_method_or_a_route_that_is_not_protected_means_nothing(serve: Serve, app_of: AppOf) -> None:
    runs = Runs()

    @get("/orders", opt=PROTECTED)
    async def orders() -> int:
        return runs.add()

    @post("/carts")
    async def cart() -> int:
        return runs.add()

    async with serve(app_of(orders, cart)) as client:
        for _ in range(2):
            await client.get("/orders", headers=key())
            await client.post("/carts", headers=key())
    assert runs.count == 4


# --------------------------------------------------------------------------------- how handlers end


def _raising(error: BaseException, runs: Runs, **opt: Any) -> Any:
    @patch("/", opt={"idempotency": opt or True}, sync_to_thread=False)
    def fail() -> None:
        runs.add()
        raise error

    return fail


def _no_effect_from(error: Exception) -> NoEffectError:
    made = NoEffectError()
    made.__cause__ = error
    return made


class RefusedError(NoEffectError, HTTPException):
    status_code = 402


@pytest.mark.parametrize(
    ("error", "opt", "status_and_runs"),
    [
        # What the handler says of the request is its outcome.
        (HTTPException(status_code=404, detail="no such cat"), {}, (404, 1)),
        (HTTPException(status_code=422), {}, (422, 1)),
        # What it says of the moment or the caller is not.
        (HTTPException(status_code=409), {}, (409, 2)),
        (HTTPException(status_code=429), {}, (429, 2)),
        (NotAuthorizedException(), {}, (401, 2)),
        # A failure is as the route says.
        (ValueError("boom"), {}, (500, 2)),
        (ValueError("boom"), {"on_failure": "store"}, (500, 1)),
        (HTTPException(status_code=503), {}, (503, 2)),
        (HTTPException(status_code=503), {"on_failure": "store"}, (503, 1)),
        # The handler knows better than its route.
        (NoEffectError(), {"on_failure": "store"}, (500, 2)),
        (RefusedError(), {"on_failure": "store"}, (402, 2)),
        (_no_effect_from(HTTPException(status_code=402)), {"on_failure": "store"}, (402, 2)),
    ],
)
async def test_what_becomes_of_an_error(
    serve: Serve, app_of: AppOf, error: Exception, opt: dict[str, Any], status_and_runs: tuple[int, int]
) -> None:
    status, runs_of_two = status_and_runs
    runs = Runs()
    async with serve(app_of(_raising(error, runs, **opt))) as client:
        answers = [await client.patch("/", headers=key()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, status]
    assert runs.count == runs_of_two
    assert is_replay(answers[1]) is (runs_of_two == 1)
    assert answers[0].content == answers[1].content


@pytest.mark.parametrize(
    ("error", "opt"),
    [
        (OutcomeUnknownError(), {"on_failure": "store"}),
        (ValueError("boom"), {"on_failure": "abandon"}),
        (HTTPException(status_code=500), {"on_failure": "abandon"}),
    ],
)
async def test_an_unknown_outcome_is_left_for_the_lock_to_run_out(
    serve: Serve, app_of: AppOf, error: Any, opt: Any
) -> None:
    runs = Runs()
    async with serve(app_of(_raising(error, runs, **opt))) as client:
        first = await client.patch("/", headers=key())
        again = await client.patch("/", headers=key())
    assert first.status_code == 500
    assert (again.status_code, again.json()["code"]) == (409, "in-flight")
    assert runs.count == 1


async def test_an_execution_that_was_replaced_says_so_as_a_problem_where_asked(serve: Serve, app_of: AppOf) -> None:
    async with serve(app_of(_raising(ExecutionLostError(), Runs()), problem_details=True)) as client:
        answer = await client.patch("/", headers=key())
    assert (answer.status_code, answer.json()["code"]) == (409, "in-flight")


async def test_an_application_with_a_handler_for_exceptions_stores_what_that_makes(serve: Serve, app_of: AppOf) -> None:
    def gone(_: Request[Any, Any, Any], __: Exception) -> Response[str]:
        return Response("gone", status_code=410, media_type=MediaType.TEXT)

    runs = Runs()
    app = app_of(_raising(KeyError("cat"), runs), exception_handlers={KeyError: gone})
    async with serve(app) as client:
        answers = [await client.patch("/", headers=key()) for _ in range(2)]
    assert [(answer.status_code, answer.text) for answer in answers] == [(410, "gone")] * 2
    assert runs.count == 1


async def test_a_cancelled_handler_leaves_its_outcome_unknown(serve: Serve, app_of: AppOf) -> None:
    entered = asyncio.Event()
    runs = Runs()

    @post("/", opt=PROTECTED)
    async def order() -> None:
        runs.add()
        entered.set()
        await asyncio.Event().wait()

    async with serve(app_of(order)) as client:
        request = asyncio.create_task(client.post("/", headers=key()))
        await entered.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert (await client.post("/", headers=key())).json()["code"] == "in-flight"
    assert runs.count == 1


# --------------------------------------------------------------- before the handler, and after it


async def test_a_payload_that_is_refused_before_the_handler_frees_its_key(serve: Serve, app_of: AppOf) -> None:
    runs = Runs()

    @post("/", opt=PROTECTED)
    async def order(data: JSONBody[Cat], size: FromQuery[int]) -> int:
        return runs.add()

    async with serve(app_of(order)) as client:
        for _ in range(2):
            refused = await client.post("/?size=big", json={"name": "Miau"}, headers=key())
            assert (refused.status_code, is_replay(refused)) == (400, False)
        # The same key with what was corrected: nothing happened under it.
        assert (await client.post("/?size=1", json={"name": "Miau"}, headers=key())).status_code == 201
    assert runs.count == 1


async def test_a_hook_that_answers_before_the_handler_frees_the_key(serve: Serve, app_of: AppOf) -> None:
    closed = [True]

    async def hours(_: Request[Any, Any, Any]) -> dict[str, str] | None:
        return {"shop": "closed"} if closed else None

    runs = Runs()

    @post("/", opt=PROTECTED, before_request=hours)
    async def order() -> dict[str, int]:
        return {"run": runs.add()}

    async with serve(app_of(order)) as client:
        assert (await client.post("/", headers=key())).json() == {"shop": "closed"}
        closed.clear()
        assert (await client.post("/", headers=key())).json() == {"run": 1}
        assert is_replay(await client.post("/", headers=key()))


async def test_what_fails_after_the_handler_is_a_failure_of_the_request(serve: Serve, app_of: AppOf) -> None:
    runs = Runs()

    async def fail(_: Response[Any]) -> Response[Any]:
        raise ValueError("after")

    @post("/", opt=PROTECTED, after_request=fail)
    async def order() -> int:
        return runs.add()

    async with serve(app_of(order)) as client:
        assert [(await client.post("/", headers=key())).status_code for _ in range(2)] == [500, 500]
    assert runs.count == 2


async def test_background_tasks_run_once_and_not_for_the_replay(serve: Serve, app_of: AppOf) -> None:
    told: list[str] = []

    async def tell(whom: str) -> None:
        told.append(whom)

    @post("/", opt=PROTECTED)
    async def order() -> Response[str]:
        return Response("sent", background=BackgroundTask(tell, "warehouse"))

    async with serve(app_of(order)) as client:
        answers = [await client.post("/", headers=key()) for _ in range(3)]
    assert [answer.text for answer in answers] == ["sent"] * 3
    assert told == ["warehouse"]


async def test_a_background_task_or_a_hook_behind_the_response_that_fails_takes_nothing_back(
    serve: Serve, app_of: AppOf
) -> None:
    runs = Runs()

    async def fail() -> None:
        raise ValueError("behind")

    async def after(_: Request[Any, Any, Any]) -> None:
        raise ValueError("behind")

    @post("/task", opt=PROTECTED)
    async def with_task() -> Response[int]:
        return Response(runs.add(), background=BackgroundTask(fail))

    @post("/hook", opt=PROTECTED, after_response=after)
    async def with_hook() -> int:
        return runs.add()

    async with serve(app_of(with_task, with_hook)) as client:
        for path in ("/task", "/hook"):
            await client.post(path, headers=key(path))
            assert is_replay(await client.post(path, headers=key(path)))
    assert runs.count == 2


async def test_a_route_serves_nothing_unprotected_before_the_lifespan_has_run(app_of: AppOf) -> None:
    runs = Runs()

    @post("/", opt=PROTECTED)
    async def order() -> int:
        return runs.add()

    told: list[Exception] = []

    async def tell(error: Exception, _: Any) -> None:
        told.append(error)

    app = app_of(Router("/", route_handlers=[order]), after_exception=[tell])
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.local") as client:
        assert (await client.post("/", headers=key())).status_code == 500
    assert runs.count == 0
    assert "Idempotency is entered by its lifespan, and that has not run" in str(told[0])
