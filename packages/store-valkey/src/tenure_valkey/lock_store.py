"""
The lock store on Valkey and Redis: one script a call, on the primary of its key.

What each script prevents stands in its file under `scripts/`; how one gets to a server, in the runners.
"""

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Literal, Self, final

from tenure._durations import Duration, to_ms
from tenure.errors import ConfigurationError
from tenure.store import (
    MAX_TOKEN,
    Acquired,
    Claim,
    Ending,
    Finding,
    Held,
    LockRecord,
    Reach,
    check_key,
    check_owner,
    check_ttl_ms,
)
from tenure_valkey.channels import Channels
from tenure_valkey.errors import ForeignValueError, TokensExhaustedError, UnreadableReplyError
from tenure_valkey.keys import DEFAULT_PREFIX, FENCE, Keys
from tenure_valkey.lifetime import Lifetime
from tenure_valkey.places import Places
from tenure_valkey.runner import Call, FindsKeys, RunsMany, Script, ScriptRunner, check_runner, read_script
from tenure_valkey.startup_check import Needs, check_server

__all__ = ["ValkeyLockStore"]

_LOG: Final = logging.getLogger("tenure")

_NOBODY: Final = "tenure:start"
"""A key that no lock has; only the right to it is asked for."""

_TOGETHER: Final = 1000
"""Runs that go out in one call of a runner: some 5 ms of a server's time, after which others have their turn."""

_ENDINGS: Final[Mapping[object, Ending | None]] = {0: None, 1: "released", 2: "expired"}

_ACQUIRE: Final = read_script("acquire")
_RENEW: Final = read_script("renew")
_KEEP_FENCE: Final = read_script("keep_fence")
_RELEASE: Final = read_script("release")
_LOOK: Final = read_script("look")


@final
class ValkeyLockStore:
    """
    Locks on a Valkey or Redis server, a cluster, or a primary behind Sentinel.

    A lock is a key with an expiry, `<prefix>{<key>}`; its last token is kept at `<prefix>{<key>}:fence`. The server's
    clock decides what is expired. The store sends nothing again but a script that the server had not seen, and never
    a release behind an acquire of unknown outcome: that is the engine's.

    Args:
        runner: How scripts get there: a `GlideRunner`, a `RedisRunner`, or one of your own.
        prefix: What the store's keys begin with; no braces. Instances that share locks share it.
        fence_retention: How long a key's last token is kept after the key's lock has ended; and, after that, how far
            the server's clock may step back without a token that comes twice.
        owns_runner: Whether `aclose()` closes the runner. A runner, or a client, that was handed over stays open.

    Raises:
        ConfigurationError: The prefix or the retention cannot be, or the runner is none.
    """

    reach: Reach = "cluster"

    def __init__(
        self,
        runner: ScriptRunner,
        *,
        prefix: str = DEFAULT_PREFIX,
        fence_retention: Duration = "1m",
        owns_runner: bool = False,
    ) -> None:
        check_runner(runner)
        self._keys = Keys(prefix)
        self._retention = _number(to_ms(fence_retention, name="fence_retention"))
        self._runner = runner
        self._lifetime = Lifetime(runner, owned=owns_runner, opened_with="open_store")
        self._places = Places()
        self._channels = Channels(runner, prefix, self._places.heard)

    @property
    def prefix(self) -> str:
        """What the store's keys begin with."""
        return self._keys.prefix

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """
        Take *key* for *owner*, if no live lock of another owner is on it.

        Returns:
            `Acquired` with the token, or `Held` with what is left of the lock. The recorded owner of a live lock gets
            its token again and a fresh ttl.

        Raises:
            ConfigurationError: The key, owner or ttl is outside the rules; nothing was sent.
            ForeignValueError: Something else wrote under the lock's key or its fence; nothing was written.
            TokensExhaustedError: The key's last token is the greatest there is; nothing was written.
            UnreadableReplyError: The reply is none of the script's; the outcome is unknown.
            Exception: What the client raises. On an error of the server (NOPERM, OOM, WRONGTYPE, READONLY) nothing was
                written; otherwise the outcome is unknown.
        """
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        lock = self._keys.lock(key)
        keys = (lock, lock + FENCE)
        reply = await self._run(_ACQUIRE, keys, (owner.encode(), _number(ttl_ms), self._retention))
        return _read_acquired(reply)

    async def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        """
        Take *key* as `acquire` does; where another owner holds it, stand in its queue.

        The queue is part of the lock, and ends with it: when the lock expires, those who waited ask again. The first
        wait of a store in a while (in a cluster, for a key) opens the channel on which grants are heard of.

        Returns:
            `Acquired`, or `Held`. Its owner stands in the queue, unless the server is full, the queue is (some
            thousand places), the server may not be listened to, or the channel is not open yet.

        Raises:
            ConfigurationError: The key, owner, ttl or place is outside the rules; nothing was sent.
            Exception: As `acquire`.
        """
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        check_ttl_ms(place_ms)
        self._lifetime.refuse_closed()
        lock = self._keys.lock(key)
        channel = self._channels.ready(lock) or await self._channels.open(lock, ttl_ms / 2000)
        if channel is None:
            return await self.acquire(key, owner, ttl_ms)
        return await self._queue(key, owner, ttl_ms, place_ms, channel)

    async def granted(self, key: str, owner: str) -> Acquired:
        """
        Return when a release has granted *key* to *owner*, who stands in its queue.

        One connection a store hears of all of its grants (in a cluster, one to each primary). A message that is lost,
        or an owner without a place, is never told: it polls.
        """
        check_key(key)
        check_owner(owner)
        return Acquired(await self._places.granted(self._keys.lock(key), owner.encode()), "released")

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Move the expiry of *key* to *ttl_ms* from now, if *owner* still holds it. Raises as `acquire`."""
        reply = await self._run(_RENEW, *self._renewal(Claim(key, owner, ttl_ms)))
        renewed = _read_renewed(reply)
        if isinstance(reply, Sequence):
            await self._keep_fences([(key, reply)])
        return renewed

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        """
        Renew each of *claims*, a thousand of them in a call of the runner.

        Returns:
            One answer a claim: True (renewed), False (refused), or None where its node did not answer.

        Raises:
            Exception: What the client raised, where not one claim was answered.
        """
        calls = [self._renewal(claim) for claim in claims]
        replies = await self._run_many(_RENEW, calls)
        answers = [_read_answer(reply) for reply in replies]
        failures = [reply for reply in replies if isinstance(reply, BaseException)]
        if failures and len(failures) == len(replies):
            raise failures[0]
        await self._keep_fences(
            [
                (claim.key, reply)
                for claim, reply, answer in zip(claims, replies, answers, strict=True)
                if answer and isinstance(reply, Sequence)
            ]
        )
        return answers

    async def release(self, key: str, owner: str) -> bool:
        """
        Give *key* back, if *owner* still holds it: to the one who waited longest, or to nobody. Its token is kept.

        An owner that stands in the key's queue leaves it. Raises as `acquire`.
        """
        check_key(key)
        check_owner(owner)
        lock = self._keys.lock(key)
        self._places.leave(lock, owner.encode())
        reply = await self._run(_RELEASE, (lock,), (owner.encode(), self._retention))
        match reply:
            case 0 | 1 if type(reply) is int:
                return reply == 1
            case [int(), int()]:
                # From here, not from whoever was granted the lock: a floor is wanted above all where that one dies.
                await self._keep_fences([(key, reply)])
                return True
            case _:
                raise UnreadableReplyError(_RELEASE.name)

    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """
        List the live locks whose key begins with *prefix*, sorted by key.

        It looks through all keys of the servers (SCAN), in small steps: for people, not for a hot path.

        Raises:
            ConfigurationError: The prefix is no text, or the runner cannot look for keys (`FindsKeys`).
            Exception: What the client raises; the user needs the right to SCAN.
        """
        if type(prefix) is not str or any("\ud800" <= character <= "\udfff" for character in prefix):
            raise ConfigurationError("list_locks() was given a prefix that is no text: give a str without surrogates.")
        self._lifetime.refuse_closed()
        if not isinstance(self._runner, FindsKeys):
            raise ConfigurationError(
                f"{type(self._runner).__name__} cannot look for keys: give it a method find_keys(), see FindsKeys."
            )
        records: dict[str, LockRecord] = {}
        async for names in self._runner.find_keys(self._keys.pattern(prefix)):
            found = {key: self._keys.lock(key) for key in map(self._keys.key_of, names) if key is not None}
            replies = await self._run_many(_LOOK, [((name,), ()) for name in found.values()])
            for key, reply in zip(found, replies, strict=True):
                if isinstance(reply, BaseException):
                    raise reply
                if reply is not None and key.startswith(prefix):
                    records[key] = _read_record(key, reply)
        return [records[key] for key in sorted(records)]

    async def check(self) -> Sequence[Finding]:
        """Look at every primary that the runner knows, without writing; see `tenure_valkey.startup_check`."""
        self._lifetime.refuse_closed()
        return await check_server(self._runner, _needs(self._keys, self._channels.commands()))

    async def aclose(self) -> None:
        """Close where grants are heard of, and the runner where the store owns it. May be called again."""
        await self._channels.aclose()
        await self._lifetime.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.aclose()
        return False

    def __repr__(self) -> str:
        return f"ValkeyLockStore({self._runner!r}, prefix={self.prefix!r})"

    async def _queue(self, key: str, owner: str, ttl_ms: int, place_ms: int, channel: bytes) -> Acquired | Held:
        keys, asking = (self._keys.lock(key), self._keys.fence(key)), owner.encode()
        args = (asking, _number(ttl_ms), self._retention, _number(place_ms), channel)
        self._places.ask(keys[0], asking)
        reply = await self._run(_ACQUIRE, keys, args)
        match reply:
            case [0, int(left), int(held_with), int(listeners)]:
                self._places.taken(keys[0], asking, held_with)
                self._channels.counted(channel, listeners)
                return Held(left if left >= 0 else None)
            case [1, *_]:
                self._places.leave(keys[0], asking)
        return _read_acquired(reply)

    def _renewal(self, claim: Claim) -> Call:
        check_key(claim.key)
        check_owner(claim.owner)
        check_ttl_ms(claim.ttl_ms)
        return (self._keys.lock(claim.key),), (claim.owner.encode(), _number(claim.ttl_ms), self._retention)

    async def _keep_fences(self, due: Sequence[tuple[str, Sequence[Any]]]) -> None:
        calls: list[Call] = [
            ((self._keys.fence(key),), (_number(token), _number(until_ms))) for key, (token, until_ms) in due
        ]
        try:
            failures = [one for one in await self._run_many(_KEEP_FENCE, calls) if isinstance(one, Exception)]
        except Exception as error:  # noqa: BLE001 -- whatever a client raises, see below
            failures = [error]
        if failures:
            # The renewals are confirmed. What is missing is memory: the next holder may not be told that this one died.
            _LOG.debug("Fences of renewed locks were not kept: %s", type(failures[0]).__name__)

    def _run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Awaitable[Any]:
        # No coroutine of its own around the runner's: there would be one more for each call.
        self._lifetime.refuse_closed()
        return self._runner.run(script, keys, args)

    async def _run_many(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        self._lifetime.refuse_closed()
        replies: list[Any] = []
        for start in range(0, len(calls), _TOGETHER):
            together = calls[start : start + _TOGETHER]
            if isinstance(self._runner, RunsMany):
                replies.extend(await self._runner.run_many(script, together))
            else:
                replies.extend([await self._run_apart(script, call) for call in together])
        return replies

    async def _run_apart(self, script: Script, call: Call) -> Any:
        try:
            return await self._runner.run(script, *call)
        except Exception as error:  # noqa: BLE001 -- as RunsMany: it stands in its call's place
            return error


def _needs(keys: Keys, listening: tuple[tuple[bytes, ...], ...]) -> Needs:
    lock, fence = keys.lock(_NOBODY), keys.fence(_NOBODY)
    return Needs(
        prefix=keys.prefix,
        commands=(
            (b"GET", lock),
            (b"GET", fence),
            (b"SET", lock, b"1", b"PX", b"1"),
            (b"SET", fence, b"1", b"PX", b"1"),
            (b"PTTL", lock),
            (b"PEXPIRE", lock, b"1"),
            (b"PEXPIRE", fence, b"1"),
            (b"PEXPIREAT", fence, b"1"),
            (b"TIME",),
        ),
        unwritable="no lock can be acquired",
        evicted="a lock that is evicted is taken by another instance while its holder runs",
        listening=listening,
    )


def _number(value: int) -> bytes:
    return b"%d" % value


def _read_acquired(reply: Any) -> Acquired | Held:
    match reply:
        case [1, int(token), 0 | 1 | 2 as ending] if 1 <= token <= MAX_TOKEN:
            return Acquired(token, _ENDINGS[ending])
        case [0, int(left)]:
            return Held(left if left >= 0 else None)
        case [-1]:
            raise ForeignValueError("lock")
        case [-2]:
            raise ForeignValueError("fence")
        case [-3]:
            raise TokensExhaustedError
        case _:
            raise UnreadableReplyError(_ACQUIRE.name)


def _read_renewed(reply: Any) -> bool:
    match reply:
        case 0 | 1 if type(reply) is int:
            return reply == 1
        case [int(), int()]:
            return True
        case _:
            raise UnreadableReplyError(_RENEW.name)


def _read_answer(reply: Any) -> bool | None:
    return None if isinstance(reply, BaseException) else _read_renewed(reply)


def _read_record(key: str, reply: Any) -> LockRecord:
    match reply:
        case [bytes() | str() as value, int(left)]:
            text = value.decode() if isinstance(value, bytes) else value
            token, _, rest = text.partition(":")
            return LockRecord(key, rest.partition(":")[2], int(token), max(0, left))
        case _:
            raise UnreadableReplyError(_LOOK.name)
