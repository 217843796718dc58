"""The nemesis's side of the holder processes: start them, hurt them, read what they say, and note all of it."""

import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, final

from chaos.scenario import Run
from tenure_testbed import NotReachedError, Replica

_TESTS = Path(__file__).resolve().parent.parent
_TRIES = 5

WAKE_S = 0.25
"""How long a process that was stopped may take to run again and to say so, beside the machine's measured stalls."""

_START_S = 60.0
"""Until a process says something; a start under load takes seconds."""

_LOOK_S = 0.005
"""Between two looks at what a process has said. What is measured is in the lines themselves."""

_LAST_LINE_S = 1.0
"""For the last lines of a process that has ended; then the error tells them."""


@final
class HolderProcess:
    """
    One `chaos.programs.holder` process.

    Args:
        run: The run that it belongs to.
        process: Its name in histories.
        arguments: Its command line beside the name and the history.
        env: Variables beside this process's, such as those of libfaketime.
        module: The program, for a scenario with a holder of its own kind.
    """

    def __init__(
        self,
        run: Run,
        process: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        module: str = "chaos.programs.holder",
    ) -> None:
        self._run = run
        self.process = process
        command = [sys.executable, "-m", module, "--process", process, "--history", str(run.history_file(process))]
        self.replica = Replica(
            [*command, *arguments], name=process, cwd=_TESTS, env={"PYTHONPATH": str(_TESTS), **(env or {})}
        )
        self._read = 0

    async def start(self) -> None:
        """Start it, and return once it is at work."""
        mark = self.replica.mark
        self._run.recorder.note("started", process=self.process, by="nemesis")
        await asyncio.to_thread(self.replica.start)
        await self.said("ready", after=mark)

    async def kill(self) -> float:
        """kill -9; returns when it died, in seconds on the monotonic clock: the latest moment that it can have run."""
        await asyncio.to_thread(self.replica.kill)
        at = time.monotonic()
        self._run.recorder.note("died", process=self.process, by="nemesis")
        return at

    async def pause(self) -> float:
        """SIGSTOP; returns when it stood still."""
        await asyncio.to_thread(self.replica.pause)
        self._run.recorder.note("paused", process=self.process, by="nemesis")
        return time.monotonic()

    async def resume(self) -> float:
        """SIGCONT; returns when it was sent."""
        at = time.monotonic()
        self._run.recorder.note("resumed", process=self.process, by="nemesis")
        await asyncio.to_thread(self.replica.resume)
        return at

    async def terminate(self) -> float:
        """SIGTERM; returns when it was sent, after the process has ended."""
        at = time.monotonic()
        await asyncio.to_thread(self.replica.terminate)
        self._run.recorder.note("died", process=self.process, by="nemesis")
        return at

    @property
    def mark(self) -> int:
        """How many lines it has said; give it to `said` to hear of later ones only."""
        return self.replica.mark

    async def said(self, what: str, *, after: int = 0, within: float = _START_S, key: str | None = None) -> Any:
        """Wait for a line of that kind (about *key*, if given), and return it as a dict."""
        about = "" if key is None else rf'.*"key": {re.escape(json.dumps(key))}[,}}]'
        pattern = rf'^\{{"what": "{what}"{about}.*\}}$'
        # Looked for again and again, and not waited for in a thread: whoever loses interest leaves nothing behind.
        until = time.monotonic() + within
        while time.monotonic() < until and self.replica.running:
            mark = self.replica.mark
            if found := self.replica.output.search(pattern, 0, after):
                return json.loads(found.group(0))
            after = mark
            await asyncio.sleep(_LOOK_S)
        last = await asyncio.to_thread(self.replica.wait_for_line, pattern, _LAST_LINE_S, after=after)
        return json.loads(last.group(0))

    def lines(self, what: str) -> list[Any]:
        """Everything of that kind that it said and that is kept."""
        said = [json.loads(line.text) for line in self.replica.lines if line.text.startswith('{"what": ')]
        return [line for line in said if line["what"] == what]

    async def close(self) -> None:
        """End it in order if it runs, and kill it if it does not end."""
        if self.replica.paused:
            await self.resume()
        if self.replica.running:
            with contextlib.suppress(NotReachedError):
                await self.terminate()
        await asyncio.to_thread(self.replica.close)


@contextlib.asynccontextmanager
async def holders(run: Run, count: int, *arguments: str, prefix: str = "holder") -> AsyncIterator[list[HolderProcess]]:
    """Start so many holders with the same arguments, side by side; end them on leaving."""
    found = [HolderProcess(run, f"{prefix}-{number}", *arguments) for number in range(1, count + 1)]
    try:
        await asyncio.gather(*(one.start() for one in found))
        yield found
    finally:
        await asyncio.gather(*(one.close() for one in found))


async def first_to_say(found: list[HolderProcess], what: str, marks: list[int], *, within: float = _START_S) -> Any:
    """Wait until one of *found* says *what* after its mark; returns that holder and its line."""
    waits = {
        asyncio.create_task(one.said(what, after=mark, within=within)): one
        for one, mark in zip(found, marks, strict=True)
    }
    done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    first = next(iter(done))
    return waits[first], first.result()


@contextlib.asynccontextmanager
async def at_work(*processes: HolderProcess) -> AsyncIterator[None]:
    """Start *processes* side by side; end them on leaving."""
    try:
        await asyncio.gather(*(one.start() for one in processes))
        yield
    finally:
        await asyncio.gather(*(one.close() for one in processes))


def granted(process: HolderProcess, key: str) -> list[dict[str, Any]]:
    """What *process* said of its grants of *key*; the lines of a load on other keys are passed over unread."""
    about = f'"key": {json.dumps(key)}'
    said = [line.text for line in process.replica.lines if line.text.startswith('{"what": "granted"')]
    return [json.loads(text) for text in said if about in text]


def holding(processes: Sequence[HolderProcess], key: str) -> tuple[HolderProcess, int]:
    """Who of *processes* was granted *key* last, and under which token; the first and 0 where nobody was."""
    tokens = [max((line["token"] for line in granted(one, key)), default=0) for one in processes]
    token = max(tokens)
    return processes[tokens.index(token)], token


async def next_grant(processes: Sequence[HolderProcess], key: str, *, above: int) -> float:
    """
    Wait until one of *processes* was granted *key* under a token above *above*; returns when it was.

    Raises:
        NotReachedError: None was within a minute.
    """
    for _ in range(3000):
        for line in (line for one in processes for line in granted(one, key)):
            if line["token"] > above:
                return float(line["at"])
        await asyncio.sleep(0.02)
    raise NotReachedError(f"Nobody took {key!r} over within a minute.")


async def pause_the_holder(
    processes: Sequence[HolderProcess], key: str, ttl_s: float
) -> tuple[HolderProcess, int, float]:
    """
    SIGSTOP to who holds *key*.

    On a busy machine a lease may be lost by itself just then; that is no pause of a holder, and another try is made.

    Returns:
        The process, the token of its lease, and when it stood still.
    """
    for _ in range(_TRIES):
        holder, token = holding(processes, key)
        at = await holder.pause()
        gone = any(line["token"] == token for line in holder.lines("lost"))
        if token and not gone and holding(processes, key) == (holder, token):
            return holder, token, at
        await holder.resume()
        await asyncio.sleep(ttl_s)
    raise NotReachedError(f"No holder of {key!r} could be paused in {_TRIES} tries.")


async def granted_to_each(processes: Sequence[HolderProcess], marks: Sequence[int]) -> None:
    """Wait until each of *processes* has been granted something after its mark."""
    await asyncio.gather(*(one.said("granted", after=mark) for one, mark in zip(processes, marks, strict=True)))
