"""
The demo's control: a small server on loopback through which a replica's page asks for what only the supervisor can do.

The supervisor is the process that started the replicas. What it can do is `Supervisor`; this is the way to it, guarded
by a token that the replicas are given in their environment and no page has.
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeVar, final, get_args

import msgspec
from litestar import Litestar, Request, get, post
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath

from cat_store.live.demo_link import ASKER, DemoNews, DemoReply, DemoState, LocksRequest, SlowRequest, Verb
from cat_store.web.problems import exception_handlers, problem, problem_details
from cat_store.web.server import Listener, serving

__all__ = ["DemoControl", "Supervisor", "SupervisorError"]

logger = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]

_AFTER_THE_ANSWER_S: Final = 0.4
"""What happens to the replica that asks happens this much later: its page is to get the answer first."""

_DRAIN_S: Final = 1.0


Body = TypeVar("Body", bound=msgspec.Struct)


class SupervisorError(Exception):
    """It could not be done; the message says why, for whoever pressed the button."""


class Supervisor(Protocol):
    """
    What the process that started the replicas can do. Each action returns what happened, in a sentence.

    An action raises `SupervisorError` where it cannot be done, such as pausing a replica that is gone.
    """

    count_delay_s: float
    """How long the warehouse takes for a page of a count, in seconds."""

    @property
    def locks(self) -> bool:
        """Whether replicas are started with locks."""
        ...

    def states(self) -> Mapping[str, Literal["up", "paused", "gone"]]:
        """Tell what each replica is."""
        ...

    async def pause(self, name: str) -> str:
        """Stop a replica where it stands (SIGSTOP)."""
        ...

    async def resume(self, name: str) -> str:
        """Let a paused replica go on (SIGCONT)."""
        ...

    async def kill(self, name: str) -> str:
        """Kill a replica without giving it a chance to clean up (SIGKILL)."""
        ...

    async def stop(self, name: str) -> str:
        """Stop a replica as a deploy does (SIGTERM)."""
        ...

    async def start(self, name: str) -> str:
        """Start a replica that is gone."""
        ...

    async def restart(self, *, locks: bool) -> str:
        """Restart every replica, with locks or without."""
        ...

    async def slow(self, seconds: float) -> str:
        """Have the warehouse take that long for each page of a count; 0 for no time at all."""
        ...


@final
class DemoControl:
    """
    Serves a supervisor on a free port of loopback while it is entered.

    One action at a time: two that ask for the same replica take their turns. What would end or stop the replica that
    asks, and a restart of all, is done after the answer; what became of it is the state's `news`.

    Args:
        supervisor: Who does it.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor: Final = supervisor
        self._token: Final = secrets.token_urlsafe(24)
        self._turn: Final = asyncio.Lock()
        self._later: Final[set[asyncio.Task[None]]] = set()
        self._news: DemoNews | None = None
        self._restarting = False
        self._port = 0
        self._left = contextlib.AsyncExitStack()

    @property
    def url(self) -> str:
        """Where it answers, with the token: what the replicas are given."""
        return f"http://demo:{self._token}@127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as left:
            listener = left.enter_context(Listener("127.0.0.1", 0))
            self._port = listener.port
            await left.enter_async_context(serving(self._app(), listener, drain_s=_DRAIN_S))
            self._left = left.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._left.aclose()
        # What was begun is seen through: half a restart would leave replicas that nobody knows of.
        if self._later:
            await asyncio.wait(self._later)

    def _app(self) -> Litestar:
        @get("/state", sync_to_thread=False)
        def state() -> DemoState:
            return self._state()

        @post("/replicas/{name:str}/{verb:str}", status_code=200)
        async def act(request: AnyRequest, name: FromPath[str], verb: FromPath[str]) -> DemoReply:
            return await self._act(name, verb, request.headers.get(ASKER))

        @post("/locks", status_code=200)
        async def locks(request: AnyRequest) -> DemoReply:
            return self._restart(on=(await _body(request, LocksRequest)).on)

        @post("/counts", status_code=200)
        async def counts(request: AnyRequest) -> DemoReply:
            seconds = (await _body(request, SlowRequest)).seconds
            return DemoReply(await self._in_turn(lambda: self._supervisor.slow(seconds)))

        return Litestar(
            [state, act, locks, counts],
            guards=[self._guard],
            plugins=[problem_details()],
            exception_handlers=exception_handlers(),
            openapi_config=None,
            logging_config=None,
        )

    def _guard(self, connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        sent = connection.headers.get("authorization", "")
        if not hmac.compare_digest(sent.encode("latin-1"), f"Bearer {self._token}".encode()):
            raise problem(403, "no-token", "Only the replicas of this demo may ask.")

    def _state(self) -> DemoState:
        return DemoState(
            replicas=dict(self._supervisor.states()),
            locks=self._supervisor.locks,
            count_delay_s=self._supervisor.count_delay_s,
            busy=self._restarting,
            news=self._news,
        )

    async def _act(self, name: str, verb: str, asker: str | None) -> DemoReply:
        if verb not in get_args(Verb) or name not in self._supervisor.states():
            raise problem(404, "unknown", "There is no such replica, or no such thing to do to it.")
        action: Callable[[str], Awaitable[str]] = getattr(self._supervisor, verb)
        if name == asker and verb in {"pause", "kill", "stop"}:
            self._do_later(lambda: action(name))
            said = {"pause": "paused", "kill": "killed", "stop": "stopped"}[verb]
            return DemoReply(f"{name} is being {said}. It serves this page, which goes on at the next replica.")
        return DemoReply(await self._in_turn(lambda: action(name)))

    def _restart(self, *, on: bool) -> DemoReply:
        if self._restarting:
            raise problem(409, "busy", "The replicas are being restarted already.")
        self._restarting = True

        async def restart() -> str:
            try:
                return await self._supervisor.restart(locks=on)
            finally:
                self._restarting = False

        self._do_later(restart)
        return DemoReply(f"Every replica is being restarted {'with' if on else 'without'} locks.")

    async def _in_turn(self, action: Callable[[], Awaitable[str]]) -> str:
        async with self._turn:
            try:
                return await action()
            except SupervisorError as error:
                raise problem(409, "not-done", str(error)) from None

    def _do_later(self, action: Callable[[], Awaitable[str]]) -> None:
        task = asyncio.create_task(self._do(action), name="demo control")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _do(self, action: Callable[[], Awaitable[str]]) -> None:
        await asyncio.sleep(_AFTER_THE_ANSWER_S)
        number = 1 if self._news is None else self._news.number + 1
        async with self._turn:
            try:
                self._news = DemoNews(number, await action())
            except SupervisorError as error:
                self._news = DemoNews(number, str(error), failed=True)
            except Exception:
                logger.exception("The demo's supervisor failed")
                self._news = DemoNews(number, "The supervisor failed; its log says how.", failed=True)


async def _body(request: AnyRequest, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as error:
        raise problem(400, "invalid-body", f"The body is not what it should be: {error}.") from None
