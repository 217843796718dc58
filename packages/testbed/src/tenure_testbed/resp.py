"""One command to a Valkey or Redis server over a socket: enough for the test bed, which needs no client."""

import socket
from typing import IO

from tenure_testbed.errors import StatementError

Reply = str | int | None | list["Reply"]

# Loopback answers in a millisecond; a server that is busy or paused does not, and the caller shall learn it.
SECONDS = 5.0


def call(host: str, port: int, *words: str | int, login: tuple[str, str] | None = None) -> Reply:
    """
    Send one command and read its reply.

    Args:
        host: Address.
        port: Port.
        words: The command and its arguments.
        login: User and password to log in with first.

    Returns:
        The reply, with text as UTF-8.

    Raises:
        StatementError: The server answered with an error or closed the connection.
        OSError: There is no connection, or no reply within `SECONDS`.
    """
    with (
        socket.create_connection((host, port), timeout=SECONDS) as connection,
        connection.makefile("rb") as stream,
    ):
        if login is not None:
            connection.sendall(_request("AUTH", *login))
            _read(stream)
        connection.sendall(_request(*words))
        return _read(stream)


def post(host: str, port: int, *words: str | int) -> None:
    """
    Send one command and leave before its reply, which may be long in coming; the server carries it out.

    Args:
        host: Address.
        port: Port.
        words: The command and its arguments.

    Raises:
        OSError: There is no connection.
    """
    with socket.create_connection((host, port), timeout=SECONDS) as connection:
        connection.sendall(_request(*words))


def fields(reply: Reply) -> dict[str, str]:
    """A map, which this version of the protocol sends as a list of names and values by turns."""
    assert isinstance(reply, list)
    return {str(name): str(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _request(*words: str | int) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _read(stream: IO[bytes]) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise StatementError("The server closed the connection before its reply was whole.")
    kind, rest = line[:1], line[1:-2].decode()
    match kind:
        case b"+":
            return rest
        case b"-":
            raise StatementError(f"The server refused the command: {rest}")
        case b":":
            return int(rest)
        case b"$":
            return None if rest == "-1" else stream.read(int(rest) + 2)[:-2].decode()
        case b"*":
            return None if rest == "-1" else [_read(stream) for _ in range(int(rest))]
        case _:
            raise StatementError("Whoever answers does not speak the protocol of Redis.")
