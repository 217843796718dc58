"""The shop's side of a conversation with a partner: one bounded call, and an answer that was checked."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

import httpx
import msgspec

from cat_store.partners.wire import SENDER

__all__ = ["Partner", "PartnerError", "PartnerRefusedError", "PartnerUnavailableError", "PartnerUnreadableError"]

Answer = TypeVar("Answer")

# Each call is short; what takes long (a full count) takes many calls. A partner that does not answer for this long
# has failed for this run, and the next tick tries again.
_ANSWER_WITHIN_S = 30.0
_CONNECT_WITHIN_S = 3.0
# No line that was agreed has a hundredth of it; what has is no line, and must not fill this process's memory.
_LONGEST_LINE: Final = 64 * 1024


class PartnerError(Exception):
    """A partner did not do what it was asked to do. The message holds nothing of what was sent or received."""


class PartnerUnavailableError(PartnerError):
    """No answer, or an error of the partner's own (5xx): whether it did what it was asked is unknown."""


class PartnerRefusedError(PartnerError):
    """
    The partner refused the request (4xx).

    Attributes:
        status: The status of its answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class PartnerUnreadableError(PartnerError):
    """The partner answered something else than agreed, such as a maintenance page or a negative count."""


class Partner:
    """
    A connection to one partner.

    Args:
        name: What it is called in errors, such as "the warehouse".
        url: Where it answers.
        sender: The name of this replica.
        answer_within_s: How long one answer may take, in seconds.
        transport: Where requests go instead of the network, for tests.
    """

    def __init__(
        self,
        name: str,
        url: str,
        sender: str,
        *,
        answer_within_s: float = _ANSWER_WITHIN_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._name = name
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={SENDER: sender},
            timeout=httpx.Timeout(answer_within_s, connect=_CONNECT_WITHIN_S),
            transport=transport,
        )

    async def ask(self, method: str, path: str, answer: type[Answer], body: msgspec.Struct | None = None) -> Answer:
        """
        Send one request; nothing is sent twice.

        Args:
            method: The HTTP method.
            path: Below the partner's URL.
            answer: What the answer is read as.
            body: What is sent along.

        Raises:
            PartnerUnavailableError: No answer, or a 5xx.
            PartnerRefusedError: A 4xx.
            PartnerUnreadableError: An answer that is no *answer*.
        """
        what = f"{method} {path}"
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            response = await self._http.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise self._no_answer(what, error) from error
        self._check_status(what, response.status_code)
        try:
            return msgspec.json.decode(response.content, type=answer)
        except msgspec.MsgspecError:
            # Not `from`: the parser's text quotes what was received.
            raise PartnerUnreadableError(
                f"{self._name} answered {what} with something that is no {answer.__name__}. Nothing was done with it."
            ) from None

    @contextlib.asynccontextmanager
    async def listen(
        self, path: str, params: Mapping[str, str | int], *, line_within_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """
        Open a stream of lines, which is closed when the body ends, however it ends.

        The iterator that the body is given ends where the partner ends the stream, and raises as below.

        Args:
            path: Below the partner's URL.
            params: The query.
            line_within_s: How long the partner may be silent, in seconds.

        Raises:
            PartnerUnavailableError: No answer, a 5xx, a connection that broke, or silence.
            PartnerRefusedError: A 4xx.
            PartnerUnreadableError: A line that is longer than any that was agreed.
        """
        what = f"GET {path}"
        timeout = httpx.Timeout(line_within_s, connect=_CONNECT_WITHIN_S)
        async with contextlib.AsyncExitStack() as left:
            try:
                opening = self._http.stream("GET", path, params=params, timeout=timeout)
                response = await left.enter_async_context(opening)
            except httpx.HTTPError as error:
                raise self._no_answer(what, error) from error
            self._check_status(what, response.status_code)
            yield self._lines(what, response)

    async def _lines(self, what: str, response: httpx.Response) -> AsyncIterator[bytes]:
        rest = b""
        try:
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > _LONGEST_LINE:
                    raise PartnerUnreadableError(f"{self._name} sent {what} a line that does not end.")
        except httpx.HTTPError as error:
            raise self._no_answer(what, error) from error
        if rest:
            yield rest

    def _no_answer(self, what: str, error: httpx.HTTPError) -> PartnerUnavailableError:
        return PartnerUnavailableError(
            f"{self._name} gave no answer to {what} ({type(error).__name__}). The next run tries again."
        )

    def _check_status(self, what: str, status: int) -> None:
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise PartnerUnavailableError(f"{self._name} answered {what} with {status}. The next run tries again.")
        if status >= httpx.codes.BAD_REQUEST:
            raise PartnerRefusedError(f"{self._name} refused {what} with {status}.", status)
        if status >= httpx.codes.MULTIPLE_CHOICES:
            raise PartnerUnreadableError(f"{self._name} answered {what} with {status}: a redirect was not agreed.")

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
