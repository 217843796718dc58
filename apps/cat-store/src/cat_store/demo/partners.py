"""The partners of the demo: their process, their statements and their switches."""

import asyncio
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

import httpx
import msgspec

from cat_store.demo.journal import NotSeenError
from cat_store.partners.wire import (
    AccountingStatement,
    AccountingSwitches,
    Health,
    Shelf,
    WarehouseStatement,
    WarehouseSwitches,
)
from tenure_testbed import Replica, ServerStartError, free_port

__all__ = ["PartnersProcess"]

_UP_WITHIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.05

Statement = TypeVar("Statement")


class PartnersProcess:
    """The accounting system and the warehouse as a process, and what the story asks of them."""

    def __init__(self) -> None:
        self._port = free_port()
        self._process = Replica(
            [sys.executable, "-m", "cat_store", "partners", "--port", str(self._port)], name="partners"
        )
        self._http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}")

    @property
    def accounting_url(self) -> str:
        """Where the accounting system answers."""
        return f"http://127.0.0.1:{self._port}/accounting"

    @property
    def warehouse_url(self) -> str:
        """Where the warehouse answers."""
        return f"http://127.0.0.1:{self._port}/warehouse"

    async def __aenter__(self) -> Self:
        self._process.start()
        try:
            await self._wait_until_up()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def accounting(self) -> AccountingStatement:
        """What accounting was asked to do."""
        return await self._get("/accounting/statement", AccountingStatement)

    async def warehouse(self) -> WarehouseStatement:
        """What the warehouse was asked to do."""
        return await self._get("/warehouse/statement", WarehouseStatement)

    async def switch_accounting(self, switches: AccountingSwitches) -> None:
        """Set accounting's switches."""
        await self._put("/accounting/switches", switches)

    async def switch_warehouse(self, switches: WarehouseSwitches) -> None:
        """Set the warehouse's switches."""
        await self._put("/warehouse/switches", switches)

    async def put_on_shelf(self, shelf: Shelf) -> None:
        """Change what lies on a shelf."""
        await self._put("/warehouse/shelves", shelf)

    async def alert(self, shelf: Shelf) -> None:
        """Change what lies on a shelf, and have the warehouse say so over its feed."""
        await self._send("POST", "/warehouse/alerts", shelf)

    async def wait_for_accounting(
        self, reached: Callable[[AccountingStatement], bool], what: str, *, within_s: float
    ) -> AccountingStatement:
        """Ask for statements until one is as it should be; raises NotSeenError after that many seconds."""
        return await self._wait("/accounting/statement", AccountingStatement, reached, what, within_s)

    async def wait_for_warehouse(
        self, reached: Callable[[WarehouseStatement], bool], what: str, *, within_s: float
    ) -> WarehouseStatement:
        """Ask for statements until one is as it should be; raises NotSeenError after that many seconds."""
        return await self._wait("/warehouse/statement", WarehouseStatement, reached, what, within_s)

    async def _wait(
        self, path: str, kind: type[Statement], reached: Callable[[Statement], bool], what: str, within_s: float
    ) -> Statement:
        try:
            async with asyncio.timeout(within_s):
                while True:
                    statement = await self._get(path, kind)
                    if reached(statement):
                        return statement
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            raise NotSeenError(f"Waited {within_s:g} s in vain for: {what}.") from None

    async def _wait_until_up(self) -> None:
        """Wait until the process that answers on the port is the one that was started."""
        try:
            async with asyncio.timeout(_UP_WITHIN_S):
                while self._process.running:
                    try:
                        health = await self._get("/health", Health)
                    except (httpx.HTTPError, msgspec.MsgspecError):
                        await asyncio.sleep(_LOOK_EVERY_S)
                        continue
                    if health.pid == self._process.pid:
                        return
                    break
        except TimeoutError:
            pass
        raise ServerStartError(f"The partners do not serve. They wrote last:\n{self._process.output.tail()}")

    async def _get(self, path: str, kind: type[Statement]) -> Statement:
        return msgspec.json.decode((await self._http.get(path)).raise_for_status().content, type=kind)

    async def _put(self, path: str, body: msgspec.Struct) -> None:
        await self._send("PUT", path, body)

    async def _send(self, method: str, path: str, body: msgspec.Struct) -> None:
        response = await self._http.request(
            method, path, content=msgspec.json.encode(body), headers={"content-type": "application/json"}
        )
        response.raise_for_status()

    async def _close(self) -> None:
        await self._http.aclose()
        await asyncio.to_thread(self._process.close)
