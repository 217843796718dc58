"""What OpenAPI says of a route under keys: the header, and the problems that a client has to expect."""

from collections import defaultdict
from http import HTTPStatus
from typing import Any, Final

from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import (
    OpenAPIHeader,
    OpenAPIMediaType,
    OpenAPIResponse,
    OpenAPIType,
    Operation,
    Parameter,
    Schema,
)

from tenure.ext.asgi import PROBLEMS, IdempotencyOptions, Problem

__all__ = ["document"]

_PROBLEM_JSON: Final = "application/problem+json"
_TOO_LONG: Final = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
_WAITED_FOR: Final = frozenset({409, 429, 503})
"""Answers that may carry a Retry-After."""

_LONGEST_KEY: Final = 255


def document(handler: HTTPRouteHandler, options: IdempotencyOptions, problem_base: str, *, limited: bool) -> None:
    """
    Have the operations of *handler* say that they are idempotent.

    By `operation_class`, which Litestar calls with the finished operation: what it found out itself is added to, and
    stands in the way of nothing.

    Args:
        handler: The route's.
        options: Its rules.
        problem_base: What stands before the code of a problem.
        limited: Whether clients have a quota, so that 429 is to be expected.
    """
    base: type[Operation] = handler.operation_class
    # A handler that also answers GET has one operation a method, and none of them tells which it is.
    required = options.required and set(handler.http_methods) <= options.methods

    class Idempotent(base):  # type: ignore[misc, valid-type]  # a class of the handler's own
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _add_key(self, options, required=required)
            _add_problems(self, _problems_of(options, limited=limited), problem_base)

    handler.operation_class = Idempotent


def _add_key(operation: Operation, options: IdempotencyOptions, *, required: bool) -> None:
    parameters = list(operation.parameters or [])
    for parameter in parameters:
        # A handler may take the header as an argument of its own, and describe it better.
        if isinstance(parameter, Parameter) and _is_header(parameter, options.header):
            parameter.required = parameter.required or required
            return
    parameters.append(
        Parameter(
            name=options.header,
            param_in="header",
            required=required,
            description=(
                "A value of the client's choice, such as a UUID: new for each operation, and the same for each "
                "repetition of it. A repetition is answered with the first response and is not carried out again."
            ),
            schema=Schema(type=OpenAPIType.STRING, min_length=1, max_length=_LONGEST_KEY),
        )
    )
    operation.parameters = parameters


def _is_header(parameter: Parameter, name: str) -> bool:
    return parameter.param_in == "header" and parameter.name.lower() == name.lower()


def _add_problems(operation: Operation, found: dict[int, list[Problem]], problem_base: str) -> None:
    responses = dict(operation.responses or {})
    for status, problems in found.items():
        said = responses.get(str(status))
        if said is None:
            said = OpenAPIResponse(description=". ".join(problem.title for problem in problems) + ".")
            responses[str(status)] = said
        if isinstance(said, OpenAPIResponse):
            # Litestar says 400 for its own validation: a response of one status, with one more media type.
            said.content = {_PROBLEM_JSON: _media_type(status, problems, problem_base), **(said.content or {})}
            if status in _WAITED_FOR:
                said.headers = {"Retry-After": _retry_after(), **(said.headers or {})}
    for status_text, said in responses.items():
        if status_text.startswith("2") and isinstance(said, OpenAPIResponse):
            said.headers = {"Idempotent-Replayed": _replayed(), **(said.headers or {})}
    operation.responses = responses


def _problems_of(options: IdempotencyOptions, *, limited: bool) -> dict[int, list[Problem]]:
    there = {"missing-key": options.required, "too-many-requests": limited}
    found: defaultdict[int, list[Problem]] = defaultdict(list)
    for problem in PROBLEMS.values():
        if there.get(problem.code or "", True):
            found[problem.status].append(problem)
    found[_TOO_LONG.value].append(
        Problem(code=None, status=_TOO_LONG.value, title=_TOO_LONG.phrase, detail="The body is too long.")
    )
    return dict(sorted(found.items()))


def _media_type(status: int, problems: list[Problem], problem_base: str) -> OpenAPIMediaType:
    text = Schema(type=OpenAPIType.STRING)
    properties: dict[str, Any] = {
        "type": Schema(type=OpenAPIType.STRING, enum=[problem.type(problem_base) for problem in problems]),
        "title": text,
        "status": Schema(type=OpenAPIType.INTEGER, const=status),
        "detail": text,
    }
    codes = [problem.code for problem in problems if problem.code is not None]
    if codes:
        properties["code"] = Schema(type=OpenAPIType.STRING, enum=codes)
    if status in _WAITED_FOR:
        properties["retry_after"] = Schema(type=OpenAPIType.INTEGER, minimum=1)
    return OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.OBJECT,
            title="Idempotency problem",
            description="Problem details (RFC 9457).",
            properties=properties,
            required=["type", "title", "status", "detail"],
        )
    )


def _retry_after() -> OpenAPIHeader:
    return OpenAPIHeader(
        description="Seconds to wait before the request is repeated unchanged.",
        schema=Schema(type=OpenAPIType.INTEGER, minimum=1),
    )


def _replayed() -> OpenAPIHeader:
    return OpenAPIHeader(
        description='"true" where this is the first response once more, and nothing was carried out now.',
        schema=Schema(type=OpenAPIType.STRING, enum=["true"]),
    )
