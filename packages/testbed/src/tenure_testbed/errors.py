"""What can go wrong with a test bed, as exceptions whose text says what to do."""


class ServerError(Exception):
    """A server of the test bed did not do what it was asked to do."""


class ServerUnavailableError(ServerError):
    """
    The program of a server is not on this machine.

    It is the one error that a test may turn into a skip, and only on a laptop: see
    `tenure_testbed.pytest_plugin`.
    """


class ServerStartError(ServerError):
    """A server was started and did not get as far as serving; the text ends with the tail of its log."""


class PortTakenError(ServerStartError):
    """Something else listens on the port. Without a fixed port the start is tried again on another one."""


class StatementError(ServerError):
    """A server refused a statement, or a command of its tool set failed; the text is the server's own."""


class NotReachedError(TimeoutError):
    """A state that was waited for did not come within its bound."""
