"""
A package for a new store, written from a template: a skeleton with the rules of the contract where each belongs, and
tests that fail one by one until the store is right.

The template is a tree of files under `template/`, whose names and texts hold the words of `Names` between two `@`.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Final

from tenure.errors import ConfigurationError

__all__ = ["new_store"]

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_LONGEST: Final = 24
"""Longer, and lines of what is written are longer than its own formatter leaves them."""

_TAKEN: Final = frozenset(
    {"memory", "postgres", "postgresql", "redis", "rediss", "sqlite", "testbed", "valkey", "valkeys", "cli", "core"}
)
"""Names of stores and schemes that are there, or that a reader would take for them."""

_WORD: Final = re.compile(r"@([a-z_]+)@")


def new_store(name: str, directory: Path) -> Path:
    """
    Write the package `tenure-<name>` for a store that is to be written.

    Args:
        name: Lower-case letters, digits and single hyphens, beginning with a letter: `etcd`, `cloud-table`. It becomes
            the distribution `tenure-cloud-table`, the module `tenure_cloud_table`, the class `CloudTableLockStore` and
            the scheme `cloud-table://`.
        directory: Where the package's own directory is made; it exists.

    Returns:
        The directory that was written, `directory / "tenure-<name>"`.

    Raises:
        ConfigurationError: The name cannot be one or is taken, *directory* is none, or there is something already at
            the package's directory: nothing is overwritten.
        OSError: A file cannot be written.
    """
    _check_name(name)
    if not directory.is_dir():
        raise ConfigurationError(f"{directory} is no directory: make it first, or give another one.")
    target = directory / f"tenure-{name}"
    if target.exists():
        raise ConfigurationError(
            f"{target} exists already, and nothing is overwritten: give another name or another directory, or move it "
            "out of the way."
        )
    words = _words_of(name)
    # Read wholly before the first file is written: a mistake in the template leaves nothing half done.
    files = {_fill(str(path), words): _fill(text, words) for path, text in _template()}
    for path, text in files.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
    return target


def _check_name(name: str) -> None:
    if name.startswith("tenure-"):
        raise ConfigurationError(f'The name is {name!r}: leave "tenure-" out, the package gets it by itself.')
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"The name is {name[: _LONGEST + 1]!r}: give lower-case letters, digits and single hyphens, beginning with "
            f'a letter, {_LONGEST} characters at most, such as "etcd" or "cloud-table".'
        )
    if name in _TAKEN:
        raise ConfigurationError(
            f"The name {name!r} is taken, by a package of tenure or by a URL's scheme. Give another."
        )


def _words_of(name: str) -> Mapping[str, str]:
    version = metadata.version("tenure")
    major, minor = [*version.split("."), "0"][:2]
    module = name.replace("-", "_")
    return {
        "name": name,
        "module": f"tenure_{module}",
        "short": module,
        "variable": f"TENURE_{module.upper()}_TEST_URL",
        "store": "".join(part.capitalize() for part in name.split("-")) + "LockStore",
        "core": f"{major}.{minor}.0",
    }


def _fill(text: str, words: Mapping[str, str]) -> str:
    return _WORD.sub(lambda found: words[found[1]], text)


def _template() -> Iterator[tuple[PurePosixPath, str]]:
    return _files(resources.files(__name__) / "template", PurePosixPath())


def _files(folder: Traversable, at: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield each file under *folder*, without the suffix that keeps tools from taking it for one of this package."""
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            yield from _files(entry, at / entry.name)
        elif entry.name.endswith(".tmpl"):
            yield at / entry.name.removesuffix(".tmpl"), entry.read_text(encoding="utf-8")
