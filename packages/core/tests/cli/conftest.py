"""What the tests of the command share: a store in a file, who holds locks in it, and the command in this process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tenure.sync import Locks

PATIENCE_S = 60


@dataclass(frozen=True)
class Said:
    """What one call of the command ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that other processes see, and that needs no server."""
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with Locks(url, ttl=30, instance="shop-1", hooks=[]) as locks:
        yield locks


@pytest.fixture
def tenure(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run the command in this process."""
    from tenure.cli.app import app

    def run(*words: Any) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app([str(word) for word in words], prog_name="tenure")
        out, err = capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0, out, err)

    return run


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start the command as a process."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: Any, program: Sequence[str] = (TENURE,), **options: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", HEARS_SIGINT, *program, *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
        started.append(subprocess.Popen(command, **{**pipes, **options}))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait until something holds."""

    def wait(holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"after {PATIENCE_S} s it does not hold yet"
            time.sleep(0.02)

    return wait


@pytest.fixture
def state() -> Callable[[int], str]:
    """Read the state of a process, a letter as in ps(1); empty where there is none, or only what its parent left."""

    def read(pid: int) -> str:
        try:
            letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return letter if letter not in "ZX" else ""

    return read


@pytest.fixture
def listens() -> Callable[[int], bool]:
    """Tell whether the command passes signals on already: it then has a handler for SIGUSR1."""

    def read(pid: int) -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)

    return read


TENURE = str(Path(sys.executable).parent / "tenure")

HEARS_SIGINT = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Becomes the command: tests that run in the background of a shell ignore SIGINT, and so would what they start."""
