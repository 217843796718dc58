"""Free loopback ports."""

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """
    Ask the kernel for a loopback port that nobody listens on.

    The port is free when the call returns and may be taken a moment later: who starts a server on it has to
    prove that the server answering is the one that it started.

    Returns:
        A port number of the kernel's ephemeral range.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
