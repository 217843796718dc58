"""What a route may choose, and what is refused where it is written."""

import subprocess
import sys
from typing import Any

import pytest

from tenure import ConfigurationError
from tenure.ext.asgi import PROBLEMS, UNSCOPED, IdempotencyMiddleware, IdempotencyOptions, Problem, RequestGuard

NEVER = [
    "set-cookie",
    "Set-Cookie",
    "authorization",
    "www-authenticate",
    "connection",
    "transfer-encoding",
    "content-length",
    "date",
    "server",
    "access-control-allow-origin",
    "ratelimit",
    "RateLimit-Remaining",
    "x-ratelimit-reset",
    "x-rate-limit-limit",
    "traceparent",
    "x-request-id",
    "idempotent-replayed",
]


@pytest.mark.parametrize("name", NEVER)
def test_a_header_that_must_not_be_shown_to_another_request_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="never replayed"):
        IdempotencyOptions(headers=frozenset({"x-order", name}))


WRONG: dict[str, Any] = {
    "methods": ["POST", {"get"}, {"GET"}, {"HEAD"}, {"PO ST"}, {7}],
    "headers": ["x-order", {"x order"}, {""}, {7}],
    "header": ["", "a b", "a:", 7],
    "syntax": ["loose", None],
    "on_abandoned": ["ignore"],
    "on_failure": ["retry", None],
    "retention": [0, -1, True, "soon"],
    "wait": [-1, "soon"],
    "max_execution": [0],
    "max_request_bytes": [-1, 1.5, True],
    "max_response_bytes": [-1, "1"],
    "max_retry_after_s": [0, 1.5],
    "fingerprint": [b"bytes"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_what_cannot_work_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"\b{name}\b"):
        IdempotencyOptions(**{name: value})


def test_names_of_headers_are_taken_in_any_case() -> None:
    options = IdempotencyOptions(headers=frozenset({"X-Order"}), methods={"PUT"})  # type: ignore[arg-type]
    assert (options.headers, options.methods) == (frozenset({"x-order"}), frozenset({"PUT"}))


async def test_the_principal_has_no_default_and_none_is_refused(bench: Any) -> None:
    make: Any = IdempotencyMiddleware
    with pytest.raises(TypeError, match="principal"):
        make(bench.Handler(), idempotency=bench.idempotency)
    for principal in (None, "", "everyone"):
        with pytest.raises(ConfigurationError, match="UNSCOPED"):
            make(bench.Handler(), idempotency=bench.idempotency, principal=principal)


@pytest.mark.parametrize(
    "wrong",
    [{"idempotency": None}, {"namespace": ""}, {"namespace": 7}, {"problem_base": ""}, {"problem_base": "https://ä/"}],
)
async def test_a_guard_refuses_what_cannot_work(bench: Any, wrong: Any) -> None:
    arguments = {"idempotency": bench.idempotency, "principal": UNSCOPED, **wrong}
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RequestGuard(arguments.pop("idempotency"), **arguments)


async def test_options_are_an_object_or_a_function(bench: Any) -> None:
    make: Any = IdempotencyMiddleware
    with pytest.raises(ConfigurationError, match="options"):
        make(bench.Handler(), idempotency=bench.idempotency, principal=UNSCOPED, options={"required": True})


# ---------------------------------------------------------------------------------------- problems


def test_every_kind_of_problem_has_its_code_and_its_status() -> None:
    assert {code: problem.status for code, problem in PROBLEMS.items()} == {
        "missing-key": 400,
        "malformed-key": 400,
        "in-flight": 409,
        "key-reused": 422,
        "outcome-unknown": 409,
        "response-not-stored": 409,
        "too-many-requests": 429,
        "store-unavailable": 503,
    }


async def test_a_problem_has_the_members_of_rfc_9457_and_its_code(bench: Any) -> None:
    answer = await bench.ask(bench.protect(bench.Handler(), required=True), key=None)
    assert answer.lines("content-type") == ["application/problem+json"]
    assert answer.lines("content-length") == [str(len(answer.body))]
    assert answer.problem == {
        "type": "urn:tenure:idempotency:missing-key",
        "title": "The idempotency key is missing",
        "status": 400,
        "detail": PROBLEMS["missing-key"].detail,
        "code": "missing-key",
    }
    assert answer.lines("link") == []


@pytest.mark.parametrize("base", ["https://api.example/problems/", "http://api.example/#"])
async def test_a_problem_links_to_its_description_where_its_type_is_a_url(bench: Any, base: str) -> None:
    app = bench.protect(bench.Handler(), required=True, problem_base=base)
    answer = await bench.ask(app, key=None)
    assert answer.problem["type"] == f"{base}missing-key"
    assert answer.lines("link") == [f'<{base}missing-key>; rel="describedby"']


async def test_a_problem_without_a_code_is_about_blank_and_links_to_nothing(bench: Any) -> None:
    app = bench.protect(bench.Handler(), max_request_bytes=0, problem_base="https://api.example/")
    answer = await bench.ask(app)
    assert (answer.problem["type"], answer.lines("link")) == ("about:blank", [])
    assert "code" not in answer.problem


def test_members_of_a_problem_stand_beside_the_others() -> None:
    problem = Problem(code="x", status=409, title="t", detail="d", retry_after_s=2, members={"original_status": 201})
    assert problem.content("urn:") == {
        "type": "urn:x",
        "title": "t",
        "status": 409,
        "detail": "d",
        "code": "x",
        "retry_after": 2,
        "original_status": 201,
    }


# ------------------------------------------------------------------------------------ what is loaded


def test_the_middleware_needs_nothing_beyond_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import tenure.ext.asgi; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tenure" in loaded
    assert {*loaded} - {"tenure"} <= {*sys.stdlib_module_names}
