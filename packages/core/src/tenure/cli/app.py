"""
The commands, and those that stores bring with them. Each is imported when it is asked for, or the list of all is.

A store adds a command by an entry point in the group `tenure.commands`: its name is the command's, and what it names
is a function as typer takes one. What it raises as a `TenureError` ends the command with one line and exit code 2; for
another ending it raises `tenure.cli.endings.Stop`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, Final, Protocol, final, runtime_checkable

import typer
from typer.core import TyperGroup

from tenure.cli.endings import MISTAKE, NOT_SO, OK, Stop, say
from tenure.errors import TenureError

__all__ = ["app"]

_GROUP: Final = "tenure.commands"

_OURS: Final = {
    "check": "tenure.cli.check:check",
    "ls": "tenure.cli.listing:ls",
    "watch": "tenure.cli.watch:watch",
    "show": "tenure.cli.listing:show",
    "release": "tenure.cli.release:release",
    "run": "tenure.cli.run:run",
    "new-store": "tenure.cli.template:new_store",
}
"""The commands, in the order in which help has them: where each is. `run` needs no tables, and is up sooner without."""

_INTERRUPTED: Final = 130
"""What a shell says of a program that SIGINT ended."""


@runtime_checkable
class _Misused(Protocol):
    """What a mistake in the arguments is raised as. Its class has no public name that every typer has."""

    exit_code: int

    def format_message(self) -> str: ...


@final
class _Group(TyperGroup):
    """The group of commands: with those of plugins, and with one line for whatever goes wrong."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002, FBT002 -- as in the class that it overrides
        windows_expand_args: bool = True,  # noqa: FBT002 -- likewise
        **extra: Any,
    ) -> Any:
        """Run a command and exit, with its code."""
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(
                given or ["--help"],
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
        except (Stop, TenureError) as error:
            say(str(error))
            code = error.code if isinstance(error, Stop) else MISTAKE
        except (typer.Abort, KeyboardInterrupt):
            code = _INTERRUPTED
        except BrokenPipeError:
            code = _end_unread()
        except Exception as error:
            if not isinstance(error, _Misused):
                raise
            say(f"{error.format_message()} See `{_help_of(prog_name, given)}`.")
            code = error.exit_code
        sys.exit(code if isinstance(code, int) else OK)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 -- as in the class that it overrides
        """Name every command, those of plugins behind ours."""
        return [*_OURS, *sorted(set(_plugins()) - set(_OURS))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 -- likewise
        """Find a command, importing it where a plugin brings it."""
        place = _OURS.get(cmd_name) or _plugins().get(cmd_name)
        return None if place is None else _load(cmd_name, place)


def _end_unread() -> int:
    """End where the reader of the output went away, as behind `| head`; Python is not to complain at its own end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return NOT_SO


def _help_of(prog_name: str | None, given: Sequence[str]) -> str:
    name = prog_name or "tenure"
    return f"{name} {given[0]} --help" if given and given[0] in {*_OURS, *_plugins()} else f"{name} --help"


def _plugins() -> dict[str, str]:
    return {plugin.name: plugin.value for plugin in entry_points(group=_GROUP)}


def _load(name: str, place: str) -> Any:
    module, _, function = place.partition(":")
    command: Callable[..., Any] = getattr(import_module(module), function)
    # A command of its own is what typer makes of an application that has one.
    single = typer.Typer(add_completion=False, rich_markup_mode="markdown", context_settings=_HELP)
    single.command(name)(command)
    return typer.main.get_command(single)


_HELP: Final = {"help_option_names": ["-h", "--help"]}


app = typer.Typer(
    cls=_Group,
    name="tenure",
    help="Look at locks, free one by hand, and run any program under one.",
    epilog="The URL of the store may be left out where the variable TENURE_STORE has it. Exit codes: 0 it went well, "
    "1 what was asked about is not so, 2 wrong usage or a store that cannot be reached; `run` has codes of its own.",
    # Its traceback shows the values of variables: a URL with its password is among them.
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings=_HELP,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        sys.stdout.write(f"tenure {version('tenure')}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
