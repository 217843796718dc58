"""Errors of tenure that a handler raises: problem details where they were asked for, and nothing else elsewhere."""

from typing import Any

import pytest
from litestar import Litestar, MediaType, Response, get
from litestar.di import NamedDependency

from tenure import InMemoryLockStore, LeaseLostError, LockNotAcquiredError, Locks, LossReason, StoreTimeoutError
from tenure.errors import (
    ExecutionLostError,
    InFlightError,
    KeyReusedError,
    OutcomeUnknownError,
    ResponseNotStoredError,
)
from tenure.ext.litestar import TenurePlugin

Serve = Any

SECRET = "user:4711"

CASES = [
    (LockNotAcquiredError(SECRET, 1.0), 409, "urn:tenure:lock-not-acquired", "1"),
    (LeaseLostError(SECRET, 7, LossReason.EXPIRED), 503, "urn:tenure:lease-lost", None),
    (StoreTimeoutError("acquire", 3), 503, "urn:tenure:store-unavailable", "1"),
    (InFlightError(2.4), 409, "urn:tenure:idempotency:in-flight", "3"),
    (KeyReusedError(), 422, "urn:tenure:idempotency:key-reused", None),
    (OutcomeUnknownError(2), 409, "urn:tenure:idempotency:outcome-unknown", None),
    (ResponseNotStoredError(SECRET.encode()), 409, "urn:tenure:idempotency:response-not-stored", None),
    (ExecutionLostError(), 409, "urn:tenure:idempotency:in-flight", "1"),
]


def app_that_raises(error: Exception, **options: Any) -> Litestar:
    @get("/")
    async def fail() -> None:
        raise error

    ours = {name: options.pop(name) for name in ("problem_details", "problem_base") if name in options}
    return Litestar([fail], plugins=[TenurePlugin(locks=lambda: Locks(InMemoryLockStore()), **ours)], **options)


@pytest.mark.parametrize(("error", "status", "type_", "retry_after"), CASES)
async def test_each_error_has_its_problem(
    serve: Serve, error: Exception, status: int, type_: str, retry_after: str | None
) -> None:
    async with serve(app_that_raises(error, problem_details=True)) as client:
        answer = await client.get("/")
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.headers.get("retry-after") == retry_after
    body = answer.json()
    assert (body["type"], body["status"]) == (type_, status)
    assert body["title"]
    assert body["detail"]
    assert "4711" not in answer.text


async def test_the_lock_that_a_handler_waits_for_is_a_409_without_its_key(serve: Serve) -> None:
    @get("/")
    async def wait(locks: NamedDependency[Locks]) -> None:
        async with locks.hold(SECRET):
            pass

    store = InMemoryLockStore()
    app = Litestar([wait], plugins=[TenurePlugin(locks=lambda: Locks(store), problem_details=True)])
    async with serve(app) as client, Locks(store) as other, other.hold(SECRET):
        answer = await client.get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "1")
    assert "4711" not in answer.text


async def test_a_problem_base_of_the_application_stands_before_the_codes(serve: Serve) -> None:
    app = app_that_raises(KeyReusedError(), problem_details=True, problem_base="https://shop.example/problems/")
    async with serve(app) as client:
        assert (await client.get("/")).json()["type"] == "https://shop.example/problems/key-reused"


@pytest.mark.parametrize(("error", "status", "type_", "retry_after"), CASES)
async def test_where_nobody_asked_errors_stay_what_litestar_makes_of_them(
    serve: Serve, error: Exception, status: int, type_: str, retry_after: str | None
) -> None:
    async with serve(app_that_raises(error)) as client:
        answer = await client.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
    assert answer.json() == {"status_code": 500, "detail": "Internal Server Error"}


async def test_other_errors_are_untouched(serve: Serve) -> None:
    async with serve(app_that_raises(ValueError("no"), problem_details=True)) as client:
        assert (await client.get("/")).headers["content-type"] == "application/json"


async def test_a_handler_of_the_applications_own_stays(serve: Serve) -> None:
    def teapot(_: Any, __: Exception) -> Response[str]:
        return Response("held", status_code=418, media_type=MediaType.TEXT)

    app = app_that_raises(
        LockNotAcquiredError(SECRET, 0.0), problem_details=True, exception_handlers={LockNotAcquiredError: teapot}
    )
    async with serve(app) as client:
        assert (await client.get("/")).status_code == 418
