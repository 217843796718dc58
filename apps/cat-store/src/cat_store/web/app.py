"""The web application of one replica, put together from the domains' controllers."""

import contextlib
from typing import Final

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncEngine

from cat_store.admin.controller import ExportController
from cat_store.admin.jobs import JobController
from cat_store.admin.token import ADMIN_TOKEN, AdministratorsOnly
from cat_store.admin.watch import JobWatch
from cat_store.database.engine import Sessions
from cat_store.inventory.controller import ProductController
from cat_store.invoices.export import InvoiceExport
from cat_store.live.controller import LiveController
from cat_store.live.part import Live, live_dependencies
from cat_store.orders.controller import OrderController
from cat_store.orders.desk import OrderDesk
from cat_store.web.health import HealthController, Readiness
from cat_store.web.metrics import MetricsController
from cat_store.web.problems import exception_handlers, problem_details
from cat_store.web.retries import LONGEST_BODY, client_of
from tenure import Locks
from tenure.ext.litestar import TenurePlugin
from tenure.idempotency import Idempotency

__all__ = ["create_app"]

_VERSION: Final = "0.1.0"
_ADMINISTRATOR: Final = "administrator"


def create_app(  # noqa: PLR0913 -- what a replica is made of, by name
    *,
    engine: AsyncEngine,
    sessions: Sessions,
    desk: OrderDesk,
    invoice_export: InvoiceExport,
    locks: Locks | None,
    idempotency: Idempotency,
    admin_token: str | None,
    live: Live,
    watch: JobWatch,
    registry: CollectorRegistry,
) -> Litestar:
    """
    Build the application. It opens and closes nothing: what it uses is its replica's, entered before and left after.

    Args:
        engine: The shop's database, to look whether it answers.
        sessions: The same, to work with.
        desk: Where orders are placed.
        invoice_export: What an administrator may start by hand.
        locks: The replica's locks; None where they are switched off.
        idempotency: What carries requests under a key out once.
        admin_token: What administrators send; None where there are none.
        live: The live page.
        watch: What administrators tell the jobs.
        registry: What Prometheus scrapes.
    """
    readiness = Readiness(engine, locks, idempotency)
    return Litestar(
        route_handlers=[
            OrderController,
            ProductController,
            Router(
                "/admin",
                route_handlers=[ExportController, JobController],
                middleware=[AdministratorsOnly(admin_token)],
                security=[{_ADMINISTRATOR: []}],
            ),
            HealthController,
            LiveController,
            MetricsController,
        ],
        dependencies={
            "sessions": Provide(lambda: sessions, sync_to_thread=False),
            "desk": Provide(lambda: desk, sync_to_thread=False),
            "export": Provide(lambda: invoice_export, sync_to_thread=False),
            "readiness": Provide(lambda: readiness, sync_to_thread=False),
            "registry": Provide(lambda: registry, sync_to_thread=False),
            "watch": Provide(lambda: watch, sync_to_thread=False),
            **live_dependencies(live),
        },
        plugins=[
            problem_details(),
            # The replica enters both, and leaves them after its schedule; the plugin is lent them.
            TenurePlugin(
                locks=None if locks is None else lambda: contextlib.nullcontext(locks),
                idempotency=lambda: contextlib.nullcontext(idempotency),
                principal=client_of,
                problem_details=True,
            ),
        ],
        exception_handlers=exception_handlers(),
        request_max_body_size=LONGEST_BODY,
        openapi_config=_description(),
        logging_config=None,  # the replica decides what is logged
    )


def _description() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="The cat store",
        version=_VERSION,
        path="/schema",
        # No page for people: those load their scripts from elsewhere, and the shop works without the network.
        render_plugins=[JsonRenderPlugin(path=["/", "/openapi.json"]), YamlRenderPlugin()],
        use_handler_docstrings=True,
        components=Components(
            security_schemes={
                _ADMINISTRATOR: SecurityScheme(type="apiKey", name=ADMIN_TOKEN, security_scheme_in="header")
            }
        ),
    )
