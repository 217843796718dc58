"""
What runs where the repository is hosted: pinned by commit, with a token that reads, and nobody's words in a shell.

The rules are functions of a workflow's content, and are shown planted bugs beside the real files.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted([*FOLDER.glob("*.yml"), *FOLDER.glob("*.yaml")])

_PINNED = re.compile(r"^\s*(?:- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+){1,2}$")
# What is ours to write: numbers and names that no stranger chooses. Everything else goes through `env`.
_HARMLESS = re.compile(r"\$\{\{\s*(runner\.\w+|github\.(sha|run_id|run_number|run_attempt))\s*\}\}")
# Started by a stranger's pull request or comment, with the rights of the repository.
_DANGEROUS = frozenset({"pull_request_target", "workflow_run", "issue_comment", "issues", "discussion", "fork"})


def steps(workflow: Any) -> Iterator[Any]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [])


def triggers(workflow: Any) -> set[str]:
    # YAML 1.1 reads the word `on` as true.
    on = workflow.get("on", workflow.get(True))
    return {on} if isinstance(on, str) else set(on)


def is_publishing(workflow: Any, name: str, job: Any) -> bool:
    """Whether a job is the one that publishes a tag: it may prove who it is, and writes nothing."""
    rights = {"contents": "read", "actions": "read", "id-token": "write"}
    by_a_tag = workflow.get("on", workflow.get(True)) == {"push": {"tags": ["v*"]}}
    return name == "publish" and by_a_tag and job["permissions"] == rights and job.get("environment") == "release"


def faults_of(text: str) -> list[str]:
    """Find what a workflow must not do."""
    workflow = yaml.safe_load(text)
    found = [
        f"an action that is not pinned by its commit, with its version: {line.strip()}"
        for line in text.splitlines()
        if re.match(r"\s*(- )?uses:", line) and not _PINNED.match(line)
    ]
    if workflow.get("permissions") != {"contents": "read"}:
        found.append("its token may do more than to read, or nobody said what it may do")
    found += [
        f"{name} has rights of its own"
        for name, job in workflow["jobs"].items()
        if "permissions" in job and not is_publishing(workflow, name, job)
    ]
    found += [f"{name} may run for hours" for name, job in workflow["jobs"].items() if "timeout-minutes" not in job]
    found += [f"it is started by {trigger}" for trigger in sorted(triggers(workflow) & _DANGEROUS)]
    for step in steps(workflow):
        if "${{" in _HARMLESS.sub("", str(step.get("run", ""))):
            found.append(f"an expression in a shell: {step['run']}")
        if "actions/checkout" in step.get("uses", "") and step.get("with", {}).get("persist-credentials") is not False:
            found.append("the checkout leaves its token behind")
        if "secrets." in str(step):
            found.append("a secret")
        if re.search(r"curl[^\n|]*\|\s*(ba)?sh|wget[^\n|]*\|\s*(ba)?sh", str(step.get("run", ""))):
            found.append("what was fetched a moment ago is run")
        for line in str(step.get("run", "")).splitlines():
            if re.search(r"\bpip[\"']? install", line) and "--require-hashes" not in line:
                found.append(f"a package without its hash: {line.strip()}")
    return found


def test_there_are_these_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == ["audit", "ci", "docs", "nightly", "release", "servers"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_does_nothing_that_it_must_not(path: Path) -> None:
    assert faults_of(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_has_one_commit_everywhere(path: Path) -> None:
    def pins(text: str) -> dict[str, str]:
        return dict(re.findall(r"uses: ([\w./-]+)@(\S+ # \S+)", text))

    everywhere = {name: pin for each in WORKFLOWS for name, pin in pins(each.read_text(encoding="utf-8")).items()}
    for name, pin in pins(path.read_text(encoding="utf-8")).items():
        assert everywhere[name] == pin


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_tools_of_a_workflow_have_one_version_and_their_hashes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    assert entries
    for entry in entries:
        assert re.match(r"[\w.-]+==[\w.]+ (; .+ )?\\\n", entry), entry.splitlines()[0]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]
    assert any(path.name in workflow.read_text(encoding="utf-8") for workflow in WORKFLOWS)


def test_ci_runs_what_everybody_runs() -> None:
    workflow = yaml.safe_load((FOLDER / "ci.yml").read_text(encoding="utf-8"))
    assert ".ci/run" in [step.get("run") for step in steps(workflow)]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, "it can be run"
    assert triggers(workflow) == {"push", "pull_request"}


SOUND = """
on: push
permissions:
  contents: read
jobs:
  one:
    timeout-minutes: 5
    steps:
      - uses: actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8 # v5.0.0
        with:
          persist-credentials: false
      - run: echo "$TITLE"
        env:
          TITLE: ${{ github.event.pull_request.title }}
"""

PLANTED = {
    "a tag": ("@08c6903cd8c0fde910a37f88322edcfb5dd907a8 # v5.0.0", "@v5"),
    "a short commit": ("@08c6903cd8c0fde910a37f88322edcfb5dd907a8", "@08c6903"),
    "no version beside the commit": (" # v5.0.0", ""),
    "no permissions": ("permissions:\n  contents: read\n", ""),
    "a token that writes": ("contents: read", "contents: write"),
    "a job with rights of its own": ("timeout-minutes: 5", "timeout-minutes: 5\n    permissions: write-all"),
    "no time limit": ("    timeout-minutes: 5\n", ""),
    "a stranger's pull request": ("on: push", "on: [push, pull_request_target]"),
    "a title in a shell": ('"$TITLE"', '"${{ github.event.pull_request.title }}"'),
    "a branch in a shell": ('"$TITLE"', '"${{ github.head_ref }}"'),
    "a token that is left behind": ("persist-credentials: false", "persist-credentials: true"),
    "a secret": ("github.event.pull_request.title", "secrets.TOKEN"),
    "a script from elsewhere": ('echo "$TITLE"', "curl -sSf install.example | sh"),
    "a package without its hash": ('echo "$TITLE"', "pip install uv"),
}


@pytest.mark.parametrize(
    ("sound", "broken"),
    [
        ("id-token: write", "id-token: write\n      packages: write"),
        ("contents: read\n      actions", "contents: write\n      actions"),
        ("    environment: release\n", ""),
        ('tags: ["v*"]', "branches: [main]"),
        ("  publish:\n", "  other:\n"),
    ],
    ids=["another right", "a token that writes", "nobody says yes", "by a push", "another job"],
)
def test_the_rights_of_the_release_are_its_own(sound: str, broken: str) -> None:
    text = (FOLDER / "release.yml").read_text(encoding="utf-8")
    assert text.count(sound) == 1
    assert any("rights of its own" in fault for fault in faults_of(text.replace(sound, broken)))


def test_a_sound_workflow_has_no_fault() -> None:
    assert faults_of(SOUND) == []


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_a_fault_of_a_workflow_is_found(name: str) -> None:
    sound, planted = PLANTED[name]
    assert sound in SOUND
    assert len(faults_of(SOUND.replace(sound, planted))) == 1
