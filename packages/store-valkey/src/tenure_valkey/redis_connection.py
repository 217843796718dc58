"""
Groups of calls over one connection of redis-py's or valkey-py's pool, to a server or to a primary behind Sentinel.

The connection is the pool's own, so that connecting, TLS, AUTH, SELECT, Sentinel and health checks stay the client's.
It is kept between the groups: to check one out costs more than a call. Whoever closes the pool closes it too, and the
next call connects anew, as any call on a closed pool does.
"""

import asyncio
import inspect
import sys
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, final

from tenure_valkey.group import Line, Pending
from tenure_valkey.runner import Call, Script

__all__ = ["FEW_CONNECTIONS", "OneServer", "is_a", "is_noscript"]

FEW_CONNECTIONS: Final = 4
"""
In a smaller pool the connection goes back whenever nobody waits: the application, a look through the keys and a
subscription need one as well.
"""


def _evalsha(script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> bytes:
    """
    Return an EVALSHA as it goes over the wire.

    Raises:
        TypeError: A key or an argument is not bytes.
    """
    parts: list[int | bytes] = []
    for word in keys:
        parts += len(word), word
    for word in args:
        parts += len(word), word
    return _template(script.sha1, len(keys), len(args)) % tuple(parts)


@lru_cache(maxsize=256)
def _template(sha1: str, keys: int, args: int) -> bytes:
    return _words(3 + keys + args, b"EVALSHA", sha1.encode(), b"%d" % keys) + b"$%d\r\n%b\r\n" * (keys + args)


def _eval(script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> bytes:
    words = (b"EVAL", script.source.encode(), b"%d" % len(keys), *keys, *args)
    return _words(len(words), *words)


def _words(count: int, *words: bytes) -> bytes:
    return b"*%d\r\n" % count + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def is_noscript(error: object) -> bool:
    """Tell whether *error* says that the server has not seen the script, so that nothing ran."""
    return is_a(error, "NoScriptError")


def is_a(error: object, *names: str) -> bool:
    """Tell whether *error* is of one of these classes, by name: redis-py and valkey-py each have their own."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


@final
class OneServer:
    """
    What a runner does on one server, or on the primary that Sentinel names: all of it over one connection.

    Args:
        client: The client.
    """

    def __init__(self, client: Any) -> None:
        self._client = client  # so that its pool stays
        self._line = _line_to(client.connection_pool)

    def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Coroutine[Any, Any, Any]:
        """Run *script*."""
        return self._line.ask(Pending(script, keys, args, _evalsha(script, keys, args)))

    async def run_many(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        """Run *script* once for each of *calls*."""
        return await self._line.ask_many([Pending(script, *call, _evalsha(script, *call)) for call in calls])

    async def run_on_primaries(self, script: Script, args: Sequence[bytes]) -> Mapping[str, Any]:
        """Run *script*, which has no keys, on the server."""
        return {"the server": await self.run(script, (), args)}

    async def find_keys(self, pattern: bytes, count: int) -> AsyncIterator[Sequence[bytes | str]]:
        """Yield the names that fit *pattern*, about *count* at a time."""
        cursor: Any = b"0"
        while True:
            place = cursor if isinstance(cursor, bytes) else cursor.encode()
            words = (b"SCAN", place, b"MATCH", pattern, b"COUNT", b"%d" % count)
            cursor, names = await self._line.ask(Pending(_SCAN, (), (), _words(len(words), *words)))
            yield names
            if int(cursor) == 0:
                return


_SCAN: Final = Script("scan", "")
"""A command that is no script travels under a name all the same."""

_lines: weakref.WeakKeyDictionary[Any, Line] = weakref.WeakKeyDictionary()


def _line_to(pool: Any) -> Line:
    # One for each pool: stores that share a client share its connection, however many runners are made for it.
    line = _lines.get(pool)
    if line is None:
        line = _lines[pool] = Line(_KeptConnection(pool))
    return line


@final
class _KeptConnection:
    """The connection, and how a group goes over it."""

    def __init__(self, pool: Any) -> None:
        # Weakly: the line is there for as long as its pool is.
        self._pool = weakref.ref(pool)
        self._connection: Any = None
        # valkey-py wants to be told a command, and has no use for it; redis-py warns of one.
        [*wanted] = inspect.signature(pool.get_connection).parameters.values()
        self._told = ("EVALSHA",) if wanted and wanted[0].default is inspect.Parameter.empty else ()
        self._keeps = pool.max_connections >= FEW_CONNECTIONS

    async def ready(self) -> None:
        """Have a connection, and notice a dead one before anything is sent over it."""
        pool: Any = self._pool()
        connection = self._connection
        if connection is None:
            wanted = pool.get_connection(*self._told)
            self._connection = await wanted
            return
        if getattr(connection, "credential_provider", None) is not None and hasattr(connection, "re_auth"):
            # New credentials wait for a connection to come back to its pool, which this one does not.
            await connection.re_auth()
        if connection.is_connected and await _is_done_for(connection, pool):
            await connection.disconnect(nowait=True)
        if not connection.is_connected:
            await pool.ensure_connection(connection)

    async def carry(self, calls: Sequence[Pending]) -> None:
        """Send *calls* in one write and read their replies in order; where the server has not seen a script, again."""
        connection = self._connection
        try:
            unseen = await _exchange(connection, calls, [call.packed for call in calls])
            again = [call for call, _ in unseen if not call.answer.done()]
            if again:
                texts = [_eval(call.script, call.keys, call.args) for call in again]
                for call, error in await _exchange(connection, again, texts):
                    call.fail(error)
        except BaseException:
            # Replies may still be on their way, and would be taken for others'.
            if connection.is_connected:
                await connection.disconnect(nowait=True)
            raise

    async def rest(self) -> None:
        """Give the connection back where there are few."""
        connection, pool = self._connection, self._pool()
        if not self._keeps and connection is not None and pool is not None:
            self._connection = None
            await pool.release(connection)

    def forget(self) -> None:
        """Leave the connection alone, if it is one of the old loop's: in a child the parent still uses the socket."""
        if self._connection is not None and self._connection.is_connected:
            self._connection = None


async def _is_done_for(connection: Any, pool: Any) -> bool:
    """Tell whether *connection*, on which nothing is under way, has to be opened anew."""
    if hasattr(connection, "should_reconnect") and connection.should_reconnect():
        return True
    # redis-py's older name, which its newer versions warn of and valkey-py has alone.
    look = connection.can_read if hasattr(connection, "can_read") else connection.can_read_destructive
    try:
        while await look():
            if not (hasattr(pool, "maint_notifications_enabled") and pool.maint_notifications_enabled()):
                return True
            # A notice of maintenance, or the end of the stream: reading tells, and the parser takes the notice.
            await connection.read_response(push_request=True)
    except Exception:  # noqa: BLE001 -- whatever it is, nothing was sent, and connecting again will tell
        return True
    return False


async def _exchange(
    connection: Any, calls: Sequence[Pending], commands: Sequence[bytes]
) -> list[tuple[Pending, Exception]]:
    """Send and answer *calls*; return those whose script the server has not seen, which have no answer yet."""
    timeout_s = connection.socket_timeout
    if timeout_s is None:
        return await _send_and_read(connection, calls, commands, None)
    # The connection's own time-out costs a timer for each write and each reply, four times what reading it does. So the
    # group has one, which moves on as replies come.
    connection.socket_timeout = None
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await _send_and_read(connection, calls, commands, _Progress(limit, timeout_s))
    except TimeoutError:
        raise _timeout_error(connection) from None
    finally:
        # A notice of maintenance may have given it another one.
        if connection.socket_timeout is None:
            connection.socket_timeout = timeout_s


async def _send_and_read(
    connection: Any, calls: Sequence[Pending], commands: Sequence[bytes], progress: "_Progress | None"
) -> list[tuple[Pending, Exception]]:
    unseen = []
    await connection.send_packed_command(b"".join(commands))
    read = connection.read_response
    for call in calls:
        try:
            reply = await read()
        except Exception as error:
            # The server's own word on this call leaves the stream in step; anything else ends the connection.
            if not (connection.is_connected and is_a(error, "ResponseError")):
                raise
            if is_noscript(error):
                unseen.append((call, error))
            else:
                call.fail(error)
        else:
            call.reply(reply)
        if progress is not None:
            progress.made()
    return unseen


@final
class _Progress:
    """Moves the time limit of a group on, so that each reply has the client's time-out, and not all of them one."""

    __slots__ = ("_limit", "_now", "_seen", "_timeout_s")

    def __init__(self, limit: asyncio.Timeout, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._now = asyncio.get_running_loop().time
        self._seen = self._now()

    def made(self) -> None:
        now = self._now()
        # To move a timer costs more than to read a reply, and most come together.
        if now - self._seen > self._timeout_s / 16:
            self._seen = now
            self._limit.reschedule(now + self._timeout_s)


def _timeout_error(connection: Any) -> Exception:
    # The client's own kind, as it stands beside the class of its connections.
    for kind in type(connection).__mro__:
        error = getattr(sys.modules.get(kind.__module__), "TimeoutError", None)
        if isinstance(error, type) and issubclass(error, Exception):
            return error("Timeout reading from the server: the outcome of the calls that were under way is unknown.")
    return TimeoutError("Timeout reading from the server: the outcome of the calls that were under way is unknown.")
