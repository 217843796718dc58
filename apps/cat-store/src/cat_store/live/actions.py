"""What the demo's buttons do. Each returns what happened in a sentence, or raises why it did not."""

import asyncio
import random
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar, cast, final, get_args

import httpx
import msgspec

from cat_store.admin.token import ADMIN_TOKEN
from cat_store.live.demo_link import DemoError, DemoLink, Verb
from cat_store.live.picture import Picture

__all__ = ["ACTIONS", "LiveActions", "UnknownActionError"]

_ANSWER_WITHIN_S: Final = 15.0
"""What a replica may take: an export by hand waits two seconds for a run, and runs."""

_SLOW_S: Final = 3.0
"""A page of a count takes this long when it is slow, in seconds; a count has a few, and outlasts several ticks."""

_CUSTOMERS: Final = ("alice", "bob", "carol", "dave", "erin", "frank")
_VERBS: Final = frozenset(get_args(Verb))

ACTIONS: Final = frozenset({"order", "export", "slow", "hurry", "lock", "unlock"}) | _VERBS


Answer = TypeVar("Answer")


class UnknownActionError(LookupError):
    """There is no such button, or no such replica."""


class _Placed(msgspec.Struct):
    id: str
    total_cents: int


class _Exported(msgspec.Struct):
    exported: int
    batches: list[str]


class _Refused(msgspec.Struct):
    detail: str = "It gave no reason."


@final
class LiveActions:
    """
    The buttons, carried out for whoever pressed one.

    Orders and exports are requests to the replicas' own API, as a customer and an administrator send them; the rest is
    the supervisor's to do.

    Args:
        link: The supervisor.
        picture: What is shown at the moment.
        own: Where this replica answers.
        admin_token: What an administrator sends; None where there are none.
        transport: Where requests go instead of the network, for tests.
    """

    def __init__(
        self,
        link: DemoLink,
        picture: Callable[[], Picture],
        *,
        own: str,
        admin_token: str | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._link: Final = link
        self._picture: Final = picture
        self._own: Final = own
        self._admin_token: Final = admin_token
        self._http: Final = httpx.AsyncClient(timeout=_ANSWER_WITHIN_S, transport=transport)
        self._random: Final = random.Random()  # noqa: S311 -- which cat food somebody orders is no secret

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def press(self, action: str, replica: str | None) -> str:
        """
        Do what a button says, and return what happened.

        Raises:
            UnknownActionError: There is no such button, or no such replica.
            DemoError: It was not done, and why.
        """
        if action in _VERBS:
            return await self._act(action, replica)
        match action:
            case "order":
                return await self._order()
            case "export":
                return await self._export()
            case "slow":
                return await self._link.slow(_SLOW_S)
            case "hurry":
                return await self._link.slow(0)
            case "lock" | "unlock":
                return await self._link.restart(locks=action == "lock")
        raise UnknownActionError(f"There is no button {action}.")

    async def _act(self, action: str, replica: str | None) -> str:
        if replica not in {view.instance for view in self._picture().replicas} or replica is None:
            raise UnknownActionError("There is no replica of that name.")
        return await self._link.act(cast("Verb", action), replica)

    async def _order(self) -> str:
        shop = self._picture().shop
        if shop is None or not shop.stock:
            raise DemoError("There is nothing to order: the shop has no products.", 409)
        items = self._random.sample(list(shop.stock), k=min(2, len(shop.stock)))
        order = {
            "customer": self._random.choice(_CUSTOMERS),
            "lines": [{"product_id": item.product_id, "quantity": self._random.randint(1, 3)} for item in items],
        }
        placed = await self._post(self._own, "/orders", _Placed, content=msgspec.json.encode(order))
        total = f"{placed.total_cents // 100}.{placed.total_cents % 100:02d}"
        return f"Order …{placed.id[-8:]} over {total} was placed. The next export sends its invoice."

    async def _export(self) -> str:
        if self._admin_token is None:
            raise DemoError(
                "Nobody is an administrator here: the replicas have no token. Set CAT_STORE_ADMIN_TOKEN.", 409
            )
        up = [view for view in self._picture().replicas if view.state == "up" and view.origin is not None]
        up.sort(key=lambda view: not view.here)
        if len(up) < 2:
            raise DemoError("The export needs two replicas that are up, and there is one. Start another.", 409)
        asked = up[:2]
        said = await asyncio.gather(*(self._export_on(view.origin or "") for view in asked))
        return " ".join(f"{view.instance} {what}." for view, what in zip(asked, said, strict=True))

    async def _export_on(self, origin: str) -> str:
        headers = {ADMIN_TOKEN: self._admin_token or ""}
        try:
            done = await self._post(origin, "/admin/invoice-export", _Exported, headers=headers)
        except DemoError as error:
            return f"did not export: {str(error).rstrip('.')}"
        if not done.exported:
            return "exported nothing: nothing was left"
        return f"exported {done.exported} in batch {' and '.join(done.batches)}"

    async def _post(
        self,
        origin: str,
        path: str,
        answer: type[Answer],
        *,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = {"Idempotency-Key": secrets.token_hex(16), "content-type": "application/json", **(headers or {})}
        try:
            response = await self._http.post(f"{origin}{path}", content=content, headers=sent)
        except httpx.HTTPError as error:
            raise DemoError(f"{origin} gave no answer ({type(error).__name__}).", 502) from None
        try:
            if response.is_success:
                return msgspec.json.decode(response.content, type=answer)
            detail = msgspec.json.decode(response.content, type=_Refused).detail
        except msgspec.MsgspecError:
            detail = "It answered something that nobody can read."
        raise DemoError(f"{response.status_code}: {detail}", 502)
