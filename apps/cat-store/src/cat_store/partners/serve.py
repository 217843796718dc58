"""The partners as a process: `cat-store partners`."""

import contextlib
import socket
from typing import Final

import uvicorn

from cat_store.inventory.catalogue import CATALOGUE
from cat_store.partners.accounting import Accounting
from cat_store.partners.app import create_app
from cat_store.partners.warehouse import Warehouse

__all__ = ["serve"]

# Held requests are cut off at the end; the shop's jobs cope with that, and nobody waits for the partners to go.
_GRACE_S: Final = 1

_ALERT_EVERY_S: Final = 15.0
"""Often enough that somebody who looks at the shop sees one, and rare enough to read the log between two."""

_NOT_STARTED: Final = 3
"""The exit code of a server that could not start, as uvicorn's own."""


class _Server(uvicorn.Server):
    """A server that ends its streams when it is told to stop: it would wait for their ends, which never come."""

    def __init__(self, config: uvicorn.Config, warehouse: Warehouse) -> None:
        super().__init__(config)
        self._warehouse = warehouse

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._warehouse.feed.end()
        await super().shutdown(sockets)


def serve(host: str, port: int) -> None:
    """Serve both partners on one port until SIGTERM or SIGINT."""
    warehouse = Warehouse({product.id: product.on_shelf for product in CATALOGUE}, alert_every_s=_ALERT_EVERY_S)
    config = uvicorn.Config(
        create_app(Accounting(), warehouse),
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config, warehouse)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise SystemExit(_NOT_STARTED)
