"""Request bodies, checked to the letter."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import Request

from cat_store.web.problems import problem

__all__ = ["strictly"]


def strictly(kind: type[msgspec.Struct]) -> Callable[[Request[Any, Any, Any]], Awaitable[None]]:
    """
    Return a `before_request` that refuses a body which is no *kind*.

    Litestar reads bodies leniently: it takes the text "2" for the number 2. What is bought and paid for is not guessed.
    """
    decoder = msgspec.json.Decoder(kind)

    async def check(request: Request[Any, Any, Any]) -> None:
        try:
            decoder.decode(await request.body())
        except msgspec.ValidationError as error:
            raise problem(400, "invalid-body", f"The body is not what it should be: {error}.") from None
        except msgspec.DecodeError as error:
            raise problem(400, "malformed-json", f"The body is no JSON: {error}.") from None
        except (RecursionError, UnicodeDecodeError):
            raise problem(400, "malformed-json", "The body is no JSON that anybody would send.") from None

    return check
