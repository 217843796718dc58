"""The partners as a process: `cat-store partners`."""

import uvicorn

from cat_store.inventory.catalogue import CATALOGUE
from cat_store.partners.accounting import Accounting
from cat_store.partners.app import create_app
from cat_store.partners.warehouse import Warehouse

__all__ = ["serve"]

# Held requests are cut off at the end; the shop's jobs cope with that, and nobody waits for the partners to go.
_GRACE_S = 1


def serve(host: str, port: int) -> None:
    """Serve both partners on one port until SIGTERM or SIGINT."""
    warehouse = Warehouse({product.id: product.on_shelf for product in CATALOGUE})
    uvicorn.run(
        create_app(Accounting(), warehouse),
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_S,
    )
