"""
What the stores send, captured from the stores themselves: a floor sends exactly that through a bare client.

A floor with a copy of the statements would be another floor as soon as the store's change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event

from tenure_loadtests.contenders.contract import TTL_S
from tenure_postgres import PostgresLockStore, create_lock_engine
from tenure_valkey import Script, ValkeyLockStore

__all__ = ["Sent", "sent_to_postgres", "sent_to_valkey"]

_KEY = "captured-key"
_OWNER = "captured-owner"
_TTL_MS = round(TTL_S * 1000)


@dataclass(frozen=True, slots=True)
class Sent:
    """
    One call as the store sent it.

    Attributes:
        text: The statement, or the script's source.
        keys: The script's keys; empty for a statement.
        arguments: The rest.
    """

    text: str
    keys: tuple[Any, ...]
    arguments: tuple[Any, ...]

    def with_names(self, key: str, owner: str) -> tuple[list[Any], list[Any]]:
        """The keys and the arguments for another key and owner."""
        return [_renamed(one, key, owner) for one in self.keys], [_renamed(one, key, owner) for one in self.arguments]


async def sent_to_valkey() -> tuple[Sent, Sent]:
    """What a `ValkeyLockStore` sends for an acquire of a free key, and for its release."""
    runner = _Recording()
    store = ValkeyLockStore(runner)
    await store.acquire(_KEY, _OWNER, _TTL_MS)
    await store.release(_KEY, _OWNER)
    acquire, release = runner.sent
    return acquire, release


async def sent_to_postgres(url: str) -> tuple[Sent, Sent]:
    """What a `PostgresLockStore` sends for an acquire of a free key, and for its release; it is carried out."""
    engine = create_lock_engine(url, pool_size=1)
    sent: list[Sent] = []

    def note(query: Any) -> None:
        # Others look at the session and name no key.
        if any(_names(one, _KEY) for one in query.args):
            sent.append(Sent(query.query, (), tuple(query.args)))

    def listen(connection: Any, _: object) -> None:
        connection.driver_connection.add_query_logger(note)

    event.listen(engine.sync_engine, "connect", listen)
    store = PostgresLockStore(engine, owns_engine=True)
    async with store:
        await store.acquire(_KEY, _OWNER, _TTL_MS)
        await store.release(_KEY, _OWNER)
    acquire, release = sent
    return acquire, release


class _Recording:
    """A runner that sends nothing."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        self.sent.append(Sent(script.source, tuple(keys), tuple(args)))
        return [1, 1, 0] if script.name == "acquire" else 1


def _renamed(value: Any, key: str, owner: str) -> Any:
    if isinstance(value, bytes):
        return value.replace(_KEY.encode(), key.encode()).replace(_OWNER.encode(), owner.encode())
    if isinstance(value, str):
        return value.replace(_KEY, key).replace(_OWNER, owner)
    if isinstance(value, list | tuple):
        return [_renamed(one, key, owner) for one in value]
    return value


def _names(value: Any, wanted: str) -> bool:
    return value == wanted or (isinstance(value, list | tuple) and wanted in value)
