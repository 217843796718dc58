"""
The `tenure` command: look at locks, free one by hand, and run any program under one.

It needs the extra: `pip install 'tenure[cli]'`. `import tenure` loads nothing of it.
"""

import sys

__all__ = ["main"]

_MISTAKE = 2


def main() -> None:
    """Run the command line; without the libraries that it needs, say what to install and exit with 2."""
    try:
        from tenure.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.stderr.write(f"tenure: the command needs {error.name}, which is not installed: pip install 'tenure[cli]'\n")
        sys.exit(_MISTAKE)
    app(prog_name="tenure")
