"""uvicorn as a guest: it serves in its host's event loop, and leaves signals and the end of the process to its host."""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import AsyncIterator, Generator
from typing import Final, Self

import uvicorn
from litestar.types import ASGIApp

__all__ = ["ListenError", "Listener", "serving"]

logger = logging.getLogger(__name__)

# Cancelled requests unwind within milliseconds; the second is for a busy machine.
_UNWIND_S: Final = 1.0
_BACKLOG: Final = 2048
_EVERY_INTERFACE: Final = ("0.0.0.0", "::")  # noqa: S104 -- what was asked for, not what is asked for


class ListenError(Exception):
    """The web server cannot have its port."""


class Listener:
    """
    A port that is taken and not listened on yet: whoever connects is refused until an application is served on it.

    Taken before anything is started, so that a replica whose port is another's fires no job.

    Args:
        host: The interface.
        port: The port; 0 for any that is free.

    Raises:
        ListenError: The port is taken or forbidden, or the interface is not this machine's.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host: Final = host
        self.socket: Final = _bind(host, port)
        self.port: Final[int] = self.socket.getsockname()[1]

    @property
    def url(self) -> str:
        """Where the replica answers; for one that listens on every interface, this machine's own name."""
        if self.host in _EVERY_INTERFACE:
            return f"http://localhost:{self.port}"
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def listen(self) -> None:
        """
        Take connections from now on.

        Raises:
            ListenError: Somebody else took the port at the same moment and was first to listen on it.
        """
        try:
            self.socket.listen(_BACKLOG)
        except OSError as error:
            raise _refused(self.host, self.port, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def _bind(host: str, port: int) -> socket.socket:
    with contextlib.ExitStack() as left:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            # With its protocol: asyncio sets TCP_NODELAY only on a socket that says it is TCP's, and without it the
            # body of an answer waits 40 ms for the client to acknowledge the headers.
            bound = left.enter_context(socket.socket(family, kind, protocol))
            # A restarted replica has its port at once, although connections of its predecessor are still closing.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError as error:
            raise _refused(host, port, error) from None
        left.pop_all()
        return bound


def _refused(host: str, port: int, error: OSError) -> ListenError:
    return ListenError(
        f"The web server cannot have port {port} of {host}: {error.strerror or error}. Look at CAT_STORE_HOST and "
        "CAT_STORE_PORT; 0 takes any free port."
    )


class _Guest(uvicorn.Server):
    """A server that tells when it is up, and takes no signal: its host stops it among the other things it stops."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            # uvicorn takes the process down where the application's lifespan fails; that is the host's to do.
            raise ListenError("The web application did not start; the log says why.") from None
        self.up.set()


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: Listener, *, drain_s: float) -> AsyncIterator[None]:
    """
    Serve an application while this is entered.

    Leaving it: no new connection is taken, requests under way are answered within `drain_s`, what is left then is
    cancelled, and the application's lifespan ends. Entered last and left first: requests use everything else.

    Args:
        app: The application.
        listener: Where.
        drain_s: How long leaving waits for requests, in seconds.

    Raises:
        ListenError: The port is another's by now, or the application did not start.
    """
    config = uvicorn.Config(
        app,
        log_config=None,  # the replica decides what is logged
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=math.ceil(drain_s),
    )
    listener.listen()
    server = _Guest(config)
    task = asyncio.create_task(server.serve([listener.socket]), name="web server")
    up = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait({task, up}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        logger.info(
            "Serving at %s", listener.url, extra={"event": "web.serving", "url": listener.url, "port": listener.port}
        )
        yield
    finally:
        up.cancel()
        server.should_exit = True
        await asyncio.wait({task})
        # Requests that took longer than the drain were cancelled, and uvicorn does not wait for their ends: they still
        # hold connections that are about to be closed.
        if cut_off := set(server.server_state.tasks):
            await asyncio.wait(cut_off, timeout=_UNWIND_S)
        task.result()  # a server that could not end as it should is a mistake to be told
