"""
Commits that fail as the response is sent.

advanced-alchemy's `before_send_handler="autocommit"` commits when the response starts, and swallows an error: the
client reads 201, and nothing is in the database. Stored, that 201 would be every repeat's answer, and the work would
never be done. So the commit is watched during an execution, and a failed one fails the request.
"""

import inspect
from collections.abc import Awaitable, Sequence
from typing import Any, final

from litestar.config.app import AppConfig
from litestar.exceptions import InternalServerException
from litestar.types import Message, Scope

from tenure.ext.litestar._run import current_run

__all__ = ["watch_commits"]


def watch_commits(app_config: AppConfig, owned: Sequence[Any]) -> None:
    """Watch the sessions of advanced-alchemy's *owned* settings, from before its hooks to after them."""
    if owned:
        watch = _Watch([config.session_scope_key for config in owned])
        app_config.before_send[:] = [watch.before, *app_config.before_send, watch.after]


@final
class _Commit:
    """One session's commit, as whoever calls it while the response starts has it."""

    def __init__(self, session: Any) -> None:
        self.failed = False
        self._commit = session.commit
        # The session ends with the response: nobody has to put its own method back.
        session.commit = self._call

    def _call(self) -> Any:
        """Commit; both of a session and of an asynchronous one."""
        self.failed = True
        result = self._commit()
        if inspect.isawaitable(result):
            return self._until(result)
        self.failed = False
        return result

    async def _until(self, result: Awaitable[Any]) -> Any:
        ended = await result
        self.failed = False
        return ended


@final
class _Watch:
    """Two hooks around advanced-alchemy's."""

    def __init__(self, session_keys: Sequence[str]) -> None:
        self._session_keys = session_keys

    async def before(self, message: Message, scope: Scope) -> None:
        """Watch the sessions of the request."""
        run = current_run.get()
        if message["type"] != "http.response.start" or run is None or run.context is None:
            return
        # It is there: a plugin of its own is.
        from advanced_alchemy.extensions.litestar._utils import get_aa_scope_state

        sessions = [get_aa_scope_state(scope, key) for key in self._session_keys]
        run.commits = [_Commit(session) for session in sessions if session is not None]

    async def after(self, message: Message, _: Scope) -> None:
        """
        Look what became of the commits, before the message leaves.

        Raises:
            InternalServerException: One was begun and not ended.
        """
        run = current_run.get()
        if message["type"] != "http.response.start" or run is None:
            return
        commits, run.commits = run.commits, []
        if any(commit.failed for commit in commits):
            raise InternalServerException(
                "The transaction of this request was not committed, though its handler had ended: see the log of "
                '"advanced_alchemy.extensions.litestar" at DEBUG. Its response is not stored.'
            )
