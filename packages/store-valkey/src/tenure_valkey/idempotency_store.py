"""
The idempotency store on Valkey and Redis: one hash a record, one script a call, on the primary of its key.

What each script prevents stands in its file under `scripts/`; how one gets to a server, in the runners.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self, final

from tenure.errors import ConfigurationError
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    AcquireReply,
    Completed,
    Completion,
    InFlight,
    Mismatch,
    RecordState,
    check_fingerprint,
    check_key,
    check_limit,
    check_owner,
    check_response,
    check_ttl_ms,
)
from tenure.store import Finding, Reach
from tenure_valkey.errors import ForeignValueError, UnreadableReplyError
from tenure_valkey.keys import DEFAULT_RECORD_PREFIX, RecordKeys
from tenure_valkey.lifetime import Lifetime
from tenure_valkey.runner import Script, ScriptRunner, check_runner, read_script
from tenure_valkey.startup_check import Needs, check_server

__all__ = ["ValkeyIdempotencyStore"]

_NOBODY: Final = "tenure:start"
"""A key that no record has; only the right to it is asked for."""

_STATES: Final[Mapping[object, RecordState]] = {
    1: RecordState.IN_FLIGHT,
    2: RecordState.ABANDONED,
    3: RecordState.COMPLETED,
}
_COMPLETIONS: Final[Mapping[object, Completion]] = {0: Completion.STALE, 1: Completion.STORED, 2: Completion.GONE}

_ACQUIRE: Final = read_script("record_acquire")
_EXTEND: Final = read_script("record_extend")
_COMPLETE: Final = read_script("record_complete")
_RELEASE: Final = read_script("record_release")


@final
class ValkeyIdempotencyStore:
    """
    Records of requests on a Valkey or Redis server, a cluster, or a primary behind Sentinel.

    A record is a hash with an expiry, `<prefix><key>`, which the server deletes when the record's time has ended. The
    server's clock decides what has. The store sends nothing again but a script that the server had not seen, and never
    a release behind an acquire of unknown outcome: that is the engine's.

    On a full server `acquire` fails with nothing written; `extend` and `release` run; `complete` stores the response
    beyond the limit, because the request has been carried out.

    Args:
        runner: How scripts get there: a `GlideRunner`, a `RedisRunner`, or one of your own. Its replies have to be
            bytes: a client of redis-py is made without `decode_responses`.
        prefix: What the store's keys begin with; no braces. Instances that share records share it, and nothing else
            on the server does, a lock store neither.
        owns_runner: Whether `aclose()` closes the runner. A runner, or a client, that was handed over stays open.

    Raises:
        ConfigurationError: The prefix cannot be, or the runner is none, or decodes its replies.
    """

    reach: Reach = "cluster"

    def __init__(self, runner: ScriptRunner, *, prefix: str = DEFAULT_RECORD_PREFIX, owns_runner: bool = False) -> None:
        check_runner(runner)
        if getattr(runner, "decodes_replies", False):
            raise ConfigurationError(
                "The client decodes its replies as text, and a stored response is bytes of any kind: leave out "
                "decode_responses=True, or give the store a client of its own."
            )
        self._keys = RecordKeys(prefix)
        self._runner = runner
        self._lifetime = Lifetime(runner, owned=owns_runner, opened_with="open_idempotency_store")

    @property
    def prefix(self) -> str:
        """What the store's keys begin with."""
        return self._keys.prefix

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        """
        Begin an execution, or say what the record allows instead, as the contract says.

        Raises:
            ConfigurationError: An argument is outside the rules; nothing was sent.
            ForeignValueError: Something else wrote a hash under the record's key; nothing was written.
            UnreadableReplyError: The reply is none of the script's; the outcome is unknown.
            Exception: What the client raises. On an error of the server (NOPERM, OOM, WRONGTYPE, READONLY) nothing was
                written; otherwise the outcome is unknown.
        """
        check_owner(owner)
        check_fingerprint(fingerprint)
        check_ttl_ms(lock_ttl_ms, "lock_ttl_ms")
        check_ttl_ms(grace_ms, "grace_ms")
        words = (owner.encode(), fingerprint.encode(), _number(lock_ttl_ms), _number(grace_ms), _number(takeover))
        return _read_acquired(await self._run(_ACQUIRE, key, *words))

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """
        Have the lock end *lock_ttl_ms* from now or later, if *owner* is the recorded one and has not completed.

        Raises: as `acquire`.
        """
        check_owner(owner)
        check_ttl_ms(lock_ttl_ms, "lock_ttl_ms")
        return _read_answer(_EXTEND, await self._run(_EXTEND, key, owner.encode(), _number(lock_ttl_ms))) == 1

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """
        Store *response* as the outcome, if *owner* is the recorded one. Runs on a full server, too.

        Raises: as `acquire`.
        """
        check_owner(owner)
        check_response(response)
        check_ttl_ms(retention_ms, "retention_ms")
        reply = await self._run(_COMPLETE, key, owner.encode(), response, _number(retention_ms))
        return _COMPLETIONS[_read_answer(_COMPLETE, reply, most=2)]

    async def release(self, key: str, owner: str) -> bool:
        """
        Forget the execution of *owner*, which is known to have had no effect.

        Raises: as `acquire`.
        """
        check_owner(owner)
        return _read_answer(_RELEASE, await self._run(_RELEASE, key, owner.encode())) == 1

    async def purge(self, limit: int = 1000) -> int:
        """Return 0: the server deletes records whose time has ended by itself."""
        check_limit(limit)
        self._lifetime.refuse_closed()
        return 0

    async def check(self) -> Sequence[Finding]:
        """Look at every primary that the runner knows, without writing; see `tenure_valkey.startup_check`."""
        self._lifetime.refuse_closed()
        return await check_server(self._runner, _needs(self._keys))

    async def aclose(self) -> None:
        """Close what the store opened itself: its runner, where it owns it. May be called again."""
        await self._lifetime.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.aclose()
        return False

    def __repr__(self) -> str:
        return f"ValkeyIdempotencyStore({self._runner!r}, prefix={self.prefix!r})"

    async def _run(self, script: Script, key: str, *args: bytes) -> Any:
        check_key(key)
        self._lifetime.refuse_closed()
        return await self._runner.run(script, (self._keys.record(key),), args)


def _needs(keys: RecordKeys) -> Needs:
    record = keys.record(_NOBODY)
    return Needs(
        prefix=keys.prefix,
        commands=(
            (b"HMGET", record, b"owner"),
            (b"HGET", record, b"owner"),
            (b"HEXISTS", record, b"owner"),
            (b"HSET", record, b"owner", b"1"),
            (b"HSETNX", record, b"owner", b"1"),
            (b"HDEL", record, b"owner"),
            (b"DEL", record),
            (b"PTTL", record),
            (b"PEXPIRE", record, b"1"),
        ),
        unwritable="no request can be begun",
        evicted="a record that is evicted lets its request run a second time",
    )


def _number(value: int) -> bytes:
    return b"%d" % value


def _read_acquired(reply: Any) -> AcquireReply:
    match reply:
        case [1, int(attempt)] if attempt >= 1:
            return Acquired(attempt)
        case [2, int(left)] if left >= 1:
            return InFlight(left)
        case [3, int(attempt)] if attempt >= 1:
            return Abandoned(attempt)
        case [4, 1 | 2 | 3 as state]:
            return Mismatch(_STATES[state])
        case [5, bytes(response), bytes(owner)]:
            return Completed(response, _text(owner))
        case [-1] | [5, bytes(), None]:
            raise ForeignValueError("record")
        case _:
            raise UnreadableReplyError(_ACQUIRE.name)


def _text(owner: bytes) -> str:
    try:
        return owner.decode()
    except UnicodeDecodeError:
        # An owner that this store writes is UTF-8. The error's own text would hold it.
        raise ForeignValueError("record") from None


def _read_answer(script: Script, reply: Any, *, most: int = 1) -> int:
    if type(reply) is int and 0 <= reply <= most:
        return reply
    if type(reply) is int and reply == -1:
        raise ForeignValueError("record")
    raise UnreadableReplyError(script.name)
