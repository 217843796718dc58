"""What a route says of its idempotency, from the application down to the handler."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, Literal

from tenure.errors import ConfigurationError
from tenure.ext.asgi import IdempotencyOptions

__all__ = ["OPT", "Protect", "options_of"]

OPT: Final = "idempotency"
"""The key in `opt`."""

Protect = Literal["opted", "all"]
"""Which routes are protected: those that say so, or every one with a method that the options name."""


def options_of(
    layers: Iterable[Mapping[str, Any]],
    methods: Iterable[str],
    defaults: IdempotencyOptions,
    *,
    protect: Protect,
    route: str,
) -> IdempotencyOptions | None:
    """
    Fold the `opt` of a handler's layers, the application's first, into the rules of its route.

    `True` protects, `False` does not, `IdempotencyOptions` are the rules, and a dict changes those that hold so far: of
    the layer above, or the plugin's defaults.

    Args:
        layers: The `opt` of each layer.
        methods: The methods of the handler.
        defaults: The plugin's options.
        protect: Whether a route that says nothing is protected.
        route: Its name, for errors.

    Returns:
        The rules, or None where the route is not protected.

    Raises:
        ConfigurationError: A layer says what cannot be read.
    """
    found = defaults if protect == "all" else None
    for layer in layers:
        if OPT in layer:
            found = _apply(layer[OPT], found, defaults, route)
    return found if found is not None and not found.methods.isdisjoint(methods) else None


def _apply(
    said: object, found: IdempotencyOptions | None, defaults: IdempotencyOptions, route: str
) -> IdempotencyOptions | None:
    if said is False:
        return None
    if said is True:
        return found or defaults
    if isinstance(said, IdempotencyOptions):
        return said
    if not isinstance(said, Mapping):
        raise ConfigurationError(
            f'opt["{OPT}"] of {route} is a {type(said).__name__}: it is True, False, IdempotencyOptions(...), or a '
            'dict of what differs from them, such as {"required": True}.'
        )
    known = {field.name for field in fields(IdempotencyOptions)}
    unknown = sorted(str(name) for name in said if name not in known)
    if unknown:
        raise ConfigurationError(
            f'opt["{OPT}"] of {route} names {", ".join(unknown)}, which IdempotencyOptions has not: it has '
            f"{', '.join(sorted(known))}."
        )
    try:
        return replace(found or defaults, **said)
    except ConfigurationError as error:
        raise ConfigurationError(f'opt["{OPT}"] of {route}: {error}') from None
