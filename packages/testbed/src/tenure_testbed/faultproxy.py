"""A TCP proxy on loopback that spoils what passes through it, as told."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from tenure_testbed.errors import ServerError
from tenure_testbed.faultproxy_link import Direction, Link, Tally
from tenure_testbed.faults import Counters, DropReply, Faults, Mode
from tenure_testbed.lifecycle import Lifecycle
from tenure_testbed.ports import LOOPBACK

T = TypeVar("T")

_BACKLOG = 512
# Opening or closing a listener on loopback; a proxy thread that needs longer is stuck.
_CALL_SECONDS = 10.0


class FaultProxy(Faults):
    """
    A fault proxy in the running event loop.

    Its verbs are plain methods, to be called in that loop. Where the loop may be blocked on purpose, where there
    is none, or where another loop uses the proxy, take `ThreadedFaultProxy`.

    Args:
        upstream: Host and port of the server behind it.
        seed: Seed of the jitter.
    """

    def __init__(self, upstream: tuple[str, int], *, seed: int = 0) -> None:
        self.upstream = upstream
        self._chance = random.Random(seed)  # noqa: S311  faults to be repeated by seed, no secret
        self._tally = Tally()
        self._links: dict[asyncio.Task[None], Link] = {}
        self._reservation: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._to_server = Direction("to_server", self._chance)
        self._to_client = Direction("to_client", self._chance)

    async def start(self) -> None:
        """Listen on a free port."""
        # The port is held by a socket that never listens, so that a refusing proxy keeps it: connecting to it
        # is refused by the kernel, and no other process is given it meanwhile.
        self._reservation = _bound(0)
        self.accept()

    async def close(self) -> None:
        """Stop listening and reset every open connection; may be called again."""
        if self._reservation is None:
            return
        self.refuse()
        ending = list(self._links)
        self.reset_all()
        await asyncio.gather(*ending, return_exceptions=True)
        self._reservation.close()
        self._reservation = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def port(self) -> int:
        """
        The port that clients connect to.

        Raises:
            ServerError: The proxy was not started.
        """
        if self._reservation is None:
            raise ServerError("The fault proxy has no port yet: start() it, or use it in a with statement.")
        port: int = self._reservation.getsockname()[1]
        return port

    def set(self, *, to_server: Mode | None = None, to_client: Mode | None = None) -> None:  # noqa: D102
        match to_server:
            case DropReply():
                raise ValueError("Replies come from the server: DropReply is for the direction to the client.")
            case None:
                pass
            case _:
                self._to_server.set(to_server)
        if to_client is not None:
            self._to_client.set(to_client)

    def refuse(self) -> None:  # noqa: D102
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def accept(self) -> None:  # noqa: D102
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(self._listener, self._take, self._listener)

    def reset_all(self) -> None:  # noqa: D102
        for task, link in list(self._links.items()):
            link.reset()
            task.cancel()

    @property
    def counters(self) -> Counters:  # noqa: D102
        return self._tally.read(len(self._links))

    def _take(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # the client gave up before its turn came
            return
        client.setblocking(False)
        self._tally.accepted += 1
        link = Link(client, self.upstream, self._to_server, self._to_client, self._tally)
        task = asyncio.get_running_loop().create_task(link.run())
        self._links[task] = link
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).dispose()


class ThreadedFaultProxy(Faults, Lifecycle):
    """
    A fault proxy in a thread and an event loop of its own; its methods may be called from anywhere.

    It goes on while the caller's event loop is blocked. Each verb returns when it has taken effect.

    Args:
        upstream: Host and port of the server behind it.
        seed: Seed of the jitter.
    """

    def __init__(self, upstream: tuple[str, int], *, seed: int = 0) -> None:
        self._proxy = FaultProxy(upstream, seed=seed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen on a free port."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._thread.start()
        self._call(self._proxy.start())

    def close(self) -> None:
        """Stop listening, reset every open connection and end the thread; may be called again."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._call(self._proxy.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CALL_SECONDS)
        loop.close()
        self._loop = self._thread = None

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self._proxy.port

    @property
    def upstream(self) -> tuple[str, int]:
        """Host and port of the server behind it; what is set holds for new connections."""
        return self._proxy.upstream

    @upstream.setter
    def upstream(self, address: tuple[str, int]) -> None:
        self._proxy.upstream = address

    def set(self, *, to_server: Mode | None = None, to_client: Mode | None = None) -> None:  # noqa: D102
        self._do(lambda: self._proxy.set(to_server=to_server, to_client=to_client))

    def refuse(self) -> None:  # noqa: D102
        self._do(self._proxy.refuse)

    def accept(self) -> None:  # noqa: D102
        self._do(self._proxy.accept)

    def reset_all(self) -> None:  # noqa: D102
        self._do(self._proxy.reset_all)

    @property
    def counters(self) -> Counters:  # noqa: D102
        return self._do(lambda: self._proxy.counters)

    def _do(self, step: Callable[[], T]) -> T:
        async def in_its_loop() -> T:
            return step()

        return self._call(in_its_loop())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            coroutine.close()
            raise ServerError("The fault proxy does not run: start() it, or use it in a with statement.")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_SECONDS)


def _bound(port: int) -> socket.socket:
    """A socket on the port beside others of this process on the same port, of which only one listens."""
    # asyncio sets TCP_NODELAY only on a socket that says it is TCP's.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((LOOPBACK, port))
    bound.setblocking(False)
    return bound
