"""What a fault proxy does to the bytes of a direction, and the verbs to say so."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pass:
    """Bytes go through as they come."""


@dataclass(frozen=True, slots=True)
class Delay:
    """
    Bytes go through later, in order; several are under way at once, as on a long line.

    Attributes:
        ms: Milliseconds that each chunk is late.
        jitter_ms: Up to so much more or less, drawn for each chunk.
    """

    ms: float
    jitter_ms: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.jitter_ms <= self.ms):
            raise ValueError("A delay needs 0 <= jitter_ms <= ms: bytes cannot arrive before they were sent.")


@dataclass(frozen=True, slots=True)
class Blackhole:
    """
    Nothing goes through and nobody is told: a partition.

    What was sent is kept, and so is the closing of a connection. `heal()` lets it through late, as TCP does
    when a partition ends; `reset_all()` loses it.
    """


@dataclass(frozen=True, slots=True)
class DropReply:
    """
    The request reaches the server, its reply is lost and the connection is reset. For the direction to the client.

    Attributes:
        times: After so many lost replies the direction passes again; None for every reply.
    """

    times: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("times", self.times)


@dataclass(frozen=True, slots=True)
class Reset:
    """The next bytes are lost and the connection is reset on both sides."""


@dataclass(frozen=True, slots=True)
class Slice:
    """
    Bytes go through in small pieces.

    Attributes:
        size: Bytes a piece.
        pause_ms: Milliseconds between pieces; with 0 the kernel may join them again.
    """

    size: int
    pause_ms: float = 0.0

    def __post_init__(self) -> None:
        _at_least_one("size", self.size)


@dataclass(frozen=True, slots=True)
class Limit:
    """
    A connection passes so many more bytes, then it is reset: a message torn in the middle.

    Attributes:
        size: Bytes that each connection passes from when the mode was set.
    """

    size: int

    def __post_init__(self) -> None:
        _at_least_one("size", self.size)


Mode = Pass | Delay | Blackhole | DropReply | Reset | Slice | Limit


@dataclass(frozen=True, slots=True)
class Counters:
    """
    What a proxy has done since its start.

    Attributes:
        accepted: Connections accepted.
        open: Connections open now.
        to_server: Bytes passed to the server.
        to_client: Bytes passed to the client.
        lost: Bytes thrown away.
        dropped_replies: Replies lost by `DropReply`.
        resets: Connections reset by the proxy.
        held: Chunks, and ends of connections, that a blackhole holds back now.
    """

    accepted: int = 0
    open: int = 0
    to_server: int = 0
    to_client: int = 0
    lost: int = 0
    dropped_replies: int = 0
    resets: int = 0
    held: int = 0


class Faults(ABC):
    """
    The verbs of a fault proxy; each holds for open and new connections from the next byte on.

    A direction stays as it is until it is set again; `heal()` ends every fault.
    """

    @abstractmethod
    def set(self, *, to_server: Mode | None = None, to_client: Mode | None = None) -> None:
        """
        Set the mode of one direction or both.

        Args:
            to_server: For what clients send; None leaves it as it is.
            to_client: For what the server sends; None leaves it as it is.

        Raises:
            ValueError: `DropReply` in the direction to the server.
        """

    @abstractmethod
    def refuse(self) -> None:
        """Refuse new connections, as a closed port does; open ones stay. The port stays reserved."""

    @abstractmethod
    def accept(self) -> None:
        """Accept new connections again."""

    @abstractmethod
    def reset_all(self) -> None:
        """Reset every open connection now; bytes that were held or under way are lost."""

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """What the proxy has done so far."""

    def heal(self) -> None:
        """End every fault: both directions pass, what a blackhole held goes through, connections are accepted."""
        self.accept()
        self.set(to_server=Pass(), to_client=Pass())

    def blackhole(self) -> None:
        """Let nothing through in either direction; see `Blackhole`."""
        self.set(to_server=Blackhole(), to_client=Blackhole())

    def delay(self, ms: float, jitter_ms: float = 0.0) -> None:
        """Make every chunk late by so much in each direction; see `Delay`."""
        self.set(to_server=Delay(ms, jitter_ms), to_client=Delay(ms, jitter_ms))

    def drop_reply(self, times: int | None = None) -> None:
        """Let requests through and lose their replies; see `DropReply`."""
        self.set(to_client=DropReply(times))

    def reset(self) -> None:
        """Reset each connection at its next bytes to the server, which never sees them; see `Reset`."""
        self.set(to_server=Reset())

    def slice(self, size: int, pause_ms: float = 0.0) -> None:
        """Cut what passes into small pieces in both directions; see `Slice`."""
        self.set(to_server=Slice(size, pause_ms), to_client=Slice(size, pause_ms))

    def limit(self, size: int) -> None:
        """Tear each connection's reply after so many bytes; see `Limit`."""
        self.set(to_client=Limit(size))


def _at_least_one(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{name} has to be at least 1, not {value}.")
