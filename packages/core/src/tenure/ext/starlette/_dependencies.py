"""What FastAPI handlers are given; in Starlette, `await get_locks(request)`."""

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from starlette.requests import HTTPConnection

from tenure._durations import Duration, to_ms, to_seconds
from tenure._keys import check_key
from tenure.errors import ConfigurationError, StoreError, TenureError
from tenure.ext.asgi import CONTEXT_KEY
from tenure.ext.starlette._running import RUNNING, Running, not_started
from tenure.idempotency import Idempotency, IdempotencyContext
from tenure.lease import Lease
from tenure.locks import Locks

__all__ = ["get_idempotency", "get_idempotency_context", "get_locks", "holding"]

_CONNECTION: Final = "tenure_connection"
"""The name of the parameter that FastAPI gives the request to, beside those of a key's function."""


async def get_locks(connection: HTTPConnection) -> Locks:
    """
    Give the application's `Locks`: `Annotated[Locks, Depends(get_locks)]`.

    Raises:
        LeaseStateError: The application has none, or was not started.
    """
    return _running_of(connection, "Locks").the_locks()


async def get_idempotency(connection: HTTPConnection) -> Idempotency:
    """
    Give the application's `Idempotency`: `Annotated[Idempotency, Depends(get_idempotency)]`.

    Raises:
        LeaseStateError: The application has none, or was not started.
    """
    return _running_of(connection, "Idempotency").the_idempotency()


async def get_idempotency_context(connection: HTTPConnection) -> IdempotencyContext | None:
    """
    Give the context of the request's own execution; None for a request without an idempotency key.

    Where the options have `required=True`, every request that is protected has one.
    """
    context = connection.scope.get("state", {}).get(CONTEXT_KEY)
    return context if isinstance(context, IdempotencyContext) else None


def holding(
    key: str | Callable[..., str], *, wait: Duration = 0, ttl: Duration | None = None, max_hold: Duration | None = None
) -> Callable[..., AsyncIterator[Lease]]:
    """
    Make a FastAPI dependency that holds a key for the request.

        def key_of(order_id: int) -> str:
            return f"order:{order_id}"

        @app.post("/orders/{order_id}/ship")
        async def ship(order_id: int, lease: Annotated[Lease, Depends(holding(key_of, wait=2))]) -> None: ...

    Who cannot have the key in time is answered 409, and 503 where the store does not answer; nothing ran then. When the
    lease is lost, the handler is cancelled and 503 is answered. A handler that is no `async def` runs on in its thread:
    let it ask `lease.raise_unless_held()`.

    FastAPI leaves the dependency, and so gives the key back, when the response has been sent and its background tasks
    have ended (from FastAPI 0.118 on). `Depends(..., scope="function")` gives it back before the response is sent (from
    0.121 on).

    Args:
        key: The key; or a function that makes it. Its parameters are FastAPI's to fill, as a dependency's: parsed and
            checked, so that `/orders/7` and `/orders/07` are one key.
        wait: How long to keep trying for the key; 0 tries once.
        ttl: The lease's ttl; by default that of the `Locks`.
        max_hold: The longest time that the handler may take.

    Raises:
        ConfigurationError: A value is wrong; the key is a template, which nobody would fill; or its function takes
            `*args` or `**kwargs`, which FastAPI cannot give.
    """
    wait_s = to_seconds(wait, name="wait")
    max_hold_s = None if max_hold is None else to_ms(max_hold, name="max_hold") / 1000
    if ttl is not None:
        to_ms(ttl, name="ttl")
    key_of = _constant(key) if isinstance(key, str) else key

    async def hold(**given: Any) -> AsyncIterator[Lease]:
        locks = await get_locks(given.pop(_CONNECTION))
        made = key_of(**given)
        taken = await made if inspect.isawaitable(made) else made
        lease = await _acquire(locks, taken, wait_s, ttl)
        async with locks.guard([lease], give_back=[lease], max_hold_s=max_hold_s):
            yield lease

    cast("Any", hold).__signature__ = _signature(key_of)
    return hold


async def _acquire(locks: Locks, key: str, wait_s: float, ttl: Duration | None) -> Lease:
    try:
        return await locks.acquire(key, wait=wait_s, ttl=ttl)
    except TenureError:
        raise
    except Exception as error:
        # A driver's own. The handler did not run, which a bare 500 would not tell.
        raise StoreError(f"The store of the locks could not be asked ({type(error).__name__}); nothing ran.") from error


def _constant(key: str) -> Callable[[], str]:
    check_key(key)
    if "{" in key:
        raise ConfigurationError(
            f"The key {key!r} looks like a template, and would be one key for all: pass a function of what it needs, "
            'such as `def key_of(order_id: int) -> str: return f"order:{order_id}"`.'
        )
    return lambda: key


def _signature(key_of: Callable[..., Any]) -> inspect.Signature:
    """Give the signature that FastAPI is to see: the parameters of *key_of*, and the request."""
    # Read here, where texts are annotations of the module that *key_of* is in.
    parameters = list(inspect.signature(key_of, eval_str=True).parameters.values())
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"The function of a key takes {str(one)!r}, which FastAPI cannot give: name what it needs."
            )
    connection = inspect.Parameter(_CONNECTION, inspect.Parameter.KEYWORD_ONLY, annotation=HTTPConnection)
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    return inspect.Signature([*named, connection])


def _running_of(connection: HTTPConnection, what: str) -> Running:
    running = connection.scope.get(RUNNING)
    if not isinstance(running, Running):
        raise not_started(what)
    return running
