"""The invoice export by hand."""

from typing import Final

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency

from cat_store.invoices.export import INVOICE_EXPORT, ExportedBatch, InvoiceExport
from cat_store.web.problems import described, problem
from cat_store.web.retries import EXPORTING
from tenure import LeaseLostError, LockNotAcquiredError

__all__ = ["ExportController", "ExportResult"]

_WAIT_S: Final = 2.0
"""How long a request waits for a run that is about to end, in seconds: most runs take less, and a person waits."""


class ExportResult(msgspec.Struct, frozen=True):
    """
    What an export by hand did.

    Attributes:
        exported: How many invoices accounting has now that it had not before.
        batches: The ids of their batches.
    """

    exported: int
    batches: list[str]


class ExportController(Controller):
    """The export, for accounting that cannot wait for the night."""

    path = "/invoice-export"
    tags = ["admin"]  # noqa: RUF012 -- declared so by Litestar

    @post(
        status_code=200,
        opt=EXPORTING,
        responses={
            403: described("The token is missing or wrong."),
            409: described("An export is under way."),
            502: described("Accounting did not do what it was asked to do."),
        },
    )
    async def export_now(self, export: NamedDependency[InvoiceExport]) -> ExportResult:
        """
        Export what is due, never beside the scheduled run or another one by hand.

        Waits up to two seconds for a run that is under way; then the answer is 409. Two requests at once: one exports,
        and the other one waits for it and finds nothing left.
        """
        if export.locks is None:
            return _result(await export.run_without_locks())
        try:
            async with export.locks.hold(INVOICE_EXPORT, wait=_WAIT_S) as lease:
                return _result(await export.export(lease))
        except (LockNotAcquiredError, LeaseLostError):
            raise problem(
                409,
                "export-under-way",
                "An invoice export is under way. Repeat the request when it has ended.",
                headers={"Retry-After": f"{_WAIT_S:.0f}"},
            ) from None


def _result(batches: list[ExportedBatch]) -> ExportResult:
    return ExportResult(sum(batch.invoices for batch in batches), [batch.batch_id for batch in batches])
