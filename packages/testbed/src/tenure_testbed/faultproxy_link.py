"""One connection through a fault proxy: two lanes, each with the mode of its direction."""

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass, field

from tenure_testbed.faults import Blackhole, Counters, Delay, DropReply, Limit, Mode, Pass, Reset, Slice

_CHUNK = 65536
# Chunks under way in a lane with a delay; a lane that is fuller stops reading, and TCP slows the sender.
_UNDER_WAY = 256


@dataclass
class Tally:
    """The counters of a proxy while they change."""

    accepted: int = 0
    lost: int = 0
    dropped_replies: int = 0
    resets: int = 0
    held: int = 0
    passed: dict[str, int] = field(default_factory=lambda: {"to_server": 0, "to_client": 0})

    def read(self, connections: int) -> Counters:
        """A copy that does not change any more."""
        return Counters(
            accepted=self.accepted,
            open=connections,
            to_server=self.passed["to_server"],
            to_client=self.passed["to_client"],
            lost=self.lost,
            dropped_replies=self.dropped_replies,
            resets=self.resets,
            held=self.held,
        )


class Direction:
    """The mode of one direction, shared by all connections of a proxy."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.mode: Mode = Pass()
        self.generation = 0
        self._chance = chance
        self._drops_left: int | None = None
        self._changed = asyncio.Event()

    def set(self, mode: Mode) -> None:
        """Change the mode, and wake whatever a blackhole holds."""
        self.mode = mode
        self.generation += 1
        self._drops_left = mode.times if isinstance(mode, DropReply) else None
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self) -> None:
        """Wait until the mode is set again."""
        await self._changed.wait()

    def lateness(self) -> float:
        """Seconds by which a chunk that comes now is late."""
        if not isinstance(self.mode, Delay):
            return 0.0
        jitter = self._chance.uniform(-self.mode.jitter_ms, self.mode.jitter_ms)
        return (self.mode.ms + jitter) / 1000

    def dropped(self) -> None:
        """A reply was dropped; the last of a given number ends the mode."""
        if self._drops_left is not None:
            self._drops_left -= 1
            if self._drops_left == 0:
                self.set(Pass())


class _TornError(Exception):
    """The link is to be reset on both sides."""


class Link:
    """
    One client's connection and the proxy's own to the server.

    Args:
        client: The accepted socket.
        upstream: Host and port of the server.
        to_server: The mode of what the client sends.
        to_client: The mode of what the server sends.
        tally: The proxy's counters.
    """

    def __init__(
        self,
        client: socket.socket,
        upstream: tuple[str, int],
        to_server: Direction,
        to_client: Direction,
        tally: Tally,
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._to_server = to_server
        self._to_client = to_client
        self._tally = tally
        self._writers: list[asyncio.StreamWriter] = []

    async def run(self) -> None:
        """Carry bytes both ways until both sides have closed or the link is reset."""
        try:
            reader, writer = await asyncio.open_connection(sock=self._client)
            self._writers.append(writer)
            await _gate(self._to_server, self._tally)  # behind a partition the server sees no connection either
            server_reader, server_writer = await asyncio.open_connection(*self._upstream)
            self._writers.append(server_writer)
            async with asyncio.TaskGroup() as lanes:
                for lane in (
                    _Lane(self._to_server, reader, server_writer, self._tally),
                    _Lane(self._to_client, server_reader, writer, self._tally),
                ):
                    lanes.create_task(lane.read())
                    lanes.create_task(lane.write())
        except* (_TornError, OSError):
            self.reset()
        finally:
            await self._close()

    def reset(self) -> None:
        """Reset both sides now."""
        self._tally.resets += 1
        for writer in self._writers:
            abort(writer)

    def dispose(self) -> None:
        """After the end of `run()`, or instead of it: a task cancelled before its first step runs nothing."""
        if not self._writers:
            self._client.close()

    async def _close(self) -> None:
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _Lane:
    """
    One direction of one link: a reader that stamps what comes, and a writer that passes it on when it is due.

    Two tasks and not one, so that a delay makes bytes late without making the line slow.
    """

    def __init__(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tally: Tally
    ) -> None:
        self._direction = direction
        self._reader = reader
        self._writer = writer
        self._tally = tally
        # A chunk, b"" for the orderly end, None for a reset by the peer.
        self._line: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_UNDER_WAY)
        self._limited = (0, 0)  # generation of the mode, bytes passed under it

    async def read(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            chunk: bytes | None
            try:
                chunk = await self._reader.read(_CHUNK)
            except OSError:
                chunk = None
            await self._line.put((now() + self._direction.lateness(), chunk))
            if not chunk:
                return

    async def write(self) -> None:
        now = asyncio.get_running_loop().time
        receiver_there = True
        while True:
            due, chunk = await self._line.get()
            await asyncio.sleep(max(0.0, due - now()))
            await _gate(self._direction, self._tally)
            if chunk is None:
                raise _TornError
            if receiver_there:
                try:
                    await self._pass(chunk)
                except OSError:
                    # The receiver is gone. The lane that reads from it learns the same, and passes that on under
                    # the rules of its own direction: behind a blackhole the sender must not hear of it.
                    receiver_there = False
            if not chunk:
                return

    async def _pass(self, chunk: bytes) -> None:
        if not chunk:
            self._writer.write_eof()
            return
        match self._direction.mode:
            case Reset():
                self._lose(chunk)
            case DropReply():
                self._tally.dropped_replies += 1
                self._direction.dropped()
                self._lose(chunk)
            case Limit(size=size):
                await self._pass_limited(chunk, size)
            case Slice(size=size, pause_ms=pause):
                for start in range(0, len(chunk), size):
                    await self._send(chunk[start : start + size])
                    await asyncio.sleep(pause / 1000)
            case _:
                await self._send(chunk)

    async def _pass_limited(self, chunk: bytes, size: int) -> None:
        generation, passed = self._limited
        if generation != self._direction.generation:
            passed = 0
        head = chunk[: size - passed]
        self._limited = (self._direction.generation, passed + len(head))
        await self._send(head)
        if passed + len(chunk) > size:
            self._lose(chunk[len(head) :])

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        self._tally.passed[self._direction.name] += len(data)

    def _lose(self, data: bytes) -> None:
        self._tally.lost += len(data)
        raise _TornError


async def _gate(direction: Direction, tally: Tally) -> None:
    """Wait for the end of a blackhole, if there is one."""
    if not isinstance(direction.mode, Blackhole):
        return
    tally.held += 1
    try:
        while isinstance(direction.mode, Blackhole):
            await direction.change()
    finally:
        tally.held -= 1


def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
