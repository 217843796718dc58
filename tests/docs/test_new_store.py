"""What docs/new-store.md quotes stands in the sources; what it names is there."""

import re
from pathlib import Path

import pytest

from tenure import store

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/new-store.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"<!-- quoted: (\S+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL)


def test_something_is_quoted() -> None:
    assert len(QUOTED) >= 5


@pytest.mark.parametrize(("path", "text"), QUOTED, ids=[path.rpartition("/")[2] for path, _ in QUOTED])
def test_what_is_quoted_stands_in_its_file(path: str, text: str) -> None:
    assert text in (ROOT / path).read_text(encoding="utf-8")


def test_the_capabilities_are_those_of_the_contract() -> None:
    told = re.findall(r"^\| `(\w+)` \| `(\w+)\(", TEXT, re.MULTILINE)
    for protocol, method in told:
        assert hasattr(getattr(store, protocol), method), (protocol, method)
    assert {protocol for protocol, _ in told} == {
        "RenewsMany", "ListsLocks", "ChecksServer", "WakesWaiters", "QueuesWaiters",
    }  # fmt: skip


def test_the_rules_are_as_many_as_the_contract_has() -> None:
    assert re.findall(r"^\| (\d+)\. ", TEXT, re.MULTILINE) == [str(number) for number in range(1, 11)]
