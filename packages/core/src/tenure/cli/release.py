"""
`tenure release`: free a lock by hand, the one that was seen and no other.

A person looks, thinks, and then acts; the lock may have moved in between. So the token that was seen has to be given.
It is compared first, and then the store releases by the owner that belongs to it, in one step: an acquisition that
comes between the look and the release has another owner, and keeps its lock.
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

import typer
from rich.text import Text

from tenure._keys import check_key
from tenure.cli.addresses import Address, from_words, refuse_more
from tenure.cli.endings import NOT_SO, printable, say
from tenure.cli.json_lines import print_json
from tenure.cli.looking import Look, look_at
from tenure.cli.rows import console

__all__ = ["Released", "release", "release_seen"]


@final
@dataclass(frozen=True, slots=True)
class Released:
    """
    What became of it.

    Attributes:
        seen_token: The token that the key had, or None where it was free.
        instance: Who held it, or None.
        why_not: None where it was released.
    """

    seen_token: int | None
    instance: str | None
    why_not: Literal["free", "other-token", "moved"] | None


def release(
    words: Annotated[list[str] | None, typer.Argument(metavar="[URL] KEY", show_default=False)] = None,
    *,
    token: Annotated[int, typer.Option("--token", min=1, help="The token that `ls` or `show` showed.")],
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """
    Free a lock by hand, whose holder hangs or is gone.

    It is refused where the key has another token by now: whoever acquired it meanwhile keeps it. A holder that is alive
    hears of it by its next renewal, a third of its ttl later at most, and works on until then. Exits with 0 where it
    was released, and with 1 where not.

    JSON: {"store", "key", "token", "released", "seen_token" or null, "instance" or null,
    "why_not": "free", "other-token", "moved" or null}
    """
    usage = "tenure release [URL] KEY --token T"
    address, rest = from_words(words or [], usage)
    refuse_more(rest, ["KEY"], usage)
    key = check_key(rest[0])
    ended = asyncio.run(_release(address, key, token))
    if json:
        print_json(_shape(address, key, token, ended))
    elif ended.why_not is None:
        console().print(Text(f"Released {printable(key)}, which {printable(ended.instance or '')} held ({token})."))
    else:
        say(_refusal(key, token, ended))
    if ended.why_not is not None:
        raise typer.Exit(NOT_SO)


async def _release(address: Address, key: str, token: int) -> Released:
    async with look_at(address) as look:
        return await release_seen(look, key, token)


async def release_seen(look: Look, key: str, token: int) -> Released:
    """Release *key* if *token* is its token, and still is when the store writes."""
    record = await look.find(key)
    if record is None:
        return Released(None, None, "free")
    if record.token != token:
        return Released(record.token, record.instance, "other-token")
    released = await look.ask("release", look.store.release(key, record.owner))
    return Released(record.token, record.instance, None if released else "moved")


def _shape(address: Address, key: str, token: int, ended: Released) -> dict[str, Any]:
    return {
        "store": address.shown,
        "key": key,
        "token": token,
        "released": ended.why_not is None,
        "seen_token": ended.seen_token,
        "instance": ended.instance,
        "why_not": ended.why_not,
    }


def _refusal(key: str, token: int, ended: Released) -> str:
    if ended.why_not == "free":
        return f"Nothing was released: nobody holds {key!r}."
    if ended.why_not == "other-token":
        return (
            f"Nothing was released: {key!r} has token {ended.seen_token} and is held by {ended.instance!r}, so the "
            f"lease with token {token} has ended. Look again, and give that token if it is the one to be freed."
        )
    return (
        f"Nothing was released: the lease on {key!r} with token {token} ended while it was being looked at. Look again."
    )
