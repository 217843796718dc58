"""
The wire between a replica's page and the demo's supervisor, and the replica's end of it.

The supervisor is the process that started the replicas: it alone can pause and kill them. Its URL holds a token, which
stays between the two: the page has neither.
"""

from types import TracebackType
from typing import Annotated, Final, Literal, Self, final
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

__all__ = [
    "ASKER",
    "DemoError",
    "DemoLink",
    "DemoNews",
    "DemoReply",
    "DemoState",
    "LocksRequest",
    "SlowRequest",
    "Verb",
]

Verb = Literal["pause", "resume", "kill", "stop", "start"]
"""What can be done to one replica."""

ASKER: Final = "x-asker"
"""The header that names the replica that asks: what happens to that one happens after the answer."""

# Stopping waits for the replica to drain; the rest is a signal.
_ANSWER_WITHIN_S: Final = 40.0
_LOOK_WITHIN_S: Final = 1.0


class DemoError(Exception):
    """
    The supervisor did not do what it was asked to do; the message says why.

    Attributes:
        status: What the page's request is answered with.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class DemoNews(msgspec.Struct, frozen=True):
    """What became of something that was done after its answer; numbered from 1."""

    number: int
    text: str
    failed: bool = False


class DemoState(msgspec.Struct, frozen=True):
    """
    What the supervisor knows.

    Attributes:
        replicas: What each replica is, by name.
        locks: Whether replicas are started with locks.
        count_delay_s: How long the warehouse takes for a page of a full count.
        busy: Whether it restarts replicas at the moment.
        news: What became of what was done last, if it was done after its answer.
    """

    replicas: dict[str, Literal["up", "paused", "gone"]]
    locks: bool = True
    count_delay_s: float = 0.0
    busy: bool = False
    news: DemoNews | None = None


class DemoReply(msgspec.Struct, frozen=True):
    """What happened, in a sentence."""

    message: str


class LocksRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether every replica is to run with locks."""

    on: bool


class SlowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the warehouse is to take for a page of a count, in seconds."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=60)]


class _Problem(msgspec.Struct):
    detail: str = "It gave no reason."


@final
class DemoLink:
    """
    A replica's connection to the supervisor.

    Args:
        url: `http://demo:TOKEN@host:port`.
        instance: The replica that asks.
        transport: Where requests go instead of the network, for tests.
    """

    def __init__(self, url: str, instance: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        parts = urlsplit(url)
        if not parts.password:
            raise ValueError("The URL of the demo's supervisor holds no token: write http://demo:TOKEN@host:port")
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        self._http: Final = httpx.AsyncClient(
            base_url=f"{parts.scheme}://{host}:{parts.port or 80}",
            headers={"authorization": f"Bearer {unquote(parts.password)}", ASKER: instance},
            timeout=_ANSWER_WITHIN_S,
            transport=transport,
        )

    async def state(self) -> DemoState:
        """Ask what it knows; raises DemoError where it does not answer."""
        return msgspec.json.decode(await self._ask("GET", "/state", within_s=_LOOK_WITHIN_S), type=DemoState)

    async def act(self, verb: Verb, replica: str) -> str:
        """Do something to one replica, and return what happened."""
        return await self._tell(f"/replicas/{replica}/{verb}")

    async def restart(self, *, locks: bool) -> str:
        """Restart every replica, with locks or without."""
        return await self._tell("/locks", LocksRequest(locks))

    async def slow(self, seconds: float) -> str:
        """Have the warehouse take its time for each page of a count; 0 for none."""
        return await self._tell("/counts", SlowRequest(seconds))

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _tell(self, path: str, body: msgspec.Struct | None = None) -> str:
        content = await self._ask("POST", path, b"{}" if body is None else msgspec.json.encode(body))
        return msgspec.json.decode(content, type=DemoReply).message

    async def _ask(
        self, method: str, path: str, content: bytes | None = None, within_s: float = _ANSWER_WITHIN_S
    ) -> bytes:
        try:
            response = await self._http.request(
                method, path, content=content, headers={"content-type": "application/json"}, timeout=within_s
            )
        except httpx.HTTPError as error:
            raise DemoError(
                f"The demo's supervisor does not answer ({type(error).__name__}). Does `cat-store demo` still run?", 502
            ) from None
        if response.is_success:
            return response.content
        try:
            reason = msgspec.json.decode(response.content, type=_Problem).detail
        except msgspec.MsgspecError:
            reason = f"It answered with {response.status_code}."
        # What it refuses is the presser's to know; a token that it does not take is the shop's trouble.
        passed_on = response.status_code in {httpx.codes.NOT_FOUND, httpx.codes.CONFLICT}
        raise DemoError(f"The demo's supervisor refused: {reason}", response.status_code if passed_on else 502)
