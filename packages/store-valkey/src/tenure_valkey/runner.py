"""
Runners: how the store's scripts reach a server, through a client that the application has.

A runner is one method. What it may do besides are capabilities, found with `isinstance`: run a script for many keys
in one go, run it on every primary, find keys. The store gets by without them, more slowly or with less to see.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Protocol, final, runtime_checkable

from tenure.errors import ConfigurationError

__all__ = ["Call", "FindsKeys", "RunsMany", "RunsOnPrimaries", "Script", "ScriptRunner", "check_runner", "read_script"]


@final
@dataclass(frozen=True, slots=True)
class Script:
    """
    A Lua script.

    Attributes:
        name: What errors call it.
        source: Its text.
        sha1: What EVALSHA names it by.
    """

    name: str
    source: str = field(repr=False)
    sha1: str = field(init=False)

    def __post_init__(self) -> None:
        # Not a matter of security: it is how the protocol names scripts.
        object.__setattr__(self, "sha1", hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest())


Call = tuple[Sequence[bytes], Sequence[bytes]]
"""The keys and the arguments of one run of a script."""


class ScriptRunner(Protocol):
    """What the store asks of a client: run a script, once, on the primary of its keys."""

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """
        Run *script* and return its reply: an int, a str or bytes, None, or a list of these. Text may be decoded for a
        lock store; an idempotency store needs it as bytes, for a response is bytes of any kind.

        Send every key as a script key: a cluster finds the node by them. Send the source again on NOSCRIPT, which
        tells that nothing ran, and on nothing else: a call that failed otherwise may have run.

        Raises: what the client raises, unwrapped.
        """
        ...


@runtime_checkable
class RunsMany(Protocol):
    """A runner that sends many runs of one script together."""

    async def run_many(self, script: Script, calls: Sequence[Call]) -> Sequence[Any]:
        """Run *script* once for each of *calls*; return a reply or an exception for each, in their order."""
        ...


@runtime_checkable
class RunsOnPrimaries(Protocol):
    """A runner that knows every primary."""

    async def run_on_primaries(self, script: Script, args: Sequence[bytes]) -> Mapping[str, Any]:
        """Run *script*, which has no keys, on each primary; return the replies by the nodes' addresses."""
        ...


@runtime_checkable
class FindsKeys(Protocol):
    """A runner that can look for keys."""

    def find_keys(self, pattern: bytes) -> AsyncIterator[Sequence[bytes | str]]:
        """Yield the names that fit a glob *pattern*, on all primaries, in batches; one may come twice."""
        ...


def check_runner(runner: object) -> None:
    """
    Refuse what is no runner, before a store is built on it.

    Raises:
        ConfigurationError: It has no method `run`.
    """
    if not callable(getattr(runner, "run", None)):
        raise ConfigurationError(
            f"The store was given a {type(runner).__name__}, which is no runner: wrap the client in "
            "GlideRunner(client) or RedisRunner(client)."
        )


@cache
def read_script(name: str) -> Script:
    """
    Read one of the scripts in `scripts/`.

    Its comments stay: they are sent once a server, and a person who looks at what it runs reads them.
    """
    return Script(name, (resources.files("tenure_valkey") / "scripts" / f"{name}.lua").read_text(encoding="utf-8"))
