"""After the load: what nobody knows the outcome of is asked for until it is known, and the last invoices go out."""

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import uuid4

import httpx
import msgspec

from cat_store_load.answers import NO_ANSWER, Answer, AnswerBook, Kind, problem_code

__all__ = ["NotSettledError", "Settling"]

_WITHIN_S: Final = 60.0
"""How long to insist, in seconds: many times what a record of a dead replica is believed for."""

_PAUSE_S: Final = 0.2
_AT_ONCE: Final = 8
_PATIENCE_S: Final = 15.0

_ASKED_AGAIN: Final = 200
"""Of so many orders whose answer is known it is asked for once more, at another replica than the first time."""


class NotSettledError(Exception):
    """The shop did not come to rest in time; the message says what was still open."""


class Settling:
    """
    Asks the shop until everything is known.

    Args:
        urls: Where the replicas answer.
        admin_headers: What administrators send.
        book: Where the answers are written down.
    """

    def __init__(self, urls: Sequence[str], admin_headers: dict[str, str], book: AnswerBook) -> None:
        self._urls: Final = urls
        self._admin_headers: Final = admin_headers
        self._book: Final = book
        self._places: Final = asyncio.Semaphore(_AT_ONCE)

    async def settle(self, answers: Iterable[Answer]) -> int:
        """
        Repeat every order under a key that has no final answer, until it has one, and some of the others once more.

        Returns:
            How many had none. One that has none in the end is found by the audit of the books.
        """
        groups: defaultdict[str, list[Answer]] = defaultdict(list)
        for answer in answers:
            if answer.key and answer.customer:
                groups[answer.key].append(answer)
        unknown = [group[-1] for group in groups.values() if not any(answer.final for answer in group)]
        known = [group[0] for group in groups.values() if any(answer.final for answer in group)]
        again = random.Random(len(known)).sample(known, min(len(known), _ASKED_AGAIN))  # noqa: S311 -- a sample
        async with httpx.AsyncClient(timeout=_PATIENCE_S) as http:
            await asyncio.gather(*(self._insist(http, one) for one in (*unknown, *again)))
        return len(unknown)

    async def export_the_rest(self) -> None:
        """
        Export by hand until nothing is due at any replica.

        Raises:
            NotSettledError: There was still something to export in the end.
        """
        until = time.monotonic() + _WITHIN_S
        nothing = 0
        async with httpx.AsyncClient(timeout=_PATIENCE_S, headers=self._admin_headers) as http:
            for number in itertools.count():
                answer = await self._send(
                    http,
                    "/admin/invoice-export",
                    Answer(block="end", kind=Kind.EXPORT, key=str(uuid4()), replica=number),
                )
                nothing = nothing + 1 if _exported(answer) == 0 else 0
                if nothing == len(self._urls):
                    return
                if time.monotonic() > until:
                    raise NotSettledError(
                        f"The last export by hand was answered with {answer.status} "
                        f"{answer.code or answer.body[:200]}, {_WITHIN_S:g} s after the load."
                    )
                if not nothing:
                    await asyncio.sleep(_PAUSE_S)

    async def _insist(self, http: httpx.AsyncClient, first: Answer) -> None:
        until = time.monotonic() + _WITHIN_S
        async with self._places:
            for attempt in itertools.count(1):
                about = Answer(
                    block=first.block,
                    kind=Kind.SETTLING,
                    customer=first.customer,
                    key=first.key,
                    replica=first.replica + attempt,
                    order=first.order,
                    cents=first.cents,
                )
                answer = await self._send(http, "/orders", about)
                if answer.final or time.monotonic() > until:
                    return
                await asyncio.sleep(_PAUSE_S)

    async def _send(self, http: httpx.AsyncClient, path: str, about: Answer) -> Answer:
        replica = about.replica % len(self._urls)
        headers = {"idempotency-key": about.key, "content-type": "application/json"}
        at = time.monotonic()
        try:
            heard = await http.post(f"{self._urls[replica]}{path}", content=about.order, headers=headers)
        except httpx.TransportError:
            answer = msgspec.structs.replace(about, replica=replica, at=at, status=NO_ANSWER)
        else:
            answer = msgspec.structs.replace(
                about,
                replica=replica,
                at=at,
                took_ms=(time.monotonic() - at) * 1000,
                status=heard.status_code,
                code=problem_code(heard.headers.get("content-type", ""), heard.content),
                replayed="idempotent-replayed" in heard.headers,
                location=heard.headers.get("location", ""),
                body=heard.text,
            )
        self._book.write(answer)
        return answer


def _exported(answer: Answer) -> int | None:
    """How many invoices went out; None where the answer does not say so."""
    if answer.status != httpx.codes.OK:
        return None
    count: int = msgspec.json.decode(answer.body)["exported"]
    return count
