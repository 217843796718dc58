"""
What the site does beyond what its pages say: the packages' READMEs are pages of it, and every link leads somewhere.

A document is read in two places, beside the sources and on the site, and its links are those of the repository. On the
site a link to another page becomes one; a link to a source becomes its text, for the site has no sources.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]

READMES = {f"packages/{name}.md": f"packages/{name}/README.md" for name in (
    "core", "store-postgres", "store-valkey", "store-sqlite",
)}  # fmt: skip
"""Pages of the site, and the files of the repository that they are."""

_PAGES = {repository: page for page, repository in READMES.items()}
_LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")


def on_files(files: Files, config: Any) -> Files:
    """Add the READMEs."""
    for page, repository in READMES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / repository)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001 -- mkdocs names them
    """Lead links to where they are on the site."""
    at = page.file.src_uri
    here = READMES.get(at, f"docs/{at}")
    known = set(files.src_uris)
    lines, fence = [], ""
    for line in markdown.splitlines():
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark[1]
        lines.append(line if fence or mark else _LINK.sub(lambda link: _led(link, here, at, known), line))
    return "\n".join(lines)


def _led(link: "re.Match[str]", here: str, at: str, known: set[str]) -> str:
    path, mark, anchor = link["target"].partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link[0]
    repository = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    target = _PAGES.get(repository) or repository.removeprefix("docs/")
    if target in known and (repository.startswith("docs/") or repository in _PAGES):
        return f"{link['text']}({posixpath.relpath(target, posixpath.dirname(at) or '.')}{mark}{anchor})"
    if not (ROOT / repository).exists():
        return link[0]  # which the build then finds
    return link["text"].strip("![]")
