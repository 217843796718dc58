"""Clients that repeat a request under its idempotency key until it is answered, on whatever instance."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final, final

from simulation.life import Life
from simulation.network import NetworkError
from simulation.scene import Scene
from tenure.errors import (
    IdempotencyError,
    InFlightError,
    KeyReusedError,
    NoEffectError,
    OutcomeUnknownError,
    TenureError,
)
from tenure.events import Event, ExecutionLost, IdempotencyOutcome, RecordOutcome
from tenure.idempotency import IdempotencyContext

__all__ = ["Requests"]

_FINAL: Final = frozenset({"done", "outcome unknown", "key reused"})
"""Answers after which a client does not ask again."""


@final
class Requests:
    """The requests of a run, and their clients."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._rng = random.Random(f"requests {scene.plan.seed}")
        self._keys = 0
        self.unanswered: dict[int, str] = {}
        self._clients = 0
        self._ends: list[asyncio.Task[None]] = []

    async def arrive(self) -> None:
        """Have requests come in until the faults are over, then see the last ones answered."""
        scene, rng = self._scene, self._rng
        while not scene.calm:
            self._keys += 1
            key, refuses = f"request:{self._keys}", rng.random() < 0.3
            scene.effects.expect(key, refuses=refuses)
            for _ in range(rng.choice((1, 1, 2))):
                self._start(self._client(key, refuses=refuses))
            if rng.random() < 0.1:
                self._start(self._client(key, refuses=refuses, fingerprint="another"))
            await scene.wait_until(scene.loop.time() + scene.plan.ttl_s * rng.uniform(0.3, 1.0))
        if self._ends:
            await asyncio.wait(self._ends)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._ends.append(self._scene.loop.create_task(work))

    async def _client(self, key: str, *, refuses: bool, fingerprint: str = "one") -> None:
        scene, rng = self._scene, self._rng
        self._clients += 1
        number = self._clients
        self.unanswered[number] = key
        while not scene.stopping:
            answer: asyncio.Future[str] = scene.loop.create_future()
            lives = scene.lives_up()
            if lives:
                life = rng.choice(lives)
                scene.network.later(0.002, self._deliver, life, key, refuses, fingerprint, answer)
            await asyncio.wait({answer}, timeout=scene.plan.ttl_s * rng.uniform(0.4, 0.8))
            if answer.done() and answer.result() in _FINAL:
                scene.journal.say("client", f"{key}: {answer.result()}")
                self.unanswered.pop(number)
                return
            await scene.wait_until(scene.loop.time() + scene.plan.ttl_s * rng.uniform(0.05, 0.3))

    def _deliver(self, life: Life, key: str, refuses: bool, fingerprint: str, answer: "asyncio.Future[str]") -> None:
        if life.up and life.idempotency is not None:
            life.spawn_user(self._handle(life, key, refuses, fingerprint, answer))

    async def _handle(
        self, life: Life, key: str, refuses: bool, fingerprint: str, answer: "asyncio.Future[str]"
    ) -> None:
        assert life.idempotency is not None
        scene, ran = self._scene, [False]
        wait_s = self._rng.choice((0.0, 0.0, round(scene.plan.ttl_s / 2, 3)))

        async def carry_out(context: IdempotencyContext) -> Any:
            ran[0] = True
            return await self._carry_out(life, key, context)

        try:
            value = await life.idempotency.run(
                key, fingerprint, carry_out, wait=wait_s, on_abandoned="refuse" if refuses else "rerun"
            )
            if not ran[0]:
                scene.effects.replayed(key, value)
            said = "done"
        except InFlightError:
            said = "in flight"
        except OutcomeUnknownError:
            # Its own "unknown" may be followed by an answer; being refused may not.
            said = "outcome unknown" if not ran[0] and refuses else "failed"
        except KeyReusedError:
            said = "key reused"
        except (IdempotencyError, TenureError, NetworkError) as error:
            said = type(error).__name__
        scene.journal.saw(f"a request: {said}")
        scene.network.later(0.002, _answer, answer, said)

    async def _carry_out(self, life: Life, key: str, context: IdempotencyContext) -> dict[str, Any]:
        scene, rng = self._scene, self._rng
        await life.sleep(scene.plan.ttl_s * rng.choice((0.01, 0.2, 0.6)))
        drawn = 1.0 if scene.calm else rng.random()
        if drawn < 0.1:
            raise NoEffectError("nothing happened")
        scene.effects.commit(key, context.attempt, life.name)
        if drawn < 0.2:
            raise OutcomeUnknownError
        await life.sleep(scene.plan.ttl_s * rng.choice((0.01, 0.1)))
        return {"key": key, "attempt": context.attempt, "drawn": rng.randrange(10**6)}

    def heard(self, event: Event) -> None:
        """Count what becomes of executions; a hook."""
        if isinstance(event, RecordOutcome) and event.outcome is not IdempotencyOutcome.BYPASSED:
            self._scene.journal.saw(f"an outcome: {event.outcome.value}")
        elif isinstance(event, ExecutionLost):
            self._scene.journal.saw("an execution lost its lock")


def _answer(future: "asyncio.Future[str]", said: str) -> None:
    if not future.done():
        future.set_result(said)
