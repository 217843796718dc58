"""The warehouse, as the shop sees it."""

from cat_store.partners.connection import Partner, PartnerUnreadableError
from cat_store.partners.wire import CountPage, OpenedCount, Shelf

__all__ = ["WarehouseClient"]


class WarehouseClient:
    """Asks for full counts."""

    def __init__(self, partner: Partner) -> None:
        self._partner = partner

    async def full_count(self) -> list[Shelf]:
        """
        Ask for a full count, page by page, which takes as long as it takes.

        Raises:
            PartnerError: The warehouse failed, refused, or sent a page that nobody asked for.
        """
        count = await self._partner.ask("POST", "counts", OpenedCount)
        shelves: dict[str, Shelf] = {}
        for number in range(1, count.pages + 1):
            page = await self._partner.ask("GET", f"counts/{count.count_id}/pages/{number}", CountPage)
            if page.page != number:
                raise PartnerUnreadableError(
                    f"The warehouse sent page {page.page} of a count where page {number} was asked for."
                )
            shelves |= {shelf.product_id: shelf for shelf in page.shelves}
        return list(shelves.values())
