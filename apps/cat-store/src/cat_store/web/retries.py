"""How routes take an Idempotency-Key, and whose a key is."""

from collections.abc import MutableMapping
from typing import Any, Final

from tenure.ext.asgi import IdempotencyOptions

__all__ = ["EXPORTING", "LONGEST_BODY", "PLACING", "client_of"]

LONGEST_BODY: Final = 64 * 1024
"""The longest request body, in bytes. The longest order that can be placed has about a tenth of it."""

PLACING: Final[dict[str, Any]] = {"idempotency": IdempotencyOptions(max_request_bytes=LONGEST_BODY)}
"""
Placing orders: a key is taken and not required. A client that sends none is told so by what happens when it repeats.

What fails is released, the default: whatever the desk does is one transaction, and one that failed had no effect.
"""

EXPORTING: Final[dict[str, Any]] = {"idempotency": IdempotencyOptions(required=True, max_request_bytes=LONGEST_BODY)}
"""
The export by hand: a key is required, so that a repeat tells what the first one exported and not "nothing was due".

A failed one is released, although accounting was called: what it began is seen through by the next run.
"""


def client_of(scope: MutableMapping[str, Any]) -> str:
    """
    Name whom a request's key belongs to, so that no client can see or block another one's.

    This shop has two clients: the storefront, which places orders for its customers under keys that it draws at random,
    and the administrators, whom the token told from everybody else before a key is looked at. A shop with accounts
    returns the account.
    """
    return "administrators" if scope["path"].startswith("/admin/") else "storefront"
