"""What a caller may pass: looked at before anything is sent."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tenure.errors import ConfigurationError

__all__ = ["check_choice", "check_secret", "taking_context"]

_Choice = TypeVar("_Choice", bound=str)


def taking_context(fn: Any) -> Callable[[Any], Any]:
    """
    Turn a function with or without an argument into one that takes the context.

    Raises:
        ConfigurationError: It is no function, or takes more.
    """
    if not callable(fn):
        raise ConfigurationError(f"A {type(fn).__name__} cannot be run: pass an async function.")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # a callable of C, which does not say
        return lambda _: fn()
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(required) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in required):
        raise ConfigurationError(
            "The function takes more than the IdempotencyContext: bind its other arguments, with functools.partial or "
            "in a lambda."
        )
    return fn if required else lambda _: fn()


def check_choice(name: str, value: _Choice, allowed: tuple[str, ...]) -> _Choice:
    """
    Refuse a value that is none of *allowed*.

    Raises:
        ConfigurationError: It is none of them; the message names them.
    """
    if value not in allowed:
        raise ConfigurationError(f"{name} is {value!r}: it is {' or '.join(repr(one) for one in allowed)}.")
    return value


def check_secret(secret: Any) -> bytes | None:
    """
    Refuse a secret that is none. The message holds nothing of it.

    Raises:
        ConfigurationError: It is not bytes, or short enough to be guessed.
    """
    if secret is None:
        return None
    if not isinstance(secret, bytes):
        raise ConfigurationError(f"The secret is a {type(secret).__name__}: give bytes, the same on every instance.")
    if len(secret) < 16:
        raise ConfigurationError(
            "The secret is shorter than 16 bytes, and could be guessed: draw secrets.token_bytes(32)."
        )
    return secret
