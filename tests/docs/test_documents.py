"""
The documents, held to the program: their examples run, their commands exist, their links lead somewhere.

Each document's ```python blocks run in their order, in one namespace, as one script in a process of its own. The
script has each block on the line where the document has it, so that a traceback names the document's line. A URL of
a PostgreSQL in a block leads to a database of the test's own, which is empty where the document creates the locks
table itself, and has the table elsewhere. A block that cannot run here says why, in the line before it:

    <!-- not run: it needs an Alembic project -->
"""

import ast
import dataclasses
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cat_store.settings import VARIABLES
from tenure.config import TenureConfig
from tenure_postgres import create_schema_sql
from tenure_testbed.postgres_access import database_of

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^\s*(?P<marks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
_NOT_RUN = re.compile(r"^\s*<!-- not run: (?P<reason>\S.*?) -->\s*$")
# Not one that the example makes itself, of a server that it started: f"postgresql://…:{port}/…".
_POSTGRES = re.compile(r"postgresql(?P<driver>\+asyncpg)?://(?![^\s\"'`)]*\{)[^\s\"'`)]+")
_LINK = re.compile(
    r"\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s*(?P<reference>\S+)", re.MULTILINE
)
_INLINE_COMMAND = re.compile(r"(?<!`)`(uv run [^`\n]+)`(?!`)")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*$", re.MULTILINE)
_HOST = re.compile(r"https?://(?:[^/\s@]*@)?(?P<host>[\w.-]+)")

_SHELLS = frozenset({"sh", "bash", "console", "shell"})

_SETTINGS = frozenset(
    [variable.full_name for variable in VARIABLES.values()]
    + [f"TENURE_{setting.name.upper()}" for setting in dataclasses.fields(TenureConfig)]
)
"""Variables of the environment that something here reads."""

_EXAMPLE_S = 60
"""How long a document's examples may take, in seconds: they are a few calls each, and CI machines stall."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1"})
_SOURCES = frozenset(
    {"docs.python.org", "www.postgresql.org", "docs.sqlalchemy.org", "docs.astral.sh", "martin.kleppmann.com"}
)
"""Where the documents may point outside: primary sources that stay. Everything else belongs into the repository."""

_ONE_MACHINE = re.compile(r"(?<![\w.:/~-])/(?:home|root|Users|tmp|opt|mnt|media|work|workspace)/[\w.-]+|[A-Z]:\\")
"""A path that exists on the machine of whoever wrote it."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins (the line of its fence, from 1), what is in it, and why it is not run."""

    document: str
    line: int
    language: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def _documents() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        # What is hidden is no document of ours (environments, caches); what is built is a copy.
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in ("build", "dist"))
        yield from (Path(folder) / name for name in sorted(files) if name.endswith(".md"))


def _blocks(path: Path) -> Iterator[Block]:
    lines = path.read_text(encoding="utf-8").splitlines()
    document, at = path.relative_to(ROOT).as_posix(), 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            at += 1
            continue
        end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == fence["marks"]), None)
        assert end is not None, f"{document}:{at + 1}: the fence is not closed"
        before = _NOT_RUN.match(lines[at - 1]) if at else None
        text = textwrap.dedent("\n".join(lines[at + 1 : end]))
        yield Block(document, at + 1, fence["language"], text, before and before["reason"])
        at = end + 1


DOCUMENTS = {path.relative_to(ROOT).as_posix(): path for path in _documents()}
BLOCKS = [block for path in DOCUMENTS.values() for block in _blocks(path)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
RUN = {name: [block for block in PYTHON if block.document == name and not block.not_run] for name in DOCUMENTS}


def _prose(path: Path) -> str:
    """A document without its code, where brackets mean something else."""
    kept, closing = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        fence = _FENCE.match(line)
        if closing:
            closing = "" if line.strip() == closing else closing
        elif fence is not None:
            closing = fence["marks"]
        else:
            kept.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(kept)


def _commands() -> Iterator[str]:
    """Every command line of the documents: of shell blocks, and `uv run …` in a sentence or a table."""
    for block in BLOCKS:
        if block.language in _SHELLS:
            yield from (line.removeprefix("$ ") for line in block.text.splitlines())
    for path in DOCUMENTS.values():
        yield from _INLINE_COMMAND.findall(path.read_text(encoding="utf-8"))


COMMANDS = sorted({words for line in _commands() if (words := tuple(shlex.split(line, comments=True)))})


def _anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as code hosts make them."""
    text = re.sub(r"^(`{3,}).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = (heading["text"].replace("`", "").lower() for heading in _HEADING.finditer(text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


# ------------------------------------------------------------------------------------------ examples


def _script(blocks: list[Block], postgres_url: str | None) -> str:
    database = (postgres_url or "").partition("://")[2]

    def lead_to_the_database(found: re.Match[str]) -> str:
        return f"postgresql{found['driver'] or ''}://{database}"

    lines = [""] * max(block.line + len(block.text.splitlines()) for block in blocks)
    for block in blocks:
        text = _POSTGRES.sub(lead_to_the_database, block.text).splitlines()
        lines[block.line : block.line + len(text)] = text
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("document", [name for name, blocks in RUN.items() if blocks])
def test_the_python_examples_of_a_document_run_in_their_order(
    document: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    blocks = RUN[document]
    code = "\n".join(block.text for block in blocks)
    url = request.getfixturevalue("postgres_url") if _POSTGRES.search(code) else None
    if url is not None and "create_schema_sql()" not in code:
        request.getfixturevalue("postgres_server").execute(create_schema_sql(), database_of(url))
    script = tmp_path / (document.replace("/", "-") + ".py")
    script.write_text(_script(blocks, url), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    run = subprocess.run(
        # One exception: advanced-alchemy, which Litestar looks for, uses a decorator that SQLAlchemy has retired.
        [sys.executable, "-W", "error", "-W", "ignore:The declarative_mixin decorator", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_EXAMPLE_S,
        check=False,
    )
    assert run.returncode == 0, f"{document}\n{run.stdout}{run.stderr}"
    # What a reader would copy along without noticing: a resource left open, an error that nobody looked at.
    assert "Exception ignored" not in run.stderr, run.stderr
    assert "was never retrieved" not in run.stderr, run.stderr


@pytest.mark.parametrize("block", [block for block in PYTHON if block.not_run], ids=str)
def test_a_python_example_that_is_not_run_is_at_least_python(block: Block) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    pytest.skip(f"{block}: {block.not_run}")


def test_an_example_that_fails_is_reported_with_the_line_of_its_document(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text("# A\n\n```python\nx = 1\n```\n\nThen:\n\n```python\nassert x == 2\n```\n", encoding="utf-8")
    blocks = [Block("README.md", 3, "python", "x = 1", None), Block("README.md", 9, "python", "assert x == 2", None)]
    script = _script(blocks, None)
    assert script.splitlines()[9] == document.read_text(encoding="utf-8").splitlines()[9] == "assert x == 2"


# ------------------------------------------------------------------------------------------ commands


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return settings


def _check_pytest(words: list[str], project: dict[str, Any]) -> None:
    markers = {line.partition(":")[0] for line in project["pytest"]["ini_options"]["markers"]}
    for option, value in itertools.pairwise(words):
        if option == "-m":
            assert value in markers, f"pytest has no marker {value!r}"
    for path in (word.rpartition("=")[2].partition("::")[0] for word in words):
        assert "/" not in path or (ROOT / path).exists(), f"{path} does not exist"


def _check_options(program: str, words: list[str]) -> None:
    """Every option of a command stands in the command's own help."""
    command = [program, *(word for word in words[:1] if not word.startswith("-"))]
    # Behind a -- stand words of another program.
    words = words[: words.index("--")] if "--" in words else words
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=_EXAMPLE_S, check=False)
    assert told.returncode == 0, f"{' '.join(words)}: {told.stderr}"
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert option in told.stdout, f"{' '.join(words)}: there is no {option}"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_a_document_exists(words: tuple[str, ...], project: dict[str, Any]) -> None:
    command = [word for word in words if word != "export"]
    while command and (setting := re.match(r"([A-Z][A-Z0-9_]*)=", command[0])):
        assert setting[1] in _SETTINGS, f"{setting[1]} is no setting"
        command.pop(0)
    if command[:1] == ["tenure"]:  # which an installation brings, and the workspace has
        command = ["uv", "run", *command]
    if command[:2] != ["uv", "run"]:
        known = ("pip", "uv", "git", "psql", "docker")
        assert not command or command[0] in known, f"{command[0]} is not introduced anywhere"
        return
    if command[2] == "--group":
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
        assert command[3] in groups, f"there is no group {command[3]!r}"
        del command[2:4]
    name, *rest = command[2:]
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    assert program is not None, f"uv run has no {name}"
    if name == "poe":
        assert rest[0] in project["poe"]["tasks"], f"poe has no task {rest[0]!r}"
    elif name == "pytest":
        _check_pytest(rest, project)
    elif name in {"cat-store", "tenure"}:
        # What stands behind `--` is the options of another program.
        _check_options(program, list(itertools.takewhile(lambda word: word != "--", rest)))


# --------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_relative_link_leads_to_a_file_and_a_heading(document: str) -> None:
    path = DOCUMENTS[document]
    for link in _LINK.finditer(_prose(path)):
        target = link["target"] or link["reference"]
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{document}: {target} leads to nothing"
        assert found.is_relative_to(ROOT), f"{document}: {target} leads out of the repository"
        if anchor:
            assert anchor in _anchors(found), f"{document}: {target} names a heading that is not there"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_no_place_that_only_its_writer_has(document: str) -> None:
    text = DOCUMENTS[document].read_text(encoding="utf-8")
    assert not (found := _ONE_MACHINE.search(text)), f"{document} names {found[0]}"
    hosts = {found["host"] for found in _HOST.finditer(text)}
    strange = {host for host in hosts - _LOOPBACK - _SOURCES if not re.search(r"(^|\.)example(\.\w+)?$", host)}
    assert not strange, f"{document} points to {', '.join(sorted(strange))}"


@pytest.mark.parametrize(
    ("text", "names_one"),
    [
        ("see /home/anna/tenure", True),
        ("in `/tmp/report.json`", True),
        ("`C:\\tenure`", True),
        ("GET /orders/4711", False),
        ("packages/core/tmp/x", False),
        ("https://example.org/home/anna", False),
    ],
)
def test_a_path_of_one_machine_is_recognised(text: str, names_one: bool) -> None:
    assert bool(_ONE_MACHINE.search(text)) is names_one
