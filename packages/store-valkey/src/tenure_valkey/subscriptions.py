"""What a store that tells its waiters of grants asks of a runner: to listen, on a connection of its own."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["Heard", "Subscriber", "Subscribes"]

Heard = Callable[[bytes], None]
"""What is called with each message, in the event loop; it neither blocks nor raises."""


class Subscriber(Protocol):
    """
    Channels of one store, on connections of their own: one, or in a cluster one to each node that is needed.

    A channel with braces is a sharded one, at the primary of its slot; any other is a plain one.
    """

    async def add(self, channel: bytes) -> None:
        """
        Subscribe to *channel*, and return once the server has said so. Asked again, it does so again.

        Raises: what the client raises.
        """
        ...

    def hears(self, channel: bytes) -> bool:
        """Whether, by all that is known here, *channel* is subscribed where its lock lives. Nothing is waited for."""
        ...

    async def remove(self, channel: bytes) -> None:
        """Give *channel* up, where it is subscribed."""
        ...

    def lose(self, channel: bytes) -> None:
        """Give up what *channel* is subscribed on: its server says that nobody listens. Nothing is waited for."""
        ...

    async def aclose(self) -> None:
        """Close the connections. May be called again."""
        ...


@runtime_checkable
class Subscribes(Protocol):
    """A runner that can listen."""

    async def subscriber(self, heard: Heard) -> Subscriber | None:
        """Return a new subscriber, not yet connected; or None where the client cannot listen."""
        ...
