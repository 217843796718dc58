"""A resource that fences: it takes a write unless it has taken one with a greater token before."""

import asyncio
import json
import socket
from typing import Any, Self, final

from tenure.testing.history import HistoryRecorder

_ENCODING = "utf-8"


@final
class Ledger:
    """
    A small server on loopback in the nemesis's process, which sees every write in one order and writes it down.

    It stands for whatever a holder writes to. It knows nothing of locks: the token is all that it looks at.

    Args:
        recorder: Where the writes are noted, accepted or not.
        fenced: Whether it looks at the token; one that does not is the control.
    """

    def __init__(self, recorder: HistoryRecorder, *, fenced: bool = True) -> None:
        self._recorder = recorder
        self._fenced = fenced
        self._highest: dict[str, int] = {}
        self._server: asyncio.Server | None = None
        self.accepted = 0
        self.refused = 0
        self.stale_accepted = 0
        """Writes with a token below one that was taken before, and taken all the same: none, if it fences."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, family=socket.AF_INET)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def take(self, resource: str, key: str, token: int) -> bool:
        """Take a write, or refuse it."""
        highest = self._highest.get(resource, 0)
        stale = token < highest
        accepted = not (stale and self._fenced)
        self.accepted += accepted
        self.refused += not accepted
        self.stale_accepted += stale and accepted
        self._highest[resource] = max(highest, token)
        self._recorder.note("write", resource=resource, key=key, token=token, accepted=accepted)
        return accepted

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                write: dict[str, Any] = json.loads(line)
                accepted = self.take(write["resource"], write["key"], write["token"])
                writer.write(json.dumps(accepted).encode(_ENCODING) + b"\n")
        except (ConnectionError, ValueError):
            pass  # a process that was killed in the middle of a line
        finally:
            writer.close()


@final
class LedgerClient:
    """
    The holder's side of a `Ledger`.

    Args:
        port: Where it listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._line = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def write(self, resource: str, key: str, token: int) -> bool:
        """Write, and return whether it was taken."""
        async with self._line:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(json.dumps({"resource": resource, "key": key, "token": token}).encode(_ENCODING) + b"\n")
            answer: bool = json.loads(await reader.readline())
            return answer
