"""`tenure new-store`: the package that it writes is red for its skeleton, and green for a store that is right."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tenure import ConfigurationError
from tenure.cli import new_store as template
from tenure.cli.new_store import new_store

PATIENCE_S = 300
CORE = Path(__file__).parents[2]

# What a reader of the template would write, with SQLite for a server: the rules are kept below it.
RIGHT = '''"""A lock store in demo."""

from typing import Literal, Self, final

from tenure.store import Acquired, Held, Reach
from tenure_sqlite import SqliteLockStore

__all__ = ["DemoLockStore"]


@final
class DemoLockStore:
    """Locks in demo."""

    reach: Reach = "host"

    def __init__(self, client: SqliteLockStore, *, owns_client: bool = False) -> None:
        self._client = client
        self._owns_client = owns_client

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Take *key*."""
        return await self._client.acquire(key, owner, ttl_ms)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Renew *key*."""
        return await self._client.renew(key, owner, ttl_ms)

    async def release(self, key: str, owner: str) -> bool:
        """Release *key*."""
        return await self._client.release(key, owner)

    async def aclose(self) -> None:
        """Close what was opened."""
        if self._owns_client:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.aclose()
        return False

    def __repr__(self) -> str:
        return "DemoLockStore()"
'''

OPENING = '''"""Stores by URL."""

from tenure_sqlite import open_sqlite_store

from tenure_demo.lock_store import DemoLockStore


def open_demo_store(url: str) -> DemoLockStore:
    """Open the store of a URL."""
    return DemoLockStore(open_sqlite_store(url.replace("demo://", "sqlite://")), owns_client=True)
'''


def run(*words: Any, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "PYTEST"))}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env={**environment, **variables},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def outcomes(package: Path, *more: str, url: str = "demo://localhost") -> tuple[dict[str, int], str]:
    """Run the package's tests as it stands; its entry point is found beside its sources, as an install leaves it."""
    installed = package / "src" / "tenure_demo-0.1.0.dist-info"
    installed.mkdir(exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.4\nName: tenure-demo\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[tenure.stores]\ndemo = tenure_demo:open_demo_store\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", *more]
    ran = run(*command, cwd=package, PYTHONPATH=str(package / "src"), TENURE_DEMO_TEST_URL=url)
    closing = ran.stdout.strip().splitlines()[-1] if ran.stdout.strip() else ran.stderr
    return {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", closing)
    }, ran.stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return new_store("demo", tmp_path)


def test_every_word_of_the_template_is_filled_and_every_file_is_there(package: Path) -> None:
    files = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    assert files >= {
        ".github/workflows/ci.yml", ".gitignore", "CHANGELOG.md", "README.md", "pyproject.toml",
        "src/tenure_demo/__init__.py", "src/tenure_demo/lock_store.py", "src/tenure_demo/opening.py",
        "src/tenure_demo/py.typed", "tests/conftest.py", "tests/test_contract.py", "tests/test_mutants.py",
        "tests/test_opening.py", "tests/test_state_machine.py",
    }  # fmt: skip
    for path in files:
        text = (package / path).read_text(encoding="utf-8")
        # A workflow's own actions are pinned with an @.
        assert not re.search(r"@(name|module|short|variable|store|core)@", text), path
        assert ".tmpl" not in path


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "lower-case letters"), ("Demo", "lower-case letters"), ("2fast", "lower-case letters"),
        ("a--b", "lower-case letters"), ("a/../b", "lower-case letters"), ("x" * 25, "24 characters at most"),
        ("tenure-demo", 'leave "tenure-" out'), ("a-", "lower-case letters"), ("caf\u00e9", "lower-case letters"),
        *((name, "is taken.*Give another") for name in sorted(template._TAKEN)),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        new_store(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_a_missing_directory_is_told(tmp_path: Path, package: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing is overwritten"):
        new_store("demo", tmp_path)
    with pytest.raises(ConfigurationError, match="is no directory"):
        new_store("demo", tmp_path / "not-there")


def test_a_mistake_in_the_template_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [(PurePosixPath("a.py"), "@name@"), (PurePosixPath("b.py"), "@nobody@")]
    monkeypatch.setattr(template, "_template", lambda: iter(wrong))
    with pytest.raises(KeyError):
        new_store("demo", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_it_and_tells_where(tenure: Callable[..., Any], tmp_path: Path) -> None:
    said = tenure("new-store", "cloud-table", "--directory", tmp_path, "--json")
    assert (said.code, Path(said.json["package"]).name) == (0, "tenure-cloud-table")
    assert "CloudTableLockStore" in (tmp_path / "tenure-cloud-table/src/tenure_cloud_table/lock_store.py").read_text()
    again = tenure("new-store", "cloud-table", "--directory", tmp_path)
    assert (again.code, again.out) == (2, "")


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["demo", "a-name-of-24-characters0"])
def test_what_is_written_is_formatted_linted_and_typed_by_its_own_settings(tmp_path: Path, name: str) -> None:
    package = new_store(name, tmp_path)
    for words in (("ruff", "format", "--check", "."), ("ruff", "check", "."), ("mypy",)):
        program = Path(sys.executable).parent / words[0]
        ran = run(program, *words[1:], cwd=package)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.matrix
def test_the_skeleton_is_red_rule_by_rule_and_says_what_is_to_be_done(package: Path) -> None:
    found, told = outcomes(package)
    assert found["failed"] > 40
    # What passes looks at arguments, which the skeleton checks, or at the package itself.
    assert found.get("passed", 0) < found["failed"]
    assert "open: make the client of the URL" in told
    first, told = outcomes(package, "-x")
    assert first["failed"] == 1
    assert "NotImplementedError" in told


@pytest.mark.matrix
def test_the_first_failure_names_what_is_to_be_written_next(package: Path, tmp_path: Path) -> None:
    """As a reader goes through it, who writes what the first failure asks for and nothing else."""
    skeleton, opening = package / "src/tenure_demo/lock_store.py", package / "src/tenure_demo/opening.py"
    url = f"demo:///{tmp_path}/locks.db"
    answers = {
        "acquire()": "return await self._client.acquire(key, owner, ttl_ms)",
        "renew()": "return await self._client.renew(key, owner, ttl_ms)",
        "release()": "return await self._client.release(key, owner)",
        "aclose()": "await self._client.aclose()",
    }
    order = []
    while (ran := outcomes(package, "-x", "tests/test_contract.py", url=url))[0].get("failed"):
        assert len(order) < 5, order
        # The last one: in a store that is left, aclose() is what a reader sees behind what went wrong before.
        order.append(re.findall(r"^E +NotImplementedError: ([\w()]+)", ran[1], re.MULTILINE)[-1])
        if order[-1] == "open":
            opening.write_text(OPENING)
            continue
        left = re.sub(
            rf"raise NotImplementedError\(\"{re.escape(order[-1])}.*", answers[order[-1]], skeleton.read_text()
        )
        skeleton.write_text(left)
    assert order == ["open", "aclose()", "acquire()", "release()", "renew()"]
    assert set(ran[0]) == {"passed"}


@pytest.mark.matrix
def test_a_store_that_is_right_is_green_and_every_mutant_is_caught(package: Path, tmp_path: Path) -> None:
    (package / "src/tenure_demo/lock_store.py").write_text(RIGHT)
    (package / "src/tenure_demo/opening.py").write_text(OPENING)
    found, told = outcomes(package, url=f"demo:///{tmp_path}/locks.db")
    assert found.get("failed", 0) == found.get("error", 0) == 0, told[-3000:]
    assert found["passed"] > 60


@pytest.mark.matrix
def test_a_store_that_is_wrong_in_one_thing_is_red_in_the_cases_of_its_rule(package: Path, tmp_path: Path) -> None:
    wrong = RIGHT.replace("self._client.release(key, owner)", "self._client.renew(key, owner, 60_000)")
    (package / "src/tenure_demo/lock_store.py").write_text(wrong)
    (package / "src/tenure_demo/opening.py").write_text(OPENING)
    found, told = outcomes(package, "tests/test_contract.py", url=f"demo:///{tmp_path}/locks.db")
    assert found["failed"] >= 1
    assert "A release frees the key at once" in told


@pytest.mark.matrix
def test_the_wheel_of_core_has_the_whole_template(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    ran = run(uv, "build", "--wheel", "--out-dir", tmp_path, CORE, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    [wheel] = tmp_path.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".tmpl")}
    here = CORE / "src"
    assert inside == {path.relative_to(here).as_posix() for path in here.rglob("*.tmpl")}
    assert json.dumps(sorted(inside)).count(".gitignore.tmpl") == 1
