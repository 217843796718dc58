"""The live page as one part of a replica: entered before its web server, left after it."""

import contextlib
import zoneinfo
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, final

import httpx
from litestar.di import Provide
from sqlalchemy.ext.asyncio import AsyncEngine

from cat_store.live.actions import LiveActions
from cat_store.live.demo_link import DemoLink, DemoState
from cat_store.live.facts import Facts, PartnersFact
from cat_store.live.origins import origin_of
from cat_store.live.picture import Picture, Place, Steady, paint
from cat_store.live.poller import LivePoller
from cat_store.live.reading import DatabaseReader, PartnersReader, Read
from cat_store.live.source import Source, now_ms
from tenure.store import ListsLocks, LockRecord

__all__ = ["Live", "LiveOptions", "live_dependencies", "open_live"]

_EVERY_S: Final = 1.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """
    What the page is told.

    Attributes:
        instance: The replica's name.
        address: Where browsers and other replicas reach it; the one that its heartbeat tells.
        accounting_url: The accounting system.
        warehouse_url: The warehouse.
        lock_ttl_s: How long a lease lives without a renewal, in seconds.
        timezone: The time zone of the shown times.
        admin_token: What an administrator sends, for the demo's export; None where there are none.
        demo_url: The demo's supervisor, `http://demo:TOKEN@host:port`; None where there is none, and no button.
    """

    instance: str
    address: str
    accounting_url: str = field(repr=False)
    warehouse_url: str = field(repr=False)
    lock_ttl_s: float = 30.0
    timezone: str = "UTC"
    admin_token: str | None = field(default=None, repr=False)
    demo_url: str | None = field(default=None, repr=False)


@final
@dataclass(frozen=True, slots=True)
class Live:
    """
    What the routes use.

    Attributes:
        instance: The replica's name.
        address: Where it is reached.
        poller: The page, version by version.
        actions: The demo's buttons; None where there is no demo.
    """

    instance: str
    address: str
    poller: LivePoller
    actions: LiveActions | None

    @property
    def addresses(self) -> Sequence[str]:
        """Where the replicas answer, as far as is known."""
        return [self.address, *self.poller.frame.addresses]

    def end_streams(self) -> None:
        """End every open stream: to be called when the replica is told to stop, before its web server drains."""
        self.poller.end_streams()


def live_dependencies(live: Live) -> dict[str, Provide]:
    """Return what `LiveController` needs of the application's dependencies."""
    return {"live": Provide(lambda: live, sync_to_thread=False)}


@contextlib.asynccontextmanager
async def open_live(
    options: LiveOptions,
    engine: AsyncEngine,
    store: object | None,
    *,
    partners: httpx.AsyncBaseTransport | None = None,
    every_s: float = _EVERY_S,
) -> AsyncIterator[Live]:
    """
    Open the live page; nothing is read before somebody looks.

    Args:
        options: What it is told.
        engine: The shop's database.
        store: Where the locks are; None where they are switched off.
        partners: Where requests to partners go instead of the network, for tests.
        every_s: The seconds between two looks.

    Raises:
        ValueError: `demo_url` holds no token.
    """
    async with AsyncExitStack() as left:
        link = None
        if options.demo_url is not None:
            link = await left.enter_async_context(DemoLink(options.demo_url, options.instance))
        reader = await left.enter_async_context(
            PartnersReader(options.accounting_url, options.warehouse_url, transport=partners)
        )
        sources = _Sources(engine, store, reader, link)
        easel = _Easel(options, sources, locks=store is not None)
        poller = await left.enter_async_context(LivePoller(sources.all, easel.paint, every_s=every_s))
        actions = None
        if link is not None:
            own = origin_of(options.address) or options.address
            actions = await left.enter_async_context(
                LiveActions(link, lambda: easel.picture, own=own, admin_token=options.admin_token)
            )
        yield Live(options.instance, options.address, poller, actions)


class _Sources:
    """What is read at each look."""

    def __init__(
        self, engine: AsyncEngine, store: object | None, reader: PartnersReader, link: DemoLink | None
    ) -> None:
        self.database: Source[Read] = Source("The shop's database", DatabaseReader(engine).read)
        self.partners: Source[PartnersFact] = Source("One of the partners", reader.read)
        self.locks: Source[Sequence[LockRecord]] | None = None
        self.demo: Source[DemoState] | None = None
        if isinstance(store, ListsLocks):
            self.locks = Source("The store of the locks", store.list_locks)
        if link is not None:
            self.demo = Source("The demo's supervisor", link.state)

    @property
    def all(self) -> list[Source[Any]]:
        return [source for source in (self.database, self.partners, self.locks, self.demo) if source is not None]

    def facts(self) -> Facts:
        """Put together what they have."""
        shared, shop = self.database.value or (None, None)
        return Facts(
            now_ms=now_ms(),
            shared=shared,
            shared_at_ms=self.database.at_ms,
            shop=shop,
            locks=None if self.locks is None else self.locks.value or (),
            locks_at_ms=0 if self.locks is None else self.locks.at_ms,
            partners=self.partners.value,
            demo=None if self.demo is None else self.demo.value,
            troubles=tuple(source.trouble for source in self.all if source.trouble is not None),
        )


class _Easel:
    """Paints what the sources have, and keeps the last picture for the buttons."""

    def __init__(self, options: LiveOptions, sources: _Sources, *, locks: bool) -> None:
        self._sources = sources
        self._steady = Steady()
        self._place = Place(
            options.instance, round(options.lock_ttl_s * 1000), zoneinfo.ZoneInfo(options.timezone), locks=locks
        )
        self.picture: Picture = paint(Facts(now_ms()), self._place, Steady())

    def paint(self) -> Picture:
        self.picture = paint(self._sources.facts(), self._place, self._steady)
        return self.picture
