"""The peers' environments: each made once, from its pinned file, in a folder that is kept from run to run."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["CACHE_VARIABLE", "EnvironmentUnusableError", "Environments", "folder_of_loadtests"]

CACHE_VARIABLE = "TENURE_BENCH_CACHE"

_SECONDS = 600
_NEWER = 4
"""How many minor versions of Python beyond the one that is needed are looked for."""


class EnvironmentUnusableError(Exception):
    """An environment could not be made; the text says why, in one line."""


def folder_of_loadtests() -> Path:
    """The folder with the pinned files, beside the sources."""
    return Path(__file__).resolve().parents[3]


class Environments:
    """
    Where the contenders' programs are.

    Args:
        cache: A folder for them; by default `TENURE_BENCH_CACHE`, or `~/.cache/tenure-bench`.
        environment: The variables of this process.
    """

    def __init__(self, cache: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._variables = os.environ if environment is None else environment
        self._cache = cache or Path(self._variables.get(CACHE_VARIABLE) or Path.home() / ".cache" / "tenure-bench")
        self._made: dict[str, Path] = {}
        self._failed: dict[str, str] = {}

    def python(self, name: str | None) -> str:
        """
        The interpreter of an environment, which is made if it is not there yet.

        Args:
            name: A file in `requirements/`, without its ending; None for the one that runs this.

        Raises:
            EnvironmentUnusableError: It cannot be made: no uv, no such release for this interpreter, no network.
        """
        return sys.executable if name is None else str(self._once(name, self._make_python))

    def node(self) -> tuple[str, Path]:
        """
        Node's program, and the folder in which the packages of `node/package.json` are installed.

        Raises:
            EnvironmentUnusableError: There is no node or npm, or the packages cannot be installed.
        """
        program = shutil.which("node")
        if program is None or shutil.which("npm") is None:
            raise EnvironmentUnusableError("node and npm are not installed here")
        return program, self._once("node", self._make_node)

    def _once(self, name: str, make: Callable[[str], Path]) -> Path:
        if name in self._failed:
            raise EnvironmentUnusableError(self._failed[name])
        if name not in self._made:
            try:
                self._made[name] = make(name)
            except EnvironmentUnusableError as error:
                self._failed[name] = str(error)
                raise
        return self._made[name]

    def _make_python(self, name: str) -> Path:
        pinned = folder_of_loadtests() / "requirements" / f"{name}.txt"
        text = pinned.read_text(encoding="utf-8")
        version = _python_for(text)
        folder = self._cache / f"{name}-{_digest(text + version)}"
        python = folder / "bin" / "python"
        done = folder / "installed"
        if done.exists():
            return python
        uv = shutil.which("uv")
        if uv is None:
            raise EnvironmentUnusableError("uv is not installed here, which makes the peers' environments")
        self._cache.mkdir(parents=True, exist_ok=True)
        _run(
            [
                uv,
                "venv",
                "--quiet",
                "--no-python-downloads",
                "--clear",
                "--no-project",
                "--python",
                version,
                str(folder),
            ]
        )
        _run([uv, "pip", "install", "--quiet", "--python", str(python), "--requirement", str(pinned)])
        done.touch()
        return python

    def _make_node(self, name: str) -> Path:
        source = folder_of_loadtests() / "node"
        text = (source / "package.json").read_text(encoding="utf-8")
        folder = self._cache / f"{name}-{_digest(text)}"
        done = folder / "installed"
        if not done.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text(text, encoding="utf-8")
            npm = shutil.which("npm")
            assert npm is not None
            _run([npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)
            done.touch()
        # Node looks for packages beside the file that it runs.
        shutil.copyfile(source / "worker.mjs", folder / "worker.mjs")
        return folder


def _python_for(pinned: str) -> str:
    """
    The interpreter that runs this, or a newer one where the pinned releases need it: `# python: 3.12`.

    Raises:
        EnvironmentUnusableError: They need one that is not installed here.
    """
    wanted = re.search(r"^# python: (\d+)\.(\d+)$", pinned, re.MULTILINE)
    if wanted is None or (int(wanted[1]), int(wanted[2])) <= sys.version_info[:2]:
        return sys.executable
    for minor in range(int(wanted[2]), int(wanted[2]) + _NEWER):
        for program in _interpreters(f"{wanted[1]}.{minor}"):
            if _runs(program):
                return program
    raise EnvironmentUnusableError(
        f"its releases need Python {wanted[1]}.{wanted[2]} or later, which is not installed here"
    )


def _interpreters(version: str) -> list[str]:
    """Where an interpreter of that version may be: on the path, or where pyenv keeps them."""
    on_path = shutil.which(f"python{version}")
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [*([on_path] if on_path else []), *(str(one) for one in sorted(kept.glob(f"{version}.*/bin/python")))]


def _runs(program: str) -> bool:
    # pyenv puts a program on the path for each version, whether it may be used here or not.
    return subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentUnusableError(f"{Path(command[0]).name} did not end within {_SECONDS} s") from None
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split()) or f"code {done.returncode}"
        raise EnvironmentUnusableError(f"{Path(command[0]).name} {command[1]} failed: {reason[-400:]}")
