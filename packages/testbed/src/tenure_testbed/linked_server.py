"""One server of a pair, and the proxy through which the other one replicates from it."""

from typing import Generic, Protocol, TypeVar, final

from tenure_testbed.faultproxy import ThreadedFaultProxy
from tenure_testbed.ports import LOOPBACK

__all__ = ["LinkedServer"]


class _Server(Protocol):
    """What a link needs of a server."""

    @property
    def port(self) -> int:
        """Where it listens."""
        ...

    def close(self) -> None:
        """Stop it and remove its data."""
        ...


_S = TypeVar("_S", bound=_Server)


@final
class LinkedServer(Generic[_S]):
    """
    A server, and its link while there is one.

    Args:
        server: The server.
        label: What the other one calls it, where the protocol wants a name.
    """

    def __init__(self, server: _S, label: str = "") -> None:
        self.server = server
        self.label = label
        self.link: ThreadedFaultProxy | None = None

    def open_link(self) -> ThreadedFaultProxy:
        """Return the link, opened at the first call."""
        if self.link is None:
            self.link = ThreadedFaultProxy((LOOPBACK, self.server.port))
            self.link.start()
        return self.link

    def close(self) -> None:
        """Close the link, then the server."""
        if self.link is not None:
            self.link.close()
            self.link = None
        self.server.close()
