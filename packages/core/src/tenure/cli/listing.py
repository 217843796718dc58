"""`tenure ls` and `tenure show`: who holds what."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from tenure._job_leases import owner_key
from tenure._keys import check_key
from tenure.cli.addresses import Address, from_words, refuse_more
from tenure.cli.endings import NOT_SO, printable
from tenure.cli.json_lines import print_json
from tenure.cli.looking import look_at
from tenure.cli.rows import age_s, console, lock_shape, lock_table, plain_span
from tenure.store import LockRecord

__all__ = ["ls", "show"]


def ls(
    words: Annotated[list[str] | None, typer.Argument(metavar="[URL]", show_default=False)] = None,
    *,
    prefix: Annotated[str, typer.Option("--prefix", help="Only keys that begin so.", show_default=False)] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """
    List the locks that are held: key, holder's instance, token, age, time left.

    The age is the token held against this machine's clock, for a token is the server's clock at the acquisition; it is
    left out where tokens are no clock. The time left is the store's own.

    JSON: {"store", "locks": [{"key", "instance", "token", "age_s" or null, "expires_in_s"}]}
    """
    usage = "tenure ls [URL]"
    address, rest = from_words(words or [], usage)
    refuse_more(rest, [], usage)
    records = asyncio.run(_list(address, prefix))
    if json:
        print_json({"store": address.shown, "locks": [lock_shape(record) for record in records]})
    elif records:
        console().print(lock_table(records))
    else:
        console().print(Text("Nobody holds a lock here." if not prefix else "Nobody holds a lock with this prefix."))


async def _list(address: Address, prefix: str) -> Sequence[LockRecord]:
    async with look_at(address) as look:
        return await look.list_locks(prefix)


def show(
    words: Annotated[list[str] | None, typer.Argument(metavar="[URL] KEY", show_default=False)] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """
    Show the lock on one key, and the lease of the job under that key.

    Exits with 0 where the key, or the job's lease, is held, and with 1 where nobody has either.

    JSON: {"store", "key", "held", "lock": a lock as in `ls` or null, "job": the lock on KEY:owner or null}
    """
    usage = "tenure show [URL] KEY"
    address, rest = from_words(words or [], usage)
    refuse_more(rest, ["KEY"], usage)
    key = check_key(rest[0])
    locks = {record.key: record for record in asyncio.run(_list(address, key))}
    lock, job = locks.get(key), locks.get(owner_key(key))
    if json:
        shape: dict[str, Any] = {"store": address.shown, "key": key, "held": lock is not None}
        print_json(shape | {"lock": lock and lock_shape(lock), "job": job and lock_shape(job)})
    else:
        shown = console()
        shown.print(_told(key, lock))
        if job is not None:
            shown.print(Text("The job under this key is owned:", style="dim"))
            shown.print(_told(job.key, job))
    if lock is None and job is None:
        raise typer.Exit(NOT_SO)


def _told(key: str, lock: LockRecord | None) -> Text:
    if lock is None:
        return Text(f"{printable(key)} is free.")
    age = age_s(lock.token)
    lines = [
        ("instance", printable(lock.instance)),
        ("token", str(lock.token)),
        *([] if age is None else [("age", plain_span(age))]),
        ("left", plain_span(lock.expires_in_ms / 1000)),
    ]
    told = Text(f"{printable(key)} is held.", style="bold")
    for name, value in lines:
        told.append(f"\n  {name:<10}", style="not bold dim").append(value, style="not bold")
    return told
