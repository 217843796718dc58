"""What Prometheus scrapes: tenure's own numbers of this replica."""

from typing import Any

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["MetricsController"]


class MetricsController(Controller):
    """The numbers: leases, jobs, elections, requests under a key. No key, customer or token is a label."""

    path = "/metrics"
    include_in_schema = False

    @get()
    async def metrics(self, registry: NamedDependency[CollectorRegistry]) -> Response[Any]:
        """Give all of them, in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
