"""C25 and C26: a request's handler is killed around its completion; and a storm of repeats at three processes."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, final

from chaos.holders import HolderProcess
from chaos.programs.idempotent_desk import Answer, Desk, Worker
from chaos.programs.idempotent_storm import Response, storm
from chaos.programs.idempotent_worker import ORDERS, Mark
from chaos.scenario import Run, scenario
from chaos.stores import Backend, backend, proxied
from tenure_postgres import create_idempotency_schema_sql
from tenure_testbed import Blackhole, FaultProxy

LOCK_TTL_S = 1.0
_PATIENCE_S = 60.0
_REACH_S = 15.0
"""Until a worker stands at its mark, however often it has to be given its order."""

_LANES = 8
"""Workers that live and die at the same time."""

_SURVIVORS = 2
_DOUBLING = (Mark.AFTER_THE_COMMIT, Mark.AFTER_COMPLETE)
"""The marks at which a repeat doubles the effect where nobody remembers it."""

_PROGRAM = "chaos.programs.idempotent_worker"

_APP = "chaos.programs.idempotent_app"
_SERVERS = 3
_KEY = "the-one-key"


@final
@dataclass
class Deaths:
    """
    Workers that are killed at their marks, and what their clients come to.

    Attributes:
        answers: For each order the first answer after the death, and those of the repeats behind it.
        marks: The mark of each order, without those of the control.
        spoilt: Orders that were through before the mark, for the machine stood still; others took their places.
    """

    run: Run
    desk: Desk
    found: Backend
    survivors: list[Worker] = field(default_factory=list)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    spoilt: int = 0

    async def happen(self) -> None:
        """Kill a worker at each mark so many times, and at some without the layer."""
        for number in range(_SURVIVORS):
            self.survivors.append(await self.desk.worker(f"survivor-{number}", self.found.url))
        deaths: list[Callable[[FaultProxy, str], Awaitable[None]]] = []
        for number in range(self.run.n):
            deaths += [self._one(mark, number) for mark in Mark]
        for number in range(max(2, self.run.n // 10)):
            deaths += [self._control(mark, number) for mark in _DOUBLING]
        waiting = iter(deaths)
        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(_LANES):
                    lanes.create_task(self._lane(waiting))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were cancelled for it

    async def _lane(self, waiting: Any) -> None:
        """One death after the other, behind a proxy of one's own."""
        async with proxied(self.found) as (proxy, url):
            for death in waiting:
                await death(proxy, url)

    def _one(self, mark: Mark, number: int) -> Callable[[FaultProxy, str], Awaitable[None]]:
        async def death(proxy: FaultProxy, url: str) -> None:
            order = f"{mark.value} {number}"
            victim = await self.desk.worker(f"worker {order}", url)
            while not await _reach(victim, order, mark):
                await self.desk.kill(victim)
                self.spoilt += 1
                if self.spoilt > self.run.n:
                    raise TimeoutError(
                        f"Workers answer, and do not come to their mark; the last one's was {mark.value}."
                    )
                order += " again"
                victim = await self.desk.worker(f"worker {order}", url)
            self.marks[order] = mark
            if mark is Mark.DURING_COMPLETE:
                await _send_into_a_blackhole(proxy, victim, order)
            await self.desk.kill(victim)
            late = number % 2 == 0
            if not late:
                proxy.reset_all()
                proxy.heal()
            answers = [await self.desk.insist(self.survivors[0], order)]
            # What was sent before the death arrives now, when somebody else has done the work.
            proxy.heal()
            await _until(lambda: proxy.counters.open == 0, "the late completion to arrive")
            answers += [await self.desk.insist(survivor, order) for survivor in self.survivors]
            self.answers[order] = answers

        return death

    def _control(self, mark: Mark, number: int) -> Callable[[FaultProxy, str], Awaitable[None]]:
        order = f"control {mark.value} {number}"

        async def death(proxy: FaultProxy, url: str) -> None:
            victim = await self.desk.worker(f"worker {order}", url)
            reached = await _reach(victim, order, mark, guarded=False)
            assert reached, "nothing stands between an order without the layer and its mark"
            await self.desk.kill(victim)
            await self.desk.insist(self.survivors[0], order, guarded=False)

        return death

    async def effects(self) -> dict[str, list[int]]:
        """The attempts of the effects of each order."""
        if self.run.store != "postgres":
            return self.desk.effects
        found: defaultdict[str, list[int]] = defaultdict(list)
        rows = await asyncio.to_thread(self.found.server.execute, "SELECT name, attempt FROM orders")
        for name, attempt in rows:
            found[name].append(int(attempt))
        return found


async def _reach(victim: Worker, order: str, mark: Mark, *, guarded: bool = True) -> bool:
    """
    Give it the order until it stands at the mark: on a busy machine the store may not have answered in time.

    Returns:
        Whether it does. Where the machine stood still in between, the order may be through without it.
    """
    until = time.monotonic() + _REACH_S
    while await victim.order(order, guarded=guarded, mark=mark) is not None:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(LOCK_TTL_S / 10)
    return True


async def _send_into_a_blackhole(proxy: FaultProxy, victim: Worker, order: str) -> None:
    """Let the completion go, and return when the proxy has it. One that was given up is let go in its next try."""
    proxy.set(to_server=Blackhole())

    def held() -> bool:
        victim.say(go=order)
        return proxy.counters.held > 0

    await _until(held, "the completion to be sent")


async def _until(reached: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not reached():
        if time.monotonic() > until:
            raise TimeoutError(f"Waited {_PATIENCE_S:g} s in vain for {what}.")
        await asyncio.sleep(0.01)


@scenario(
    "C25",
    "kill -9 of a request's handler before, during and after its completion",
    claims="H10",
    stores=("postgres", "valkey", "valkey-redis"),
    quick=5,
    full=100,
    quick_stores=("postgres", "valkey"),
)
async def a_handler_is_killed(run: Run) -> None:
    """Each order is repeated until it is answered for good; then its effects are counted."""
    async with backend(run.store) as found, Desk(run) as desk:
        _note_run(run)
        arguments = ["--url", found.url, "--desk", str(desk.port), "--lock-ttl", str(LOCK_TTL_S)]
        if run.store == "postgres":
            await asyncio.to_thread(found.server.execute, f"{create_idempotency_schema_sql()};{ORDERS}")
            arguments += ["--effects", found.url]
        mould = HolderProcess(run, "mould", *arguments, module=_PROGRAM)
        try:
            await mould.start()
            deaths = Deaths(run, desk, found)
            await deaths.happen()
            effects = await deaths.effects()
        finally:
            await mould.close()
    _judge(run, deaths, effects)
    run.check_history()


def _note_run(run: Run) -> None:
    run.promise(ttl_s=LOCK_TTL_S)


def _judge(run: Run, deaths: Deaths, effects: dict[str, list[int]]) -> None:
    orders = deaths.marks
    doubled = [order for order in orders if len(effects[order]) > 1]
    for mark in Mark:
        told = Counter(_told(deaths.answers[order][0]) for order, where in orders.items() if where is mark)
        run.figure(mark.value, ", ".join(f"{text} x{count}" for text, count in sorted(told.items())))
    run.zero("orders that were never carried out", sum(not effects[order] for order in orders), of=len(orders))
    if run.store == "postgres":
        run.zero("orders that were carried out twice", len(doubled), of=len(orders))
    else:
        run.figure("carried out again, and told so", sum(effects[order][-1] > 1 for order in doubled))
    run.figure("carried out twice", len(doubled))
    run.figure("spoilt by the machine", deaths.spoilt)
    again = [first for first in (deaths.answers[order][0] for order in orders) if first.body.startswith("{")]
    executed = [json.loads(first.body)["attempt"] for first in again if not first.replayed]
    run.zero("repeats that ran and were not told so", sum(attempt <= 1 for attempt in executed), of=len(executed))
    repeats = [(deaths.answers[order][0], each) for order in orders for each in deaths.answers[order][1:]]
    wrong = sum(each.body != first.body or each.status != first.status for first, each in repeats)
    run.zero("repeats behind an answer that got another one", wrong, of=len(repeats))
    controls = [order for order in effects if order.startswith("control")]
    run.control(
        "without the layer, orders carried out once",
        failed=sum(len(effects[each]) > 1 for each in controls),
        of=len(controls),
    )


def _told(answer: Answer) -> str:
    if answer.status != 200:
        return answer.body
    return "replayed" if answer.replayed else f"attempt {json.loads(answer.body)['attempt']}"


@scenario(
    "C26",
    "as many requests at once under one key, at three processes",
    claims="H10",
    stores=("postgres", "valkey", "valkey-redis", "valkey-cluster"),
    quick=200,
    full=1000,
    quick_stores=("postgres", "valkey"),
)
async def a_storm_of_repeats(run: Run) -> None:
    """One of them is carried out; the others are shown its answer, or told to come again, and are shown it then."""
    async with backend(run.store) as found:
        _note_run(run)
        if run.store == "postgres":
            await asyncio.to_thread(found.server.execute, create_idempotency_schema_sql())
        effects = run.directory / "effects"
        arguments = ("--url", found.url, "--effects", str(effects))
        async with _servers(run, *arguments) as servers:
            ports = [(await server.said("ready"))["port"] for server in servers]
            first = await storm(ports, "/orders", _KEY, run.n)
            again = await storm(ports, "/orders", _KEY, sum(each.status == 409 for each in first) or _SERVERS)
            control = await storm(ports, "/control", _KEY, min(run.n, 200))
            _judge_storm(run, first, again, effects.read_text().splitlines())
            run.control(
                "without the layer, carried out once",
                failed=len({each.body for each in control}) - 1,
                of=len(control),
            )
    run.check_history()


@contextlib.asynccontextmanager
async def _servers(run: Run, *arguments: str) -> AsyncIterator[list[HolderProcess]]:
    started = [HolderProcess(run, f"server-{number}", *arguments, module=_APP) for number in range(1, _SERVERS + 1)]
    try:
        await asyncio.gather(*(each.start() for each in started))
        yield started
    finally:
        await asyncio.gather(*(each.close() for each in started))


def _judge_storm(run: Run, first: list[Response], again: list[Response], effects: list[str]) -> None:
    for each in (*first, *again):
        body = hashlib.sha256(each.body).hexdigest()[:16]
        if each.status == 201:
            run.recorder.note("answer", record=_KEY, principal="alice", status=201, body=body, replayed=each.replayed)
    answered = [each for each in first if each.status == 201]
    told = [each for each in first if each.status == 409]
    run.figure("replayed at once", sum(each.replayed for each in answered))
    run.figure("told to come again", len(told))
    run.expect(bool(told), "nobody found it in flight: the storm was none")
    executions = effects.count("/orders")
    run.expect(executions >= 1, "nobody carried it out")
    run.zero("executions beside the first", max(0, executions - 1), of=run.n)
    run.zero("first answers beside the first", max(0, sum(not each.replayed for each in answered) - 1), of=run.n)
    run.zero("answers that are neither it nor a 409 in flight", len(first) - len(answered) - _in_flight(told), of=run.n)
    run.zero("that came again and were not shown it", sum(not each.replayed for each in again), of=len(again))
    bodies = Counter(each.body for each in (*answered, *again) if each.status == 201)
    run.zero("bodies that differ by a byte", bodies.total() - max(bodies.values(), default=0), of=bodies.total())


def _in_flight(told: list[Response]) -> int:
    return sum(json.loads(each.body).get("code") == "in-flight" for each in told)
