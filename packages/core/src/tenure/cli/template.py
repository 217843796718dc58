"""`tenure new-store`: the start of a store of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.endings import Stop
from tenure.cli.json_lines import print_json
from tenure.cli.new_store import new_store as write_package

__all__ = ["new_store"]


def new_store(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as `etcd` or `cloud-table`.")],
    *,
    directory: Annotated[Path, typer.Option("--directory", "-d", help="Where the package is written.")] = Path(),
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """
    Write a package for a new store: a skeleton, and tests that fail one by one until the store is right.

    JSON: {"name", "package": the directory that was written}
    """
    try:
        package = write_package(name, directory)
    except OSError as error:
        raise Stop(f"The package cannot be written ({error.strerror}: {error.filename!r}).") from error
    if json:
        print_json({"name": name, "package": str(package)})
    else:
        typer.echo(f"Wrote {package}. Its README says how to begin; its tests fail until the store is right.")
