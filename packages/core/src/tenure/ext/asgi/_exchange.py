"""
The response of an execution on its way to the client.

Everything is forwarded as it comes, a stream's first bytes at once, and recorded on the way. Held back is only what
would let the client have the whole response before its record is settled: the last message, or the chunk that fills a
content-length. So:

    start --------> forwarded            a framework's commit hook runs inside of this send
    chunk --------> forwarded, recorded
    last message -> the record is settled, then it is forwarded

A client that has all of its response never meets its own request in flight; and a commit that fails does so before
anything was stored for it.
"""

import logging
from collections.abc import Callable
from typing import Final, final

from tenure.errors import ExecutionLostError, NoEffectError, OutcomeUnknownError
from tenure.ext.asgi._headers import header_lines, stored_headers
from tenure.ext.asgi._inbox import Inbox
from tenure.ext.asgi._options import IdempotencyOptions
from tenure.ext.asgi._problems import PLAIN_FAILURE
from tenure.ext.asgi._record import StoredResponse, is_final, summary_of
from tenure.ext.asgi._types import Message, Send
from tenure.idempotency import Execution, Settlement

__all__ = ["Exchange"]

_log: Final = logging.getLogger("tenure.idempotency")

_NOT_AN_OUTCOME: Final = frozenset({307, 308, 401, 403, 407, 408, 409, 423, 425, 429})
"""
Answers about the moment, the caller or the address, not about the request: the same request may succeed later, or
elsewhere. 307 and 308 have the client send it again to another path, under its key (a slash too many at the end is
answered so): a record of the first path would make the second one a mismatch.
"""


@final
class Exchange:
    """
    Forwards, records and settles. See the module.

    Args:
        execution: Whose response it is.
        options: The route's.
        send: The server's, or the next layer's.
        inbox: Knows whether the client hung up.
        publish: Called before each message that goes out.
    """

    def __init__(
        self,
        execution: Execution,
        options: IdempotencyOptions,
        send: Send,
        *,
        inbox: Inbox,
        publish: Callable[[], None],
    ) -> None:
        self._execution = execution
        self._options = options
        self._outside = send
        self._inbox = inbox
        self._publish = publish
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._length: int | None = None
        self._recorded: bytearray | None = bytearray()
        self._passed = 0
        self._held = b""
        self._start_refused = False
        self._hung_up: OSError | None = None
        self._settled = False

    @property
    def started(self) -> bool:
        """Whether the client was sent anything."""
        return self._status is not None

    # ------------------------------------------------------------------------------------ messages

    async def send(self, message: Message) -> None:
        """Take a message of what runs inside."""
        kind = message["type"]
        if self._settled or (self._status is None) is not (kind == "http.response.start"):
            # Out of order, or no part of a response: what is outside knows what to say to it.
            await self._forward(message)
        elif kind == "http.response.start":
            await self._start(message)
        elif kind == "http.response.body":
            await self._body(message)
        elif kind in ("http.response.pathsend", "http.response.zerocopysend"):
            await self._unrecorded(message)
        else:
            await self._forward(message)

    async def _start(self, message: Message) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        try:
            await self._forward(message)
        except Exception:
            # A hook that commits on the response's start failed: there is no such response.
            self._start_refused = True
            raise
        self._status = message["status"]
        self._headers = headers
        declared = header_lines(headers, b"content-length")
        self._length = int(declared[0]) if declared and declared[0].isdigit() else None
        if message.get("trailers", False):
            self._recorded = None

    async def _body(self, message: Message) -> None:
        body = bytes(message.get("body", b""))
        self._record(body)
        if not message.get("more_body", False):
            await self._settle(self._by_status())
            held, self._held = self._held, b""
            await self._forward({**message, "body": held + body})
            return
        self._passed += len(body)
        if self._length is not None and self._passed >= self._length:
            self._held += body
            return
        await self._forward(message)
        if self._hung_up is not None and (self._length is None or self._recorded is None):
            # Endless perhaps, or too long to be kept: it is told that nobody listens, as without this layer.
            raise self._hung_up

    async def _unrecorded(self, message: Message) -> None:
        """Forward what an application sends although it was not offered: a file by its path or descriptor."""
        self._recorded = None
        if message["type"] == "http.response.pathsend" or not message.get("more_body", False):
            await self._settle(self._by_status())
        await self._forward(message)

    def _record(self, body: bytes) -> None:
        if self._recorded is None:
            return
        if len(self._recorded) + len(body) > self._options.max_response_bytes:
            self._recorded = None
            return
        self._recorded += body

    async def _forward(self, message: Message) -> None:
        if self._hung_up is not None:
            return
        self._publish()
        try:
            await self._outside(message)
        except OSError as error:
            if not await self._inbox.client_is_gone():
                raise
            # The handler's work is done and its response exists: it is recorded to its end, for the retry to get.
            self._hung_up = error

    # ------------------------------------------------------------------------------------- the end

    async def returned(self) -> None:
        """Settle what returned without having sent the last message."""
        await self._settle(self._unfinished())
        await self._let_go()

    async def raised(self, error: Exception) -> None:
        """Settle what raised *error*; nothing where its response was settled before."""
        if isinstance(error, NoEffectError):
            await self._settle("release")
        elif isinstance(error, OutcomeUnknownError | ExecutionLostError):
            await self._settle("abandon")
        else:
            await self._settle(self._unfinished())
        await self._let_go()

    async def _let_go(self) -> None:
        """Forward what was held back for a last message that did not come."""
        held, self._held = self._held, b""
        if held:
            await self._forward({"type": "http.response.body", "body": held, "more_body": True})

    def abandon(self) -> None:
        """Leave the outcome as unknown: it was cancelled, or the process ends. Nothing where it is settled."""
        self._settled = True
        self._execution.abandon()

    def _by_status(self) -> Settlement:
        """Say what becomes of a response that has come to its end."""
        asked = self._asked()
        if asked is not None:
            return asked
        assert self._status is not None
        if self._start_refused or self._status >= 500:
            # Whatever was sent after a start that was refused reports that failure.
            return self._options.on_failure
        return "release" if self._status in _NOT_AN_OUTCOME else "store"

    def _unfinished(self) -> Settlement:
        """Say what becomes of an execution that ended without the last message of a response."""
        if self._status is None:
            return self._asked() or self._options.on_failure
        if self._length is not None and self._passed == self._length:
            return self._by_status()  # all of it had come, the last message was a formality
        self._recorded = None  # what came of it is no response
        settlement = self._by_status()
        # A success was on its way: it is not taken back by what failed behind it.
        unsure = settlement == "store" and self._asked() is None and self._options.on_failure == "abandon"
        return "abandon" if unsure else settlement

    def _asked(self) -> Settlement | None:
        """Give the handler's own word. One to store was about the response that a failed commit has made void."""
        asked = self._execution.context.settlement
        return None if self._start_refused and asked == "store" else asked

    async def _settle(self, settlement: Settlement) -> None:
        """Tell the record what became of the execution, once."""
        if self._settled:
            return
        self._settled = True
        try:
            match settlement:
                case "release":
                    await self._execution.release()
                case "store":
                    await self._store()
                case _:
                    self._execution.abandon()
        except Exception as error:  # noqa: BLE001 -- whatever a sealer or a hook raises: the client gets its response
            # Its type alone: the text may hold what was to be stored.
            _log.error("An outcome could not be recorded (%s); its lock runs out.", type(error).__name__)

    async def _store(self) -> None:
        if self._status is None:
            await self._execution.complete(PLAIN_FAILURE.encode())
        elif self._recorded is None or not is_final(self._status):
            await self._execution.leave_tombstone(summary_of(self._status, self._headers))
        else:
            headers = stored_headers(self._headers, self._options.headers)
            await self._execution.complete(StoredResponse(self._status, headers, bytes(self._recorded)).encode())
