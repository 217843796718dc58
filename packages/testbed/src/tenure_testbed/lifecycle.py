"""The start and the end of whatever the test bed runs."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifecycle(ABC):
    """
    Something with a start and an end: a context manager, synchronous and asynchronous.

    The methods of the test bed block, for milliseconds mostly and for seconds at worst. In an event loop that
    has to go on meanwhile, call them as `asyncio.to_thread(server.kill)`: they are bound to no thread.
    """

    @abstractmethod
    def start(self) -> None:
        """Start, and return when it can be used."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove what it left; may be called again, and after a failed start."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
