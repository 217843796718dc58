"""The warehouse's alert feed: one connection for the whole shop, held by the instance that leads."""

import asyncio
import contextlib
import logging
import random
from typing import Any, Final, Self

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from cat_store.inventory.alerts import AlertBook
from cat_store.inventory.uninterrupted import uninterrupted
from cat_store.partners.connection import Partner, PartnerError, PartnerRefusedError, PartnerUnavailableError
from cat_store.partners.connection import PartnerUnreadableError as Unreadable
from cat_store.partners.wire import Beat, FeedLine, FeedOpened, StockAlert
from tenure import LeaderElection, Lease, Locks

__all__ = ["WAREHOUSE_FEED", "WarehouseFeed"]

logger = logging.getLogger(__name__)

WAREHOUSE_FEED: Final = "inventory:warehouse-feed"
"""The election's key: the same on every instance and in every version."""

_SILENT_S: Final = 5.0
"""How long the warehouse may say nothing, in seconds: five of its beats."""

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_LONGEST_WAIT_S: Final = 1.0
"""While a predecessor's connection is in the way: it goes within seconds, and the feed should not stand still after."""

_JITTER: Final = 0.2
_TAKEN: Final = 409
_FAILURES: Final = (PartnerError, DBAPIError, PoolTimeoutError, OSError)
_LINE: Final = msgspec.json.Decoder(FeedLine)


class WarehouseFeed:
    """
    Listens to the alerts, and writes what they say, on the instance that leads and nowhere else.

    Campaigns while it is entered. Leaving it closes the connection first and gives the lease back then, so that the
    next leader finds the feed free. A leader that could not say goodbye may leave a connection behind; the warehouse
    refuses a second one with 409, and the next leader asks again until it has hung up.

    A count that was read before an alert and is written after it puts the older number back; the next count corrects
    it. The two come from different jobs, and no lease of one can tell when the other one read.

    Args:
        locks: Where leadership comes from; None to listen without any, beside whoever else does.
        warehouse: The partner.
        book: Where alerts are applied.
        silent_s: How long the warehouse may say nothing, in seconds.
        longest_pause_s: The longest pause between two attempts to connect, in seconds.
    """

    def __init__(
        self,
        locks: Locks | None,
        warehouse: Partner,
        book: AlertBook,
        *,
        silent_s: float = _SILENT_S,
        longest_pause_s: float = _LONGEST_PAUSE_S,
    ) -> None:
        self._locks: Final = locks
        self._warehouse: Final = warehouse
        self._book: Final = book
        self._silent_s: Final = silent_s
        self._longest_pause_s: Final = longest_pause_s
        self._random: Final = random.Random()  # noqa: S311 -- jitter, not a secret
        self._election: LeaderElection | None = None
        self._alone: asyncio.Task[None] | None = None
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._pause_s = _FIRST_PAUSE_S
        self._waiting = False
        self.connected = False

    # ------------------------------------------------------------------------------ start and end

    async def __aenter__(self) -> Self:
        """Start to campaign; without locks, to listen."""
        if self._locks is None:
            self._alone = asyncio.create_task(self.lead(None), name="warehouse feed")
        else:
            self._election = await LeaderElection(self._locks, WAREHOUSE_FEED, self.lead).__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, then hand the lease back; twice does nothing more."""
        if self._election is not None:
            await self._election.hand_back()
        if self._alone is not None:
            self._alone.cancel()
            await asyncio.wait({self._alone})

    # ------------------------------------------------------------------ what administrators ask for

    def holds(self) -> bool:
        """Whether this instance leads, as of now."""
        return self._election is not None and self._election.is_leader

    async def step_down(self) -> None:
        """Close the connection, hand the lease back, and let the others campaign first."""
        if self._election is not None:
            await self._election.step_down()

    def told(self, *, paused: bool) -> None:
        """Stop listening, at the next line, or go on. A paused leader stays the leader: the others listen no less."""
        if paused:
            self._resumed.clear()
        else:
            self._resumed.set()

    # ------------------------------------------------------------------------------------- leading

    async def lead(self, lease: Lease | None) -> None:
        """
        Listen until the leadership is lost or given up, connecting again after every failure.

        Raises:
            LeaseLostError: The database has seen a newer leader.
        """
        self._pause_s, self._waiting = _FIRST_PAUSE_S, False
        token = 0 if lease is None else lease.token
        while True:
            await self._resumed.wait()
            try:
                await self._listen(lease, token)
            except PartnerRefusedError as error:
                if error.status == _TAKEN:
                    self._wait_for_predecessor(token)
                else:
                    self._failed(error, token)
            except _FAILURES as error:
                self._failed(error, token)
            else:
                continue  # an administrator paused it
            await asyncio.sleep(self._pause_s * (1 + _JITTER * (2 * self._random.random() - 1)))
            self._pause_s = min(2 * self._pause_s, _LONGEST_WAIT_S if self._waiting else self._longest_pause_s)

    async def _listen(self, lease: Lease | None, token: int) -> None:
        """Connect, and deal with one line after the other until the feed is paused."""
        place = await self._book.take_over(lease)
        where: dict[str, str | int] = {"ledger": place.ledger, "after": place.position}
        async with self._warehouse.listen("feed", where, line_within_s=self._silent_s) as lines:
            opened = _decoded(await anext(lines, b""))
            if not isinstance(opened, FeedOpened):
                raise _no_line()
            await self._book.begin(opened.ledger, lease)
            with self._told_of_connection(opened, token):
                async for line in lines:
                    await self._deal_with(_decoded(line), lease)
                    await self._warehouse.ask("PUT", f"feed/{opened.feed_id}/listening", Beat)
                    self._pause_s = _FIRST_PAUSE_S
                    if not self._resumed.is_set():
                        return
                raise PartnerUnavailableError("The warehouse ended its feed.")

    async def _deal_with(self, line: FeedLine, lease: Lease | None) -> None:
        if isinstance(line, FeedOpened):
            raise _no_line()
        if not isinstance(line, StockAlert):
            return
        written = await uninterrupted(self._book.apply(line, lease))
        token = 0 if lease is None else lease.token
        fields = {"number": line.number, "product": line.product_id, "left": line.count, "token": token}
        if not written.applied:
            logger.debug("Alert %d was applied before", line.number, extra={"event": "feed.alert_repeated", **fields})
        elif not written.sold:
            message = "Alert %d is about a product that this shop does not sell"
            logger.warning(message, line.number, extra={"event": "feed.alert_unsold", **fields})
        else:
            message = "Low stock: %d left of %s (fencing token %d)"
            extra = {"event": "feed.alert", **fields}
            logger.warning(message, line.count, line.product_id, token, extra=extra)

    # ------------------------------------------------------------------------------------- telling

    @contextlib.contextmanager
    def _told_of_connection(self, opened: FeedOpened, token: int) -> Any:
        self.connected, self._waiting = True, False
        logger.info(
            "Connected to the warehouse feed (fencing token %d)",
            token,
            extra={"event": "feed.connected", "token": token, "feed": opened.feed_id},
        )
        try:
            yield
        finally:
            self.connected = False
            logger.info(
                "Disconnected from the warehouse feed (fencing token %d)",
                token,
                extra={"event": "feed.disconnected", "token": token, "feed": opened.feed_id},
            )

    def _wait_for_predecessor(self, token: int) -> None:
        level = logging.DEBUG if self._waiting else logging.WARNING
        if not self._waiting:
            self._pause_s, self._waiting = _FIRST_PAUSE_S, True
        logger.log(
            level,
            "The warehouse has another connection of this shop's, and is asked again until it has hung up",
            extra={"event": "feed.waiting", "token": token},
        )

    def _failed(self, error: Exception, token: int) -> None:
        self._waiting = False
        # Not the text of a driver's error: it may hold addresses.
        said = str(error) if isinstance(error, PartnerError) else f"The database failed ({type(error).__name__})."
        logger.error(
            "Lost the warehouse feed, and connects again: %s",
            said,
            extra={"event": "feed.lost", "token": token, "error": type(error).__name__},
        )


def _decoded(line: bytes) -> FeedLine:
    try:
        return _LINE.decode(line)
    except msgspec.MsgspecError:
        # Not `from`: the parser's text quotes what was received.
        raise _no_line() from None


def _no_line() -> Unreadable:
    return Unreadable("The warehouse sent something over its feed that was not agreed. Nothing was done with it.")
