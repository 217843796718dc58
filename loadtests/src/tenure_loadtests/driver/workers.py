"""A contender's process, seen from the driver: started, asked, ended."""

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Self

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.contenders.contract import Address
from tenure_loadtests.driver.environments import Environments
from tenure_loadtests.worker.protocol import Command, ProtocolError, command_line, read_answer

__all__ = ["Worker"]

_START_S = 60.0
_QUIT_S = 10.0


class Worker:
    """
    One process of a contender; use it in a `with` statement.

    Args:
        entry: Which contender.
        address: Where its servers are.
        servers: The process ids of its servers.
        tasks: For how many tasks it connects.
        environments: Where its interpreter is.
        note: Who is told the versions that it runs with.

    Raises:
        ProtocolError: At entering: it could not start; the text has the end of what it wrote.
        EnvironmentUnusableError: Its environment cannot be made.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- what a process is made of
        self,
        entry: Entry,
        address: Address,
        servers: Sequence[int],
        tasks: int,
        environments: Environments,
        note: Callable[[Entry, dict[str, str]], None],
    ) -> None:
        setup = {
            "contender": entry.path,
            "options": dict(entry.options),
            "address": address.to_json(),
            "servers": list(servers),
            "tasks": tasks,
        }
        self._entry = entry
        self._name = entry.name
        self._note = note
        self._command = [*_program(entry, environments), json.dumps(setup)]
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            env=_variables(),
        )
        try:
            greeting = self.read(_START_S)
        except BaseException:
            self._end()
            raise
        self._note(self._entry, {**greeting["versions"], greeting["runtime"]: greeting["runtime_version"]})
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    def ask(self, do: str, timeout_s: float, **values: Any) -> dict[str, Any]:
        """
        Have it do something, and wait for the answer.

        Raises:
            ProtocolError: It failed, or did not answer in time; then it is killed.
        """
        self.send(do, **values)
        return self.read(timeout_s)

    def send(self, do: str, **values: Any) -> None:
        """Have it do something; `read` waits for the answer."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(command_line(Command(do, values)))
            process.stdin.flush()
        except BrokenPipeError:
            raise ProtocolError(f"{self._name} has ended: {self._last_words()}") from None

    def read(self, timeout_s: float) -> dict[str, Any]:
        """Wait for an answer; raises as `ask`."""
        process = self._running()
        assert process.stdout is not None
        if not self.has_answered(timeout_s):
            process.kill()
            raise ProtocolError(f"{self._name} did not answer within {timeout_s:g} s")
        line = process.stdout.readline()
        if not line:
            raise ProtocolError(f"{self._name} has ended: {self._last_words()}")
        return read_answer(line)

    def has_answered(self, within_s: float) -> bool:
        """Whether an answer can be read; waits for one for a while."""
        stdout = self._running().stdout
        assert stdout is not None
        return bool(select.select([stdout], [], [], within_s)[0])

    def kill(self) -> None:
        """SIGKILL, as a lost machine would; returns when it is gone."""
        process = self._running()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def _end(self) -> None:
        process = self._running()
        if process.poll() is None:
            try:
                self.send("quit")
                process.wait(_QUIT_S)
            except (ProtocolError, subprocess.TimeoutExpired):
                process.kill()
                process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "A worker is used in a with statement."
        return self._process

    def _last_words(self) -> str:
        assert self._errors is not None
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it wrote nothing"


def _program(entry: Entry, environments: Environments) -> list[str]:
    if entry.environment == "node":
        program, folder = environments.node()
        return [program, str(folder / "worker.mjs")]
    return [environments.python(entry.environment), "-m", "tenure_loadtests.worker"]


def _variables() -> dict[str, str]:
    """This process's variables, and where the worker's own sources are: a peer's environment has none of them."""
    sources = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": sources, "PYTHONUNBUFFERED": "1"}
