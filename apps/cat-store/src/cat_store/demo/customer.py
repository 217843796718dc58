"""A customer with a bad connection: it repeats its order until it is told what became of it."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx

from cat_store.demo.journal import NotSeenError

__all__ = ["Customer", "Outcome"]

_PAUSE_S: Final = 0.1
"""Between two requests. A customer of a real shop waits as long as Retry-After says; a story has to go on."""

_IN_FLIGHT: Final = "in-flight"


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What a customer was told in the end.

    Attributes:
        status: Of the last answer: 201 for an order that is placed, whoever placed it and when.
        code: What the problem's code is, such as "response-not-stored"; empty where there is none.
        body: The last answer.
        requests: How many requests it took.
        unanswered: How many of them got no answer at all.
        replayed: Whether the last answer was the first one once more.
    """

    status: int
    code: str
    body: bytes
    requests: int
    unanswered: int
    replayed: bool


class Customer:
    """
    Places orders at any of some replicas.

    Args:
        http: How to reach them.
        replicas: Tells where they are; asked before each request.
    """

    def __init__(self, http: httpx.AsyncClient, replicas: Callable[[], Sequence[str]]) -> None:
        self._http = http
        self._replicas = replicas

    async def send(
        self, order: Mapping[str, Any], key: str | None, at: str, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send one request, once."""
        sent = {**(headers or {}), **({} if key is None else {"Idempotency-Key": key})}
        return await self._http.post(f"{at}/orders", json=order, headers=sent)

    async def insist(
        self,
        order: Mapping[str, Any],
        key: str,
        *,
        within_s: float,
        begin: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Outcome:
        """
        Repeat an order under one key, at one replica after the other, until the answer is final.

        No answer, 409 for a request that is under way, and 5xx are not final.

        Args:
            order: The order.
            key: Its key.
            within_s: How long to go on, in seconds.
            begin: At which of the replicas to begin.
            headers: Further headers of the first request alone.

        Raises:
            NotSeenError: No answer was final within that many seconds.
        """
        unanswered = 0
        try:
            async with asyncio.timeout(within_s):
                for number in itertools.count():
                    replicas = self._replicas()
                    at = replicas[(begin + number) % len(replicas)]
                    try:
                        answer = await self.send(order, key, at, headers if number == 0 else None)
                    except httpx.TransportError:
                        unanswered += 1
                    else:
                        code = _code_of(answer)
                        if code != _IN_FLIGHT and answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                            replayed = "idempotent-replayed" in answer.headers
                            return Outcome(answer.status_code, code, answer.content, number + 1, unanswered, replayed)
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            pass
        raise NotSeenError(f"A customer repeated its order for {within_s:g} s, and no answer was final.")


def _code_of(answer: httpx.Response) -> str:
    if answer.headers.get("content-type") != "application/problem+json":
        return ""
    return str(answer.json().get("code", ""))
