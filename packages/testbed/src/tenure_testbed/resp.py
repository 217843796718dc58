"""One command to a Valkey or Redis server over a socket: enough for the test bed, which needs no client."""

import socket
from typing import IO

from tenure_testbed.errors import StatementError

Reply = str | int | None | list["Reply"]

# Loopback answers in a millisecond; a server that is busy or paused does not, and the caller shall learn it.
SECONDS = 5.0


def call(host: str, port: int, *words: str | int) -> Reply:
    """
    Send one command and read its reply.

    Args:
        host: Address.
        port: Port.
        words: The command and its arguments.

    Returns:
        The reply, with text as UTF-8.

    Raises:
        StatementError: The server answered with an error or closed the connection.
        OSError: There is no connection, or no reply within `SECONDS`.
    """
    parts = [str(word).encode() for word in words]
    request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    with (
        socket.create_connection((host, port), timeout=SECONDS) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(request)
        return _read(stream)


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
