"""`tenure check`: what a service would find at its start, before it starts."""

import asyncio
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tenure._startup import measure_round_trip_s
from tenure.cli.addresses import Address, from_words, refuse_more
from tenure.cli.endings import NOT_SO, Stop
from tenure.cli.json_lines import print_json
from tenure.cli.looking import Look, look_at
from tenure.cli.rows import console
from tenure.store import ChecksServer, Finding

__all__ = ["check"]

_USAGE = "tenure check [URL]"


def check(
    words: Annotated[list[str] | None, typer.Argument(metavar="[URL]", show_default=False)] = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on any finding, not only a fatal one.")] = False,
    idempotency: Annotated[
        bool, typer.Option("--idempotency", help="Check the store of idempotency records at the URL instead.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """
    Check a store: server, table, rights. Each finding comes with its remedy.

    Exits with 0 where locks are safe, 1 on a fatal finding (with --strict on any), 2 where the store cannot be reached.

    JSON: {"store", "kind", "reach", "ok", "round_trip_s", "findings": [{"code", "fatal", "message", "remedy"}]}
    """
    address, rest = from_words(words or [], _USAGE)
    refuse_more(rest, [], _USAGE)
    shape = asyncio.run(_check(address, idempotency=idempotency, strict=strict))
    if json:
        print_json(shape)
    else:
        _print(shape)
    if not shape["ok"]:
        raise typer.Exit(NOT_SO)


async def _check(address: Address, *, idempotency: bool, strict: bool) -> dict[str, Any]:
    async with look_at(address, idempotency=idempotency, alone=True) as look:
        findings = await _findings(look)
        fatal = any(finding.fatal for finding in findings)
        # Where it cannot work there is nothing to measure: the call would fail, and the finding says why.
        round_trip_s = 0.0 if fatal or idempotency else await measure_round_trip_s(look.store, look.keeper, look.clock)
        return {
            "store": address.shown,
            "kind": type(look.store).__name__,
            "reach": getattr(look.store, "reach", "cluster"),
            "ok": not fatal and not (strict and findings),
            "round_trip_s": round(round_trip_s, 6) or None,
            "findings": [
                {"code": found.code, "fatal": found.fatal, "message": found.message, "remedy": found.remedy}
                for found in findings
            ],
        }


async def _findings(look: Look) -> list[Finding]:
    if not isinstance(look.store, ChecksServer):
        if getattr(look.store, "reach", "cluster") == "process":
            return []
        raise Stop(f"A {type(look.store).__name__} cannot tell whether its server will do: it has no check().")
    return list(await look.ask("check", look.store.check()))


def _print(shape: dict[str, Any]) -> None:
    shown = console()
    about = f"{shape['store']}  {shape['kind']}"
    if shape["round_trip_s"] is not None:
        about += f", a round trip takes {1000 * shape['round_trip_s']:.1f} ms"
    if shape["reach"] != "cluster":
        about += f"; it excludes callers on one {shape['reach']} only"
    shown.print(Text(about))
    if not shape["findings"]:
        shown.print(Text("Nothing was found: this store will do.", style="green"))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("finding", "", "what was found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in shape["findings"]:
        weight = Text("fatal", style="bold red") if finding["fatal"] else Text("warning", style="yellow")
        table.add_row(Text(finding["code"], style="bold"), weight, Text(finding["message"]), Text(finding["remedy"]))
    shown.print(table)
