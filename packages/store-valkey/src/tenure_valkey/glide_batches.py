"""Groups of calls through valkey-glide: a call that is alone as a script of glide's, more of them as one batch."""

import atexit
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, final

from tenure_valkey.group import Pending
from tenure_valkey.runner import Script

__all__ = ["Batches", "glide_script"]

_scripts: dict[str, Any] = {}

# While the interpreter is whole: glide's scripts free something when they go, and complain if they go after it.
atexit.register(_scripts.clear)


def glide_script(script: Script) -> Any:
    """Return glide's form of *script*, kept for good: glide forgets the text of one that is dropped while it runs."""
    if script.sha1 not in _scripts:
        from glide import Script as GlideScript

        _scripts[script.sha1] = GlideScript(script.source)  # type: ignore[no-untyped-call]  # glide's has no types
    return _scripts[script.sha1]


@final
class Batches:
    """
    What carries groups of calls to one server, or to one node of a cluster.

    Args:
        client: glide's client.
        is_cluster: Whether it is a cluster's.
        on_trouble: Called when the node did not answer, or another one serves a key now.
    """

    def __init__(self, client: Any, *, is_cluster: bool, on_trouble: Callable[[], None] | None = None) -> None:
        self._client = client
        self._is_cluster = is_cluster
        self._on_trouble = on_trouble

    async def ready(self) -> None:
        """Nothing is to be done: glide connects by itself."""

    async def carry(self, calls: Sequence[Pending]) -> None:
        """Send *calls* and answer each; where a server has not seen a script, again with its text."""
        try:
            undone = await self._send(calls, _by_name)
            if not undone:
                return
            unseen = [call for call, error in undone if _is_noscript(error)]
            astray = [one for one in undone if not _is_noscript(one[1])]
            # Not by glide's own remedy, which has every node load the script, and waits for the slowest.
            await self._lead(astray + await self._send(unseen, _with_source))
        except Exception as error:
            self._look_at(error)
            raise

    async def rest(self) -> None:
        """Nothing is kept."""

    def forget(self) -> None:
        """Nothing is kept."""

    async def _lead(self, undone: Sequence[tuple[Pending, Exception]]) -> None:
        """
        Take calls of which nothing ran through what glide knows to do for one that is alone.

        The user may not send texts (EVAL): glide loads the script. Or another node serves the key now, and was not
        there: glide waits for it. One of each script goes ahead, and where it gets through, the others follow.
        """
        ahead: dict[str, Pending] = {}
        follow: list[tuple[Pending, Exception]] = []
        for call, error in undone:
            self._look_at(error)
            if call.answer.done():
                continue
            if ahead.setdefault(call.script.sha1, call) is not call:
                follow.append((call, error))
        passed = {call.script.sha1 for call in ahead.values() if await self._goes_ahead(call)}
        left = await self._send([call for call, _ in follow if call.script.sha1 in passed], _by_name)
        for call, error in left + [(call, error) for call, error in follow if call.script.sha1 not in passed]:
            call.fail(error)

    async def _goes_ahead(self, call: Pending) -> bool:
        script = glide_script(call.script)
        try:
            call.reply(await self._client.invoke_script(script, keys=list(call.keys), args=list(call.args)))
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is this call's
            self._look_at(error)
            call.fail(error)
            # What a server says of this call is nothing to the others.
            return type(error).__name__ == "RequestError" and not _is_redirection(error)
        return True

    async def _send(
        self, calls: Sequence[Pending], written: Callable[[Pending], list[bytes]]
    ) -> list[tuple[Pending, Exception]]:
        """Send and answer *calls*; return those of which nothing ran, with what was said, which have no answer yet."""
        calls = [call for call in calls if not call.answer.done()]
        if not calls:
            return []
        if len(calls) == 1:
            replies = [await self._send_alone(written(calls[0]))]
        else:
            batch = _batch(self._is_cluster)
            for call in calls:
                batch.custom_command(written(call))
            # Not atomic: each script is. Nothing is sent again by glide: its retry_strategy is left off.
            replies = await self._client.exec(batch, raise_on_error=False)
        undone: list[tuple[Pending, Exception]] = []
        for call, reply in zip(calls, replies, strict=True):
            if not isinstance(reply, Exception):
                call.reply(reply)
            elif _is_noscript(reply) or _is_redirection(reply) or (written is _with_source and _is_denied(reply)):
                undone.append((call, reply))
            else:
                call.fail(reply)
        return undone

    async def _send_alone(self, words: list[bytes]) -> Any:
        try:
            return await self._client.custom_command(words)
        except Exception as error:
            if type(error).__name__ != "RequestError":
                raise
            return error

    def _look_at(self, error: Exception) -> None:
        # What a server says is a RequestError and nothing more; a time-out and a lost connection are kinds of it.
        if self._on_trouble is not None and (type(error).__name__ != "RequestError" or _is_redirection(error)):
            self._on_trouble()


def _by_name(call: Pending) -> list[bytes]:
    keys = call.keys
    return [b"EVALSHA", _sha1(call.script.sha1), b"%d" % len(keys), *keys, *call.args]


# glide looks at each word of a call, longer at one that it has to encode.
_sha1 = cache(str.encode)


def _with_source(call: Pending) -> list[bytes]:
    return [b"EVAL", call.script.source.encode(), b"%d" % len(call.keys), *call.keys, *call.args]


def _batch(is_cluster: bool) -> Any:
    from glide import Batch, ClusterBatch

    return ClusterBatch(is_atomic=False) if is_cluster else Batch(is_atomic=False)


def _is_noscript(error: Exception) -> bool:
    # glide has one error for everything that a server says, and its text for the rest.
    return type(error).__name__ == "RequestError" and ("NoScriptError" in str(error) or "NOSCRIPT" in str(error))


def _is_denied(error: Exception) -> bool:
    return type(error).__name__ == "RequestError" and ("PermissionDenied" in str(error) or "NOPERM" in str(error))


def _is_redirection(error: Exception) -> bool:
    return type(error).__name__ == "RequestError" and str(error).startswith(_REDIRECTIONS)


_REDIRECTIONS = tuple(
    f"{said}{word}" for said in ("", "An error was signalled by the server: - ") for word in ("Moved:", "Ask:")
)
