"""`tenure run`: any program under a lock."""

import asyncio
import os
import socket
import sys
from typing import Annotated, Final

import typer

from tenure._durations import to_ms, to_seconds
from tenure._keys import MAX_INSTANCE_LENGTH, check_key
from tenure.cli.addresses import from_words
from tenure.cli.endings import Stop, say
from tenure.cli.json_lines import as_json
from tenure.cli.spans import read_span

__all__ = ["run"]

_USAGE: Final = "tenure run [URL] KEY -- COMMAND ..."


def run(  # noqa: PLR0913 -- one argument an option of the command line
    words: Annotated[list[str] | None, typer.Argument(metavar="[URL] KEY -- COMMAND...", show_default=False)] = None,
    *,
    ttl: Annotated[
        str, typer.Option("--ttl", envvar="TENURE_TTL", help="How long the lock lives without a renewal.")
    ] = "30s",
    wait: Annotated[str, typer.Option("--wait", "-w", help="How long to wait for the lock; `forever` too.")] = "0",
    kill_after: Annotated[
        str, typer.Option("--kill-after", "-k", help="When the lease is lost: SIGKILL so long after SIGTERM.")
    ] = "10s",
    conflict_exit_code: Annotated[
        int, typer.Option("--conflict-exit-code", "-E", min=0, max=255, help="The code where the lock is another's.")
    ] = 1,
    on_one_instance: Annotated[
        bool, typer.Option("--on-one-instance", help="Keep the job on this host between runs; see above.")
    ] = False,
    instance: Annotated[
        str | None,
        typer.Option("--instance", envvar="TENURE_INSTANCE", help="The name that `ls` shows.", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing where the lock is another's.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write one line of JSON to stderr at the end.")] = False,
) -> None:
    """
    Run a program under a lock, with TENURE_KEY and TENURE_TOKEN (the fencing token) in its environment.

    The lock is renewed while the program runs. Signals are passed on to it; it has a session of its own, without a
    controlling terminal. When the lease is lost it gets SIGTERM, and SIGKILL after --kill-after; so it does when this
    process is killed, or does not run until the lease's deadline. What it leaves in the background when it ends by
    itself is not waited for, and runs without the lock.

    Exit codes: the program's own (128 + N where signal N ended it); 1, or -E, where the lock is another's; 2 wrong
    usage; 69 the store failed; 70 the lease was lost; 126 the program cannot be run; 127 it was not found.

    With --on-one-instance, for a scheduler that fires on several hosts: the host whose tick comes first runs it, the
    others exit with 1 (or -E). It takes the job's lease (KEY:owner), which it leaves in the store for --ttl from the
    end of the run, and it takes KEY for the length of the run. So give a --ttl above what the hosts' ticks are apart.
    If it is shorter than the time between two ticks, any host may run the next one. If it is longer, the same host runs
    it; when that is gone, ticks are skipped until the --ttl has passed. A tick that meets a run still in progress is
    skipped; --wait is for that one. Hosts are told apart by --instance (the host's name) and by their machine ids.
    `@on_one_instance(KEY)` in a Python service takes the same leases.

    JSON, on stderr: {"key", "outcome": "ran", "held", "lost" or "interrupted", "exit_code", "token" or null,
    "command_exit_code" or null}
    """
    if os.name != "posix":
        raise Stop("`tenure run` needs POSIX signals and process groups, which this system has not.")
    from tenure.cli.run.holding import Order, run_under_lock

    address, rest = from_words(words or [], _USAGE)
    if len(rest) < 2:
        raise Stop(f"{'The command' if rest else 'KEY'} is missing: `{_USAGE}`.")
    order = Order(
        address=address,
        key=check_key(rest[0]),
        command=rest[1:],
        ttl=_checked_ttl(ttl),
        wait=to_seconds(read_span(wait), name="--wait"),
        kill_after_s=_finite(kill_after),
        instance=instance or (socket.gethostname()[-MAX_INSTANCE_LENGTH:] if on_one_instance else None),
        on_one_instance=on_one_instance,
        conflict_code=conflict_exit_code,
    )
    ending = asyncio.run(run_under_lock(order))
    if json:
        shape = {
            "key": order.key,
            "outcome": ending.outcome,
            "exit_code": ending.code,
            "token": ending.token,
            "command_exit_code": ending.command_code,
        }
        sys.stderr.write(f"{as_json(shape)}\n")
    elif ending.told is not None and not (quiet and ending.outcome == "held"):
        say(ending.told)
    raise typer.Exit(ending.code)


def _checked_ttl(text: str) -> str | float:
    ttl = read_span(text)
    to_ms(ttl, name="--ttl")
    return ttl


def _finite(text: str) -> float:
    return to_ms(read_span(text), name="--kill-after", at_least_ms=0) / 1000
