"""
The habits that the documents state, held to the sources: floors, names, sizes, settings, events, fragments.

A document that says how the repository is built is wrong from the day on which somebody changes one of the two.
"""

import ast
import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import config, events

ROOT = Path(__file__).resolve().parents[2]

# "About 400" and "about 50", as CONTRIBUTING says, with a fifth of slack: a rule that stops a commit over one line
# teaches to save lines.
_LONGEST_FILE = 480
_LONGEST_TESTS = 600  # facts about one subject stay together
_LONGEST_FUNCTION = 60
_LARGEST_BYTES = 1_000_000  # twice uv.lock: what is larger is a build or a recording

_FORBIDDEN_NAMES = frozenset({"utils", "common", "base", "helpers", "manager"})
_FRAGMENT = re.compile(r"(\d+|\+[\w-]+)\.(feature|bugfix|doc|removal|misc)(\.\d+)?\.md|\.gitignore|\.gitkeep")
_WORD = re.compile(r"`([^`\n]+)`")


def _files(pattern: str) -> Iterator[Path]:
    for top in ("packages", "apps", "tests", "docs"):
        for path in sorted((ROOT / top).rglob(pattern)):
            if not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts):
                yield path


SOURCES = list(_files("*.py"))


def _ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under the header row that begins with *heading*."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


# ------------------------------------------------------------------------------- documents and sources


def test_the_floors_of_the_architecture_are_those_that_import_linter_holds() -> None:
    contracts = tomllib.loads(_text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rows = _rows(_text("docs/architecture.md"), "floor")
    assert [row[0].replace("\\|", "|").strip("`") for row in rows] == layers


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md", "GLOSSARY.md"])
def test_every_file_that_a_document_names_exists(document: str) -> None:
    names = {path.name for path in [*SOURCES, *_files("*.sql"), *ROOT.glob("*")]}
    for word in _WORD.findall(_text(document)):
        if re.fullmatch(r"\w+\.(py|sql|toml|md)", word):
            assert word in names, f"{document} names {word}"


def test_every_function_that_the_architecture_names_exists() -> None:
    defined = {"cat_store", "tenure", "tenure_postgres", "tenure_sqlite", "tenure_testbed", "tenure_valkey"}
    for path in SOURCES:
        if "src" in path.parts:
            defined |= _names(path)
    for word in _WORD.findall(_text("docs/architecture.md")):
        if re.fullmatch(r"[A-Z]\w+\.\w+(\(\))?|_[a-z]\w+\(?\)?|[A-Z][a-z]+[A-Z]\w+", word):
            for name in word.removesuffix("()").split("."):
                assert name in defined, f"docs/architecture.md names {word}"


def _names(path: Path) -> set[str]:
    """Everything that a module defines, by its last name; and the module itself."""
    names = {path.stem}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return names


def test_the_variables_of_the_readme_are_the_settings_of_the_config() -> None:
    told = [row[0].strip("`") for row in _rows(_text("packages/core/README.md"), "variable")]
    settings = [f"TENURE_{setting.name.upper()}" for setting in dataclasses.fields(config.TenureConfig)]
    assert sorted(told) == sorted(settings)


def test_the_events_of_the_readme_are_those_that_there_are() -> None:
    rows = _rows(_text("packages/core/README.md"), "about")
    told = [word for row in rows for word in _WORD.findall(row[1])]
    assert sorted(told) == sorted(set(events.__all__) - {"Event", "IdempotencyOutcome", "SkipReason"})


# ------------------------------------------------------------------------------------ sizes and names


def test_every_file_is_small_enough_to_be_read_at_once() -> None:
    lengths = {_ids(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {name: lines for name, lines in lengths.items() if lines > _longest(name)}


def _longest(name: str) -> int:
    return _LONGEST_TESTS if "/tests/" in f"/{name}" else _LONGEST_FILE


def test_every_function_is_small_enough_to_be_read_at_once() -> None:
    long = [f"{_ids(path)}: {name} has {lines} lines" for path in SOURCES for name, lines in _functions(path)]
    assert not long


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file that are too long, with their lines after the docstring."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
            lines = (node.end_lineno or 0) - first.lineno + 1
            if lines > _LONGEST_FUNCTION:
                yield node.name, lines


def test_no_file_is_named_for_having_no_subject() -> None:
    assert not [path for path in SOURCES if path.stem.strip("_") in _FORBIDDEN_NAMES]


def test_nothing_large_is_kept_here() -> None:
    large = [_ids(path) for path in _files("*") if path.is_file() and path.stat().st_size > _LARGEST_BYTES]
    assert not large


def test_every_statement_stands_alone_and_its_first_comment_says_why() -> None:
    for path in _files("*.sql"):
        lines = path.read_text(encoding="utf-8").splitlines()
        code = "\n".join(line.partition("--")[0] for line in lines).strip().removesuffix(";")
        assert lines[0].startswith("-- "), f"{_ids(path)} does not begin with its reason"
        assert ";" not in code, f"{_ids(path)} holds more than one statement"


# --------------------------------------------------------------------------- changelogs, track record


@pytest.mark.parametrize(
    "package", sorted((ROOT / "packages").glob("*/pyproject.toml")), ids=lambda path: path.parent.name
)
def test_the_changelog_of_a_package_can_be_built(package: Path) -> None:
    changelog = (package.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.startswith("# Changelog\n")
    assert "<!-- towncrier release notes start -->\n" in changelog
    for fragment in (package.parent / "changes").glob("*"):
        assert _FRAGMENT.fullmatch(fragment.name), f"{_ids(fragment)}: it is <issue>.<kind>.md"
        assert fragment.name.startswith(".") or fragment.read_text(encoding="utf-8").strip()


def test_every_bug_of_the_track_record_has_a_test_that_is_there() -> None:
    for found_by, since, wrong, reproduces in _rows(_text("tests/TRACK_RECORD.md"), "found by"):
        assert all((found_by, since, wrong)), f"an empty cell beside {reproduces}"
        for path, name in re.findall(r"`([\w./-]+\.py)::(\w+)", reproduces):
            assert name in _names(ROOT / path), f"{path} has no {name}"
        assert "::" in reproduces, f"{wrong}: say which test fails without the fix"
