"""
The packages as people get them: built, installed into fresh environments, and used there.

Every environment has what it asks for and nothing else, at the newest versions or at the lowest that a package names.
Whole it takes minutes (`uv run poe packages`); it prints how long each one took.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tenure_postgres import create_idempotency_schema_sql, create_schema_sql
from tenure_testbed import ValkeyServer
from tenure_testbed.postgres_access import PostgresAccess, database_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core", "store-postgres", "store-valkey", "store-sqlite")
PROJECTS = {
    name: tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in PACKAGES
}
PYTHONS = ("3.11", "3.12", "3.13")
PATIENCE_S = 300
CONSUMER = Path(__file__).with_name("consumer.py")

CORE = [
    "tenure", "tenure.clock", "tenure.config", "tenure.context", "tenure.election", "tenure.errors", "tenure.events",
    "tenure.ext.asgi", "tenure.idempotency", "tenure.idempotency_store", "tenure.instrumentation", "tenure.jobs",
    "tenure.lease", "tenure.locks", "tenure.memory", "tenure.store", "tenure.sync", "tenure.testing",
]  # fmt: skip
OF_EXTRAS = {
    "apscheduler": ["tenure.ext.apscheduler"], "cli": ["tenure.cli"], "litestar": ["tenure.ext.litestar"], "otel": [],
    "prometheus": [], "saq": ["tenure.ext.saq"], "sealing": ["tenure.ext.sealing"],
    "starlette": ["tenure.ext.starlette"], "structlog": [], "testing": ["tenure.testing.state_machines"],
}  # fmt: skip


def uv(*words: Any, **variables: str) -> str:
    program = shutil.which("uv")
    if program is None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail("Needed where CI is set: uv is not installed.", pytrace=False)
        pytest.skip("uv is not installed")
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PYTHON")}
    ran = subprocess.run(
        [program, *map(str, words)], env={**environment, **variables},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each package, built from its sdist, as a release builds it."""
    folder = tmp_path_factory.mktemp("dist")
    for name in PACKAGES:
        uv("build", "--quiet", "--out-dir", folder, ROOT / "packages" / name)
    return {name: next(folder.glob(f"{PROJECTS[name]['name'].replace('-', '_')}-*.whl")) for name in PACKAGES}


# ------------------------------------------------------------------------------------------- what is in them


@pytest.mark.published
@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_has_its_sources_its_types_and_its_licence_and_nothing_else(name: str, wheels: dict[str, Path]) -> None:
    module = PROJECTS[name]["name"].replace("-", "_")
    inside = zipfile.ZipFile(wheels[name]).namelist()
    assert f"{module}/py.typed" in inside
    assert any(re.fullmatch(r"[\w.-]+\.dist-info/licenses/LICENSE", path) for path in inside)
    assert {path.partition("/")[0] for path in inside} == {module, f"{module}-0.1.0.dist-info"}
    assert not [path for path in inside if "__pycache__" in path or path.endswith((".pyc", ".orig"))]
    here = ROOT / "packages" / name / "src"
    sources = {path.relative_to(here).as_posix() for path in (here / module).rglob("*") if path.is_file()}
    assert {path for path in inside if ".dist-info/" not in path} == {s for s in sources if "__pycache__" not in s}


@pytest.mark.published
@pytest.mark.parametrize("name", PACKAGES)
def test_the_metadata_of_a_wheel_tells_what_an_index_shows(name: str, wheels: dict[str, Path]) -> None:
    archive = zipfile.ZipFile(wheels[name])
    [path] = [path for path in archive.namelist() if path.endswith(".dist-info/METADATA")]
    told = Parser().parsestr(archive.read(path).decode())
    assert told["Description-Content-Type"] == "text/markdown"
    assert told["License-Expression"] == "MIT"
    assert told["Requires-Python"] == ">=3.11"
    assert told["Summary"]
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    for minor in PYTHONS:
        assert f"Programming Language :: Python :: {minor}" in told.get_all("Classifier", [])
    assert f"# {PROJECTS[name]['name']}" in told.get_payload()


def test_the_versions_are_in_step() -> None:
    [version] = {project["version"] for project in PROJECTS.values()}
    for name in PACKAGES[1:]:
        assert f"tenure~={version.rpartition('.')[0]}.0" in PROJECTS[name]["dependencies"]


@pytest.mark.parametrize("name", PACKAGES)
def test_the_licence_of_a_package_is_that_of_the_repository(name: str) -> None:
    assert (ROOT / "packages" / name / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_every_extra_of_core_has_its_place_in_the_matrix() -> None:
    assert set(PROJECTS["core"]["optional-dependencies"]) == set(OF_EXTRAS)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_a_changelog_that_can_be_written(name: str) -> None:
    folder = ROOT / "packages" / name
    draft = subprocess.run(
        [Path(sys.executable).parent / "towncrier", "build", "--draft", "--version", "0.1.0", "--date", "2026-12-01",
         "--config", ROOT / "pyproject.toml", "--dir", folder],
        capture_output=True, text=True, timeout=60, check=False, cwd=folder,
    )  # fmt: skip
    assert draft.returncode == 0, draft.stderr
    assert "## 0.1.0 (2026-12-01)" in draft.stdout
    assert "### Features" in draft.stdout


# --------------------------------------------------------------------------------------- fresh environments


def interpreter(minor: str) -> str:
    """The path of such a Python; none is downloaded."""
    try:
        return uv("python", "find", "--no-project", "--no-python-downloads", minor).strip()
    except AssertionError:
        pass
    pyenv = shutil.which("pyenv")
    if pyenv is not None:
        # pyenv's shims answer for the version in use alone, and hide the others from uv.
        listed = subprocess.run(
            [pyenv, "versions", "--bare"], capture_output=True, text=True, check=True
        ).stdout.split()
        found = [version for version in listed if version.startswith(f"{minor}.")]
        if found:
            which = [pyenv, "which", "python"]
            environment = {**os.environ, "PYENV_VERSION": found[-1]}
            return subprocess.run(which, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    pytest.skip(f"there is no Python {minor} on this machine")


@pytest.fixture
def environment(
    wheels: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., Callable[..., str]]:
    def make(python: str, resolution: str, *wanted: str) -> Callable[..., str]:
        """Install *wanted*, where a package of ours is named as its folder: `core[cli]`."""
        place = tmp_path / "environment"
        uv("venv", "--quiet", "--no-project", "--python", interpreter(python), place)
        requirements = []
        for word in wanted:
            name, _, extras = word.partition("[")
            if name in wheels:
                requirements.append(
                    f"{PROJECTS[name]['name']}{'[' + extras if extras else ''} @ {wheels[name].as_uri()}"
                )
            else:
                requirements.append(word)
        if not any(word.startswith("core") for word in wanted):
            requirements.append(f"tenure @ {wheels['core'].as_uri()}")
        uv(
            "pip", "install", "--quiet", "--no-config", "--resolution", resolution,
            "--python", place / "bin" / "python", *requirements,
        )  # fmt: skip

        def run(*words: Any, warnings: str = "error") -> str:
            ran = subprocess.run(
                [place / "bin" / "python", "-W", warnings, *map(str, words)],
                capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path,
                env={name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "PYTHON"))},
            )  # fmt: skip
            assert ran.returncode == 0, f"{words}\n{ran.stdout}{ran.stderr}"
            return ran.stdout

        return run

    return make


NEWEST, LOWEST = "highest", "lowest-direct"


@pytest.mark.published
@pytest.mark.parametrize("python", PYTHONS)
def test_core_alone_needs_nothing(python: str, environment: Any, tmp_path: Path) -> None:
    run = environment(python, NEWEST, "core")
    run(CONSUMER, "imports", *CORE)
    run(CONSUMER, "script", "memory://")
    listed = uv("pip", "list", "--python", tmp_path / "environment/bin/python", "--format", "freeze")
    assert [line.partition(" ")[0].partition("=")[0] for line in listed.splitlines()] == ["tenure"]
    told = subprocess.run([tmp_path / "environment/bin/tenure", "ls"], capture_output=True, text=True, check=False)
    assert (told.returncode, "pip install 'tenure[cli]'" in told.stderr) == (2, True)


@pytest.mark.published
@pytest.mark.parametrize("resolution", [NEWEST, LOWEST])
@pytest.mark.parametrize("extra", sorted(OF_EXTRAS))
def test_an_extra_brings_what_it_needs(extra: str, resolution: str, environment: Any, tmp_path: Path) -> None:
    run = environment("3.11", resolution, f"core[{extra}]")
    # Old versions of others' libraries warn of what is theirs.
    run(CONSUMER, "imports", *CORE, *OF_EXTRAS[extra], warnings="error" if resolution == NEWEST else "ignore")
    if extra == "cli":
        told = subprocess.run(
            [tmp_path / "environment/bin/tenure", "--version"], capture_output=True, text=True, check=True
        )
        assert told.stdout == "tenure 0.1.0\n"


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    made: list[tuple[PostgresAccess, str]] = []

    def url(store: str) -> str:
        if store == "memory":
            return "memory://"
        if store == "sqlite":
            return f"sqlite:///{tmp_path}/locks.db"
        if store.startswith("valkey"):
            server: ValkeyServer = request.getfixturevalue("valkey_server")
            server.execute("FLUSHALL")
            return f"{server.url(scheme='valkey')}?client={store.partition('-')[2]}"
        postgres: PostgresAccess = request.getfixturevalue("postgres_server")
        database = postgres.create_database()
        made.append((postgres, database))
        postgres.execute(create_schema_sql(), database_of(database))
        postgres.execute(create_idempotency_schema_sql(), database_of(database))
        return database

    yield url
    for server, database in made:
        server.drop_database(database_of(database))


STORES = {
    "memory": [],
    "sqlite": ["store-sqlite"],
    "postgres": ["store-postgres"],
    "valkey-redis": ["store-valkey[redis]"],
    "valkey-glide": ["store-valkey[glide]"],
}


@pytest.mark.published
@pytest.mark.parametrize("resolution", [NEWEST, LOWEST])
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("store", sorted(set(STORES) - {"memory"}))
def test_a_script_runs_on_each_store(python: str, resolution: str, store: str, environment: Any, url_of: Any) -> None:
    run = environment(python, resolution, *STORES[store])
    run(CONSUMER, "script", url_of(store), warnings="ignore")


@pytest.mark.published
@pytest.mark.parametrize("framework", ["litestar", "fastapi"])
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("store", sorted(STORES))
def test_an_application_runs_on_each_store(
    python: str, framework: str, store: str, environment: Any, url_of: Any
) -> None:
    wanted = ["core[litestar]"] if framework == "litestar" else ["core[starlette]", "fastapi"]
    run = environment(python, NEWEST, *wanted, *STORES[store])
    run(CONSUMER, framework, url_of(store), warnings="ignore")


@pytest.mark.published
@pytest.mark.parametrize("framework", ["litestar", "fastapi"])
def test_an_application_runs_on_the_lowest_versions(framework: str, environment: Any, url_of: Any) -> None:
    wanted = ["core[litestar]"] if framework == "litestar" else ["core[starlette]", "fastapi>=0.121"]
    run = environment("3.11", LOWEST, *wanted, "store-sqlite")
    run(CONSUMER, framework, url_of("sqlite"), warnings="ignore")


@pytest.mark.published
def test_a_wheel_without_its_types_is_found(wheels: dict[str, Path], tmp_path: Path) -> None:
    """The planted bug: a file that the build forgot."""
    short = tmp_path / wheels["store-sqlite"].name
    with zipfile.ZipFile(wheels["store-sqlite"]) as whole, zipfile.ZipFile(short, "w") as written:
        for path in whole.namelist():
            if not path.endswith("py.typed"):
                written.writestr(path, whole.read(path))
    with pytest.raises(AssertionError):
        test_a_wheel_has_its_sources_its_types_and_its_licence_and_nothing_else("store-sqlite", {"store-sqlite": short})
