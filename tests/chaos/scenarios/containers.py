"""C4: the holder's container is frozen."""

import asyncio
import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, final

from chaos.holders import HolderProcess, first_to_say
from chaos.ledger import Ledger
from chaos.outcome import STALLS
from chaos.scenario import SCENARIOS, Run, scenario
from chaos.stores import Backend, backend
from tenure.testing.history import HistoryRecorder

TTL_S: Final = 1.5
"""A command of the engine's takes tens of milliseconds, on a busy machine half a second."""

_FROZEN_TTLS: Final = 2.5
_TESTS: Final = Path(__file__).resolve().parents[2]
_ROOT: Final = _TESTS.parent
_INSIDE: Final = "/tests"
_HISTORIES: Final = "/histories"
_CALL_S: Final = 60.0
_BUILD_S: Final = 300.0


@final
class ContainerProcess:
    """
    A holder in a container of the image that the shop is shipped in, frozen and thawed by the engine.

    It shares the host's network, so that it reaches the servers and the ledger on loopback, and the host's clock, as
    every container does. The tests are mounted; the library is the image's.

    Args:
        run: The run that it belongs to.
        process: Its name in histories.
        image: The image.
        arguments: Its command line beside the name and the history.

    Attributes:
        holder: The process, to be started and listened to.
        thaws: How long the engine took to thaw it, each time, in seconds.
    """

    def __init__(self, run: Run, process: str, image: str, *arguments: str) -> None:
        self._run = run
        self.holder: Final = HolderProcess(run, process)
        self.thaws: Final[list[float]] = []
        self.container: Final = f"tenure-chaos-{process}-{secrets.token_hex(4)}"
        command = ["docker", "run", "--rm", "--name", self.container, "--network", "host"]
        command += ["--user", f"{os.getuid()}:{os.getgid()}", "--entrypoint", "python", "--init"]
        command += ["--volume", f"{_TESTS}:{_INSIDE}:ro", "--volume", f"{run.directory.resolve()}:{_HISTORIES}"]
        command += ["--env", f"PYTHONPATH={_INSIDE}", "--env", "PYTHONDONTWRITEBYTECODE=1", "--workdir", _INSIDE, image]
        command += ["-m", "chaos.programs.holder", "--process", process, "--history", f"{_HISTORIES}/{process}.jsonl"]
        self.holder.replica.command = (*command, *arguments)

    async def pause(self) -> float:
        """`docker pause`; returns when it stood still."""
        await _docker("pause", self.container)
        self._run.recorder.note("paused", process=self.holder.process, by="nemesis")
        return time.monotonic()

    async def resume(self) -> float:
        """`docker unpause`; returns when it was sent."""
        at = time.monotonic()
        self._run.recorder.note("resumed", process=self.holder.process, by="nemesis")
        await _docker("unpause", self.container)
        self.thaws.append(time.monotonic() - at)
        return at

    async def close(self) -> None:
        """Remove the container, frozen or not, and the client that follows it."""
        with contextlib.suppress(RuntimeError):  # it is gone
            await _docker("rm", "--force", self.container)
        await asyncio.to_thread(self.holder.replica.close)


async def _docker(*words: str, within_s: float = _CALL_S, env: dict[str, str] | None = None) -> str:
    """Run a command of the engine's; raises RuntimeError with what it wrote where it failed."""

    def run() -> str:
        command = ["docker", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False, env=env)
        if done.returncode:
            raise RuntimeError(f"`docker {' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    return await asyncio.to_thread(run)


async def _engine() -> str | None:
    """Why no container can be had here, or None."""
    try:
        await _docker("info")
        await _docker("compose", "version")
    except (OSError, subprocess.TimeoutExpired, RuntimeError) as error:
        return f"no container engine: {str(error).splitlines()[0]}"
    return None


@contextlib.asynccontextmanager
async def _image() -> AsyncIterator[str]:
    """Build the shop's image under a name of this run's own; the builder keeps its layers, the name goes."""
    name = f"tenure-chaos:{secrets.token_hex(4)}"
    await _docker(
        "build", "--quiet", "--file", str(_ROOT / "docker/Dockerfile"), "--tag", name, str(_ROOT), within_s=_BUILD_S
    )
    try:
        yield name
    finally:
        with contextlib.suppress(RuntimeError):
            await _docker("image", "rm", name)


@contextlib.asynccontextmanager
async def _two(run: Run, image: str, *arguments: str) -> AsyncIterator[list[ContainerProcess]]:
    """Two holders of one key."""
    names = ("container-1", "container-2")
    both = [ContainerProcess(run, name, image, *arguments) for name in names]
    try:
        await asyncio.gather(*(one.holder.start() for one in both))
        yield both
    finally:
        await asyncio.gather(*(one.close() for one in both))


@final
class Freezing:
    """What was found while the holder's container was frozen again and again."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.takeovers: list[float] = []
        self.stale: list[bool] = []
        self.lost: list[str | None] = []
        self.thaws: list[float] = []

    async def happen(self, both: list[ContainerProcess], times: int) -> None:
        """Freeze whichever holds the key, wait until the other has it, and thaw."""
        found, grant = await first_to_say([one.holder for one in both], "granted", [0, 0])
        self.tokens.append(grant["token"])
        (holder,) = [one for one in both if one.holder is found]
        for _ in range(times):
            (other,) = [one for one in both if one is not holder]
            mark, marked = other.holder.mark, holder.holder.mark
            stood_still = await holder.pause()
            grant = await other.holder.said("granted", after=mark)
            self.takeovers.append(grant["at"] - stood_still)
            self.tokens.append(grant["token"])
            await asyncio.sleep(max(0.0, stood_still + _FROZEN_TTLS * TTL_S - time.monotonic()))
            await holder.resume()
            self.lost.append((await holder.holder.said("lost", after=marked))["reason"])
            self.stale.append((await holder.holder.said("stale", after=marked))["accepted"])
            holder = other
        self.thaws = [thaw for one in both for thaw in one.thaws]


@scenario(
    "C4",
    "docker pause of the holder's container",
    claims="H3 H4 H8",
    stores=("postgres", "valkey-redis"),  # the client that the image has
    quick=2,
    full=20,
    quick_stores=("postgres",),
    docker=True,
)
async def a_container_is_frozen(run: Run) -> None:
    """Frozen for two and a half ttls, it is replaced; thawed, it learns of its loss, and its late write is refused."""
    run.outcome.skipped = await _engine()
    if run.outcome.skipped:
        return
    async with _image() as image, backend(run.store) as found:
        began = time.monotonic()
        freezing = await _freeze(run, image, found, Ledger(run.recorder), "job")
        itself = next(one for one in SCENARIOS if one.id == "C4")
        # In a directory of its own: its history has to be broken, and the other one must not.
        control = Run(itself, run.store, full=run.full, directory=run.directory / "control", n=max(1, run.n // 10))
        unfenced = Ledger(control.recorder, fenced=False)
        await _freeze(control, image, found, unfenced, "control")
        control.recorder.close()
    late = [bool(each) for each in freezing.stale]
    run.zero("late writes that were accepted", sum(late), of=len(late))
    run.zero("holders that did not learn of their loss", run.n - sum(map(bool, freezing.lost)), of=run.n)
    steps = list(zip(freezing.tokens, freezing.tokens[1:], strict=False))
    run.zero("tokens repeated or out of order", sum(b <= a for a, b in steps), of=len(steps))
    run.control(
        "of a resource that does not fence, late writes refused", failed=unfenced.stale_accepted, of=unfenced.accepted
    )
    times = run.times("takeover", freezing.takeovers)
    run.within("takeover p99", times.p99, TTL_S + 1.0 + 0.25)
    _note_run(run, began, stall_s=max(freezing.thaws))
    run.check_history()


def _note_run(run: Run, began: float, *, stall_s: float) -> None:
    """Say what was promised. A container goes on at some time while the engine thaws it: that is a stall, too."""
    with HistoryRecorder(run.history_file("engine"), process="engine") as engine:
        run.promise(ttl_s=TTL_S, recorder=engine, at=began, stall_s=max(stall_s, STALLS * run.meter.worst_s))


async def _freeze(run: Run, image: str, found: Backend, ledger: Ledger, key: str) -> Freezing:
    freezing = Freezing()
    async with ledger:
        arguments = ("--url", found.url, "--ttl", str(TTL_S), "--key", key, "--ledger", str(ledger.port))
        async with _two(run, image, *arguments) as both:
            await freezing.happen(both, run.n)
    return freezing
