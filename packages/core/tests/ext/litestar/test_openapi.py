"""What OpenAPI says of a route under keys."""

from typing import Annotated, Any

import openapi_spec_validator
import pytest
from litestar import Litestar, get, post, route
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Operation
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody

from tenure.ext.litestar import ClientQuota

AppOf = Any

PROBLEM = "application/problem+json"
PROTECTED = {"idempotency": True}
REQUIRED = {"idempotency": {"required": True}}


def schema_of(app: Litestar) -> dict[str, Any]:
    return app.openapi_schema.to_schema()


def operation(app: Litestar, path: str = "/orders", method: str = "post") -> dict[str, Any]:
    found: dict[str, Any] = schema_of(app)["paths"][path][method]
    return found


def header_parameters(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in found.get("parameters", []) if one["in"] == "header"]


@pytest.mark.parametrize(("opt", "required"), [(PROTECTED, False), (REQUIRED, True)])
def test_the_header_is_a_parameter_and_required_where_it_is(app_of: AppOf, opt: Any, required: bool) -> None:
    @post("/orders", opt=opt)
    async def order(size: FromQuery[int]) -> None: ...

    found = operation(app_of(order))
    assert [(one["name"], one.get("required", False)) for one in header_parameters(found)] == [
        ("Idempotency-Key", required)
    ]
    assert [one["name"] for one in found["parameters"] if one["in"] == "query"] == ["size"]


def test_the_problems_are_responses_with_their_types(app_of: AppOf) -> None:
    @post("/orders", opt=REQUIRED)
    async def order() -> None: ...

    responses = operation(app_of(order, problem_base="https://shop.example/problems/"))["responses"]
    types = {
        status: responses[status]["content"][PROBLEM]["schema"]["properties"]["type"]["enum"]
        for status in ("400", "409", "413", "422", "503")
    }
    base = "https://shop.example/problems/"
    assert types == {
        "400": [f"{base}missing-key", f"{base}malformed-key"],
        "409": [f"{base}in-flight", f"{base}outcome-unknown", f"{base}response-not-stored"],
        "413": ["about:blank"],
        "422": [f"{base}key-reused"],
        "503": [f"{base}store-unavailable"],
    }
    assert [status for status in responses if "Retry-After" in responses[status].get("headers", {})] == ["409", "503"]
    assert "Idempotent-Replayed" in responses["201"]["headers"]


def test_that_a_client_may_have_too_many_is_said_where_there_is_a_quota(app_of: AppOf) -> None:
    @post("/orders", opt=PROTECTED)
    async def order() -> None: ...

    assert "429" not in operation(app_of(order))["responses"]
    found = operation(app_of(order, quota=ClientQuota()))["responses"]["429"]
    schema = found["content"][PROBLEM]["schema"]["properties"]
    assert schema["type"]["enum"] == ["urn:tenure:idempotency:too-many-requests"]
    assert (schema["retry_after"]["minimum"], list(found["headers"])) == (1, ["Retry-After"])


def test_a_route_whose_key_is_optional_never_misses_it(app_of: AppOf) -> None:
    @post("/orders", opt=PROTECTED)
    async def order() -> None: ...

    schema = operation(app_of(order))["responses"]["400"]["content"][PROBLEM]["schema"]
    assert schema["properties"]["code"]["enum"] == ["malformed-key"]


def test_what_litestar_and_the_handler_say_of_a_status_stays(app_of: AppOf) -> None:
    @post("/orders", opt=PROTECTED, responses={409: ResponseSpec(dict[str, str], description="Sold out")})
    async def order(data: JSONBody[dict[str, int]]) -> None: ...

    responses = operation(app_of(order))["responses"]
    assert set(responses["400"]["content"]) == {"application/json", PROBLEM}
    assert set(responses["409"]["content"]) == {"application/json", PROBLEM}
    assert responses["409"]["description"] == "Sold out"


def test_a_header_that_the_handler_takes_itself_is_not_there_twice(app_of: AppOf) -> None:
    @post("/orders", opt=REQUIRED)
    async def order(
        key: Annotated[str | None, HeaderParameter(name="idempotency-key", description="Mine")] = None,
    ) -> None: ...

    found = header_parameters(operation(app_of(order)))
    assert [(one["description"], one["required"]) for one in found] == [("Mine", True)]


def test_routes_that_are_not_protected_say_nothing(app_of: AppOf) -> None:
    @post("/carts")
    async def cart() -> None: ...

    @get("/orders", opt=PROTECTED)
    async def orders() -> None: ...

    app = app_of(cart, orders)
    for found in (operation(app, "/carts"), operation(app, method="get")):
        assert not header_parameters(found)
        assert set(found["responses"]) <= {"200", "201"}


def test_a_method_beside_it_does_not_need_the_key(app_of: AppOf) -> None:
    @route("/orders", http_method=["POST", "DELETE"], opt=REQUIRED, status_code=200)
    async def order() -> None: ...

    app = app_of(order)
    assert [one.get("required", False) for one in header_parameters(operation(app, method="delete"))] == [False]


def test_an_operation_class_of_the_handlers_own_is_kept(app_of: AppOf) -> None:
    class Own(Operation):
        def __post_init__(self) -> None:
            self.tags = ["own"]

    @post("/orders", opt=PROTECTED, operation_class=Own)
    async def order() -> None: ...

    app = app_of(order)
    found = app.openapi_schema.paths["/orders"].post
    assert isinstance(found, Own)
    assert header_parameters(operation(app))


def test_the_same_handler_elsewhere_says_nothing_of_it(app_of: AppOf) -> None:
    @post("/orders", opt=PROTECTED)
    async def order() -> None: ...

    app_of(order)
    assert not header_parameters(operation(Litestar([order])))


def test_a_handler_on_two_paths_says_it_once_on_each(app_of: AppOf) -> None:
    @post(["/orders", "/refunds"], opt=PROTECTED)
    async def order() -> None: ...

    app = app_of(order)
    for path in ("/orders", "/refunds"):
        assert len(header_parameters(operation(app, path))) == 1


def test_the_document_is_valid(app_of: AppOf) -> None:

    @post("/orders/{number:int}", opt=REQUIRED)
    async def order(number: FromPath[int], data: JSONBody[dict[str, int]], size: FromQuery[int]) -> dict[str, int]:
        return data

    @post("/carts", opt=PROTECTED)
    async def cart() -> str:
        return ""

    openapi_spec_validator.validate(schema_of(app_of(order, cart, health_path="/health", quota=ClientQuota())))
