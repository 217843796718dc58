"""The request's body: read once, before anything runs, and handed on to what runs inside."""

import asyncio
from typing import Final, final

from tenure.ext.asgi._headers import header_lines
from tenure.ext.asgi._types import Message, Receive, Scope

__all__ = ["BodyTooLongError", "ClientGoneError", "Inbox", "read_body"]

_HANG_UP_S: Final = 0.1
"""How long a server may take to say that its client is gone, after it refused to send to it, in seconds."""


class BodyTooLongError(Exception):
    """The body is longer than the route allows. The rest of it was not read."""


class ClientGoneError(Exception):
    """The client hung up before its body had come."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """
    Read the whole body.

    Raises:
        BodyTooLongError: It has more than *limit* bytes, by its content-length or as it comes.
        ClientGoneError: The client hung up before it had sent it all.
    """
    for length in header_lines(scope["headers"], b"content-length"):
        if length.isdigit() and int(length[:19]) > limit:
            raise BodyTooLongError
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLongError
        if not message.get("more_body", False):
            return bytes(body)


@final
class Inbox:
    """
    The receiving end for what runs inside: the body first, then whatever the server says, such as a disconnect.

    Args:
        receive: The server's.
        body: The body, which was read from it.
    """

    def __init__(self, receive: Receive, body: bytes) -> None:
        self._receive = receive
        self._body: bytes | None = body
        self._hung_up = False

    async def receive(self) -> Message:
        """Give the body in one message; afterwards what the server gives."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        self._note(message)
        return message

    async def client_is_gone(self) -> bool:
        """
        Whether the server says that the client hung up; asked after a message was refused with an OSError.

        A hook between here and the server that fails to commit (a database that reset its connection) raises an
        OSError as well. That must not be taken for a client that is gone: the response must not be stored then.
        """
        try:
            async with asyncio.timeout(_HANG_UP_S):
                while not self._hung_up:
                    self._note(await self._receive())
        except (TimeoutError, OSError):
            return self._hung_up
        return True

    def _note(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self._hung_up = True
