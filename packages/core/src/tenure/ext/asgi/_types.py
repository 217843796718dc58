"""The shapes of ASGI, written down here: this package imports no framework and no typing stub of one."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

__all__ = ["ASGIApp", "Headers", "Message", "Receive", "Scope", "Send"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]
"""Pairs of name and value, in their order, repeats kept."""
