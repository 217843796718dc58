"""What SECURITY.md says is tested is where it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
HEADING = "## What is tested, and where"


def rows() -> list[tuple[str, list[str]]]:
    """Each line of the table, with the paths that it names."""
    section = DOCUMENT.partition(HEADING)[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [(what.strip(), re.findall(r"`([^`]+)`", where)) for what, where in cells[2:]]


def test_every_line_names_tests_that_are_there() -> None:
    assert len(rows()) == 12
    for what, paths in rows():
        assert paths, what
        for path in paths:
            assert (ROOT / path).is_file(), f"{what}: there is no {path}"


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("test_*.py")), ids=lambda path: path.stem)
def test_every_test_of_security_is_in_the_table(path: Path) -> None:
    named = {name for _, paths in rows() for name in paths}
    assert path.name == Path(__file__).name or path.relative_to(ROOT).as_posix() in named


def test_every_file_that_the_document_names_is_there() -> None:
    for path in re.findall(r"`((?:\.github|tests|packages|apps|docs)/[\w./-]+)`", DOCUMENT):
        assert (ROOT / path).exists(), path
