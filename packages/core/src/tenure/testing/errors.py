"""What a test is told when it waits for something that will not come."""

__all__ = ["DeadlockError", "FaultError"]


class DeadlockError(RuntimeError):
    """
    A wait in a test that cannot end, or did not within a generous limit of real time.

    It names what is waited for. Raised instead of hanging, so that a test run ends with a reason.
    """

    __module__ = "tenure.testing"


class FaultError(ConnectionError):
    """
    The error of a fault that a test asked for: what a driver would raise of a connection that broke.

    A `ConnectionError`, so that whatever handles a driver's errors by their built-in class handles it too.
    """

    __module__ = "tenure.testing"
