"""The scenario's side of `idempotent_worker`: where workers are ordered, given orders, and found at their marks."""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import signal
import socket
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Self, final

from chaos.programs.idempotent_worker import LIMIT
from chaos.scenario import Run

_PATIENCE_S = 60.0
"""Until anything that has to happen has happened; a busy machine takes its time."""

_PAUSE_S = 0.05


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was told."""

    status: int
    body: str
    replayed: bool


@final
class Worker:
    """One forked worker, as the desk knows it."""

    def __init__(self, name: str, writer: asyncio.StreamWriter, pid: int) -> None:
        self.name = name
        self.pid = pid
        self._writer = writer
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._marks: dict[str, asyncio.Future[str]] = {}
        self._reached: set[str] = set()
        self.gone = asyncio.Event()

    def say(self, **fields: Any) -> None:
        """Send it a line."""
        self._writer.write(json.dumps(fields).encode() + b"\n")

    async def order(self, order: str, *, guarded: bool = True, mark: str | None = None) -> Answer | None:
        """Give it *order*; returns its answer, or None when it reached the mark instead (or died)."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        reached: asyncio.Future[str] = loop.create_future()
        self._answers[number], self._marks[order] = answer, reached
        self.say(request=number, order=order, guarded=guarded, mark=mark)
        if order in self._reached:
            # It answered while its completion was being tried again, and stopped in a later try.
            return None
        either: list[asyncio.Future[Any]] = [answer, reached]
        done, _ = await asyncio.wait(either, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        self._answers.pop(number, None)
        if not done:
            raise TimeoutError(f"{self.name} neither answered nor reached {mark!r} within {_PATIENCE_S:g} s.")
        return answer.result() if answer in done else None

    async def kill(self) -> None:
        """kill -9; returns when it is gone, with every connection of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        async with asyncio.timeout(_PATIENCE_S):
            await self.gone.wait()

    def hear(self, told: dict[str, Any]) -> None:
        """Take a line of its."""
        if "answer" in told:
            future = self._answers.pop(told["answer"], None)
            if future is not None and not future.done():
                future.set_result(Answer(told["status"], told["body"], told["replayed"]))
        elif "mark" in told:
            self._reached.add(told["order"])
            if not self._marks[told["order"]].done():
                self._marks[told["order"]].set_result(told["mark"])

    def end(self) -> None:
        """Note that it is gone."""
        self.gone.set()
        self._writer.close()


@final
class Desk:
    """
    Orders workers of the mould, hears them, and stands for the provider that their effects go to.

    Attributes:
        effects: The attempt of each effect, by order, where effects are the desk's.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._server: asyncio.Server | None = None
        self._mould: asyncio.StreamWriter | None = None
        self._has_mould = asyncio.Event()
        self._awaited: dict[str, asyncio.Future[Worker]] = {}
        self._workers: list[Worker] = []
        self._connections: set[asyncio.StreamWriter] = set()
        self.effects: defaultdict[str, list[int]] = defaultdict(list)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, family=socket.AF_INET, limit=LIMIT, backlog=256
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            if not worker.gone.is_set():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
        for writer in self._connections:
            writer.close()
        if self._server is not None:
            self._server.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def worker(self, name: str, url: str) -> Worker:
        """Have the mould fork a worker on the store of *url*."""
        async with asyncio.timeout(_PATIENCE_S):
            await self._has_mould.wait()
        assert self._mould is not None
        self._awaited[name] = asyncio.get_running_loop().create_future()
        self._mould.write(json.dumps({"fork": name, "url": url}).encode() + b"\n")
        done, _ = await asyncio.wait([self._awaited[name]], timeout=_PATIENCE_S)
        if not done:
            raise TimeoutError(f"The worker {name} did not come up within {_PATIENCE_S:g} s.")
        self._run.recorder.note("started", process=name, by="nemesis")
        return self._awaited.pop(name).result()

    async def kill(self, worker: Worker) -> None:
        """kill -9 a worker, and write that down."""
        await worker.kill()
        self._run.recorder.note("died", process=worker.name, by="nemesis")

    async def insist(self, worker: Worker, order: str, *, guarded: bool = True) -> Answer:
        """Repeat *order* until it is answered for good, as a client does, and write the answer down."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            answer = await worker.order(order, guarded=guarded)
            assert answer is not None, "an order without a mark is answered"
            if answer.status != 503 and answer.body != "in-flight":
                break
            if time.monotonic() > until:
                raise TimeoutError(f"{order} was not answered for good within {_PATIENCE_S:g} s: {answer.body}")
            await asyncio.sleep(_PAUSE_S)
        if guarded:
            body = hashlib.sha256(answer.body.encode()).hexdigest()[:16]
            self._run.recorder.note(
                "answer", record=order, principal="alice", status=answer.status, body=body, replayed=answer.replayed
            )
        return answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        worker: Worker | None = None
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                told: dict[str, Any] = json.loads(line)
                if "hello" not in told:
                    assert worker is not None
                    self._hear(worker, told)
                elif told["hello"] in self._awaited:
                    worker = Worker(told["hello"], writer, told["pid"])
                    self._workers.append(worker)
                    self._awaited[worker.name].set_result(worker)
                else:
                    self._mould = writer
                    self._has_mould.set()
        self._connections.discard(writer)
        if worker is not None:
            worker.end()

    def _hear(self, worker: Worker, told: dict[str, Any]) -> None:
        if "effect" in told:
            self.effects[told["effect"]].append(told["attempt"])
            if not told["effect"].startswith("control"):
                self._run.recorder.note(
                    "effect", process=worker.name, record=told["effect"], attempt=told["attempt"], committed=True
                )
            worker.say(go=told["go"])
        else:
            worker.hear(told)
