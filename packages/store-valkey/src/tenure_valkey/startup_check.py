"""
The start-up check: what would make a store impossible or unsafe on these servers, found before it is asked anything.

One script without keys, on every primary that the runner knows. It writes nothing.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tenure.store import Finding
from tenure_valkey.errors import UnreadableReplyError
from tenure_valkey.runner import RunsOnPrimaries, ScriptRunner, read_script

__all__ = ["Needs", "check_server"]

_CHECK: Final = read_script("check")

_OLDEST: Final = {"valkey": (7, 2), "redis": (7, 0)}
"""The oldest versions on which the scripts run: PEXPIRE, SET and the check of rights as they are from there on."""


@dataclass(frozen=True, slots=True)
class Needs:
    """
    What a store needs of a server.

    Attributes:
        prefix: What its keys begin with.
        commands: The commands of its scripts, with their arguments, on keys inside the prefix that are nobody's.
        unwritable: What a replica, which takes no writes, makes impossible.
        evicted: What an eviction does.
        listening: The commands by which waiters are told of releases; without them they poll.
    """

    prefix: str
    commands: tuple[tuple[bytes, ...], ...]
    unwritable: str
    evicted: str
    listening: tuple[tuple[bytes, ...], ...] = ()

    def words(self) -> tuple[bytes, ...]:
        """The commands as arguments of the script: of each the number of its words, and the words."""
        return tuple(word for command in (*self.commands, *self.listening) for word in (b"%d" % len(command), *command))

    def rights(self) -> str:
        """The rules of a user who may do all of it, whichever the client."""
        names = dict.fromkeys(_right(command) for command in (*self.commands, *self.listening))
        places = f"~{self.prefix}* &{self.prefix}*" if self.listening else f"~{self.prefix}*"
        return " ".join((places, "+evalsha +eval +script|load", *(f"+{name}" for name in names), "+info"))


def _right(command: Sequence[bytes]) -> str:
    """The right to *command*: of one with subcommands, to that one alone."""
    words = command[:2] if command[0] == b"PUBSUB" else command[:1]
    return b"|".join(words).decode().lower()


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found on one server, before it is known on how many others."""

    code: str
    fatal: bool
    what: str
    remedy: str


async def check_server(runner: ScriptRunner, needs: Needs) -> Sequence[Finding]:
    """
    Look at the primaries: version, rights, role, eviction.

    Returns:
        What was found, each thing once however many servers it is on; nothing where all is well.

    Raises: what the client raises; a server that cannot be reached is not a finding.
    """
    args = needs.words()
    if isinstance(runner, RunsOnPrimaries):
        replies = await runner.run_on_primaries(_CHECK, args)
    else:
        replies = {"the server": await runner.run(_CHECK, (), args)}
    places: defaultdict[_Found, list[str]] = defaultdict(list)
    for place, reply in replies.items():
        for found in _look(reply, needs, in_cluster=getattr(runner, "is_cluster", None)):
            places[found].append(place)
    return [
        Finding(found.code, found.fatal, _said(found.what, places[found], len(replies)), found.remedy)
        for found in places
    ]


def _said(what: str, places: Sequence[str], servers: int) -> str:
    if servers == 1 or len(places) == servers:
        return what
    return f"{what} (On {', '.join(sorted(places))}; {servers - len(places)} other primaries are well.)"


def _look(reply: Any, needs: Needs, *, in_cluster: bool | None) -> Iterator[_Found]:
    missing, info = _read(reply)
    channels = [command[0].decode() for command in needs.listening]
    yield from _rights([command for command in missing if command not in channels], needs)
    if refused := sorted(set(missing).intersection(channels)):
        yield _Found(
            "channels-refused",
            fatal=False,
            what=f"The user may not run {', '.join(refused)} on channels that begin with {needs.prefix!r}: nobody is "
            "told of a release, and who waits for a lock polls.",
            remedy=f"Grant it: ACL SETUSER <user> {needs.rights()} (README.md, rights, has the line of each client).",
        )
    if info is None:
        yield _Found(
            "info-refused",
            fatal=False,
            what="The user may not run INFO, so the server's role, version and maxmemory-policy are unknown.",
            remedy="Grant +info, or see yourself that it is a primary with maxmemory-policy noeviction.",
        )
        return
    yield from _version(info)
    yield from _role(info, needs)
    yield from _eviction(info, needs)
    yield from _mode(info, in_cluster=in_cluster)


def _read(reply: Any) -> tuple[list[str], Mapping[str, str] | None]:
    match reply:
        case [list(missing), bytes() | str() | None as info]:
            text = info.decode(errors="replace") if isinstance(info, bytes) else info
            return [_text(command) for command in missing], None if text is None else _sections(text)
        case _:
            raise UnreadableReplyError(_CHECK.name)


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _sections(info: str) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in info.splitlines())
    return {name: value for name, separator, value in pairs if separator}


def _rights(missing: Sequence[str], needs: Needs) -> Iterator[_Found]:
    remedy = f"Grant it: ACL SETUSER <user> {needs.rights()} (README.md, rights, has the line of each client)."
    if "TIME" in missing:
        yield _Found(
            "time-refused",
            fatal=True,
            what="The user may not run TIME, by which every token is drawn: each acquire would fail in the script.",
            remedy=remedy,
        )
    others = sorted(set(missing) - {"TIME"})
    if others:
        yield _Found(
            "rights",
            fatal=True,
            what=f"The user may not run {', '.join(others)} on keys that begin with {needs.prefix!r}.",
            remedy=remedy,
        )


def _version(info: Mapping[str, str]) -> Iterator[_Found]:
    name = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{name}_version", "")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not numbers:
        yield _Found(
            "server-version",
            fatal=False,
            what="The server does not tell its version.",
            remedy="See that it runs scripts as Valkey 7.2 or Redis 7.0 does.",
        )
    elif numbers < _OLDEST[name]:
        oldest = ".".join(str(number) for number in _OLDEST[name])
        yield _Found(
            "server-version",
            fatal=True,
            what=f"The server is {name.capitalize()} {version}; the store needs {oldest} or newer.",
            remedy="Upgrade it.",
        )


def _role(info: Mapping[str, str], needs: Needs) -> Iterator[_Found]:
    if info.get("role") not in (None, "master"):
        yield _Found(
            "replica",
            fatal=False,
            what=f"The server is a replica: it takes no writes, so {needs.unwritable} there.",
            remedy="Point the client at the primary; behind Sentinel use a client that asks it (redis+sentinel://).",
        )


def _eviction(info: Mapping[str, str], needs: Needs) -> Iterator[_Found]:
    policy = info.get("maxmemory_policy")
    if policy is None:
        yield _Found(
            "eviction-unknown",
            fatal=False,
            what="INFO does not tell the server's maxmemory-policy.",
            remedy="See yourself that it is noeviction.",
        )
    elif policy != "noeviction":
        yield _Found(
            "eviction",
            fatal=False,
            what=f"The server's maxmemory-policy is {policy}: {needs.evicted}.",
            remedy="Set maxmemory-policy to noeviction, or use a server that has it.",
        )


def _mode(info: Mapping[str, str], *, in_cluster: bool | None) -> Iterator[_Found]:
    if in_cluster is False and info.get("cluster_enabled") == "1":
        yield _Found(
            "cluster-mode",
            fatal=False,
            what="The server is a node of a cluster, and the client knows of none: calls for other nodes' keys fail.",
            remedy="Use a cluster client (GlideClusterClient, RedisCluster; valkey+cluster:// or redis+cluster://).",
        )
