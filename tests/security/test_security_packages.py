"""What is installed and what is handed out: hashes in the lock file, and packages that come out the same again."""

import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
PUBLISHED = ("core", "store-postgres", "store-sqlite", "store-valkey")

_PATIENCE_S = 120
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


def uv(*arguments: str, **environment: str) -> str:
    program = shutil.which("uv")
    if program is None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail("Needed where CI is set: uv is not installed.", pytrace=False)
        pytest.skip("uv is not installed: nothing can be exported or built.")
    done = subprocess.run(
        [program, *arguments],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------------------------------- the lock file


def test_every_locked_package_has_its_hashes() -> None:
    ours = {package["name"] for package in LOCK["package"] if {"editable", "virtual"} & set(package["source"])}
    members = ("", "-loadtests", "-postgres", "-sqlite", "-testbed", "-valkey", "-workspace")
    assert ours == {"cat-store", *(f"tenure{member}" for member in members)}
    others = [package for package in LOCK["package"] if package["name"] not in ours]
    assert len(others) > 100
    for package in others:
        # No package of a repository's head, of a path or of a bare URL: the next build would be of something else.
        assert set(package["source"]) == {"registry"}, package["name"]
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert files, package["name"]
        for file in files:
            assert _SHA256.fullmatch(file["hash"]), package["name"]


def test_what_is_locked_can_be_exported_for_an_installer_that_checks_hashes() -> None:
    """As the audit exports it; without a network, for all that is needed stands in the lock file."""
    exported = uv(
        *("export", "--frozen", "--offline", "--all-packages", "--all-groups", "--all-extras", "--no-emit-workspace"),
        *("--format", "requirements-txt"),
    )
    entries = re.split(r"\n(?=[a-z0-9])", exported)
    entries = [entry for entry in entries if re.match(r"[a-z0-9]", entry)]
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+(\[[\w,-]+\])?==\S+", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_the_core_needs_nothing_at_run_time() -> None:
    project = tomllib.loads((ROOT / "packages/core/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == []


# ------------------------------------------------------------------------------------------ the packages


def tracked(package: str) -> list[Path]:
    """The files of a package that git would hand out: those that it tracks, and those that it would."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", f"packages/{package}"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name]
    return [Path(name).relative_to(f"packages/{package}") for name in names if (ROOT / name).is_file()]


def copied(package: str, to: Path, *, mode: int, modified: int) -> Path:
    """A copy of what git has of a package, with file modes and times of its own."""
    for name in tracked(package):
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "packages" / package / name, target)
        target.chmod(mode)
        os.utime(target, (modified, modified))
    return to


@pytest.mark.matrix
@pytest.mark.parametrize("package", PUBLISHED)
def test_a_package_built_twice_is_the_same_to_the_byte(package: str, tmp_path: Path) -> None:
    """In two places, from files of other times and rights, in another time zone: as two people would build it."""
    built = []
    builders = [(0o644, 1_700_000_000, "UTC"), (0o664, 1_600_000_123, "Asia/Tokyo")]
    for number, (mode, modified, zone) in enumerate(builders):
        source = copied(package, tmp_path / f"in-{number}" / package, mode=mode, modified=modified)
        out = tmp_path / f"out-{number}"
        uv("build", "--quiet", str(source), "--out-dir", str(out), SOURCE_DATE_EPOCH="1700000000", TZ=zone)
        built.append({path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".whl", ".gz")})
    first, second = built
    assert sorted(path.rpartition(".")[2] for path in first) == ["gz", "whl"]
    assert first == second


@pytest.mark.matrix
@pytest.mark.parametrize("package", PUBLISHED)
def test_a_package_holds_what_git_holds_and_nothing_else(package: str, tmp_path: Path) -> None:
    uv("build", "--quiet", str(ROOT / "packages" / package), "--out-dir", str(tmp_path))
    [sdist], [wheel] = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    modules = {name.as_posix().removeprefix("src/") for name in tracked(package) if name.parts[0] == "src"}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert all(member.isfile() and not member.name.startswith(("/", "..")) for member in archive.getmembers())
    assert {name.removeprefix("src/") for name in names if name.startswith("src/")} == modules
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert inside == modules
