"""
The network between the instances and the server, and what it does to a call.

A request and its reply each take a few milliseconds, which others' calls overtake. A fault may lose either, delay
either by up to two ttls, or deliver a request twice. A caller that left does not take its request back.
"""

import asyncio
import contextlib
import contextvars
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

from simulation.life import Life
from simulation.plan import Plan
from simulation.server import Server
from tenure.store import Acquired
from tenure.testing import VirtualTimeLoop

__all__ = ["Call", "CallWatcher", "Network", "NetworkError"]

_TRANSIT_S: Final = (0.0005, 0.004)
"""How long a request or a reply takes, in seconds, from and to."""

_MESSAGE_DRAWS: Final = 5
"""How many times as often a message meets a fault of calls as a call does."""

_RESET_SHARE: Final = 0.5
"""How many of the calls that are lost end with an error; the others never end by themselves."""


class NetworkError(Exception):
    """What a driver raises when its connection breaks: the outcome is unknown."""


class Call:
    """One call on its way."""

    __slots__ = ("args", "fate", "future", "life", "missed_s", "number", "op", "sent_at", "sent_on_clock")

    def __init__(self, number: int, life: Life, op: str, args: tuple[Any, ...]) -> None:
        self.number = number
        self.life = life
        self.op = op
        self.args = args
        self.fate: str | None = None
        self.sent_at = life.loop.time()
        self.sent_on_clock = life.clock.now()
        self.missed_s = life.clock.missed_s
        self.future: asyncio.Future[Any] = life.loop.create_future()


class CallWatcher(Protocol):
    """Who sees every call: when it is sent, and what the server answers at the moment when it does."""

    def sent(self, call: Call) -> None:
        """See a call leave its instance."""
        ...

    def performed(self, call: Call, reply: Any, *, repeated: bool) -> None:
        """See the server answer."""
        ...

    def granted_by_release(self, key: str, owner: str, granted: Acquired, *, lost: bool) -> None:
        """See a release grant *key* to *owner*, who waits; *lost* where nothing tells it."""
        ...


@final
class Network:
    """
    Carries calls.

    Args:
        loop: The true time.
        plan: What may happen to them.
        rng: Where it is drawn from.
        server: Where they go.
        watcher: Who sees them.
    """

    def __init__(
        self, loop: VirtualTimeLoop, plan: Plan, rng: random.Random, server: Server, watcher: CallWatcher
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._server = server
        self._watcher = watcher
        self._ttl_s = plan.ttl_s
        self._rates = plan.call_rates
        # The network is no part of any life: what is on its way arrives, whoever is paused.
        self._world = contextvars.Context()
        self._calls = 0
        self.fired: Counter[str] = Counter()
        self.down = False
        self.down_refuses = True
        self.torn_down = False
        self.cut_off: set[str] = set()
        """Names of instances that reach nobody."""
        self.ambush: Callable[[Call], None] | None = None
        """Shown each call as it is sent, for a fault that waits for one."""
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._hearers: dict[tuple[str, str], tuple[Life, asyncio.Future[Acquired]]] = {}
        # Grants that came where nobody listened yet.
        self._messages: dict[tuple[str, str], Acquired] = {}

    def heal(self) -> None:
        """Let every call through from now on."""
        self._rates = ()
        self.down = False
        self.cut_off.clear()
        self.ambush = None

    def call(self, life: Life, op: str, args: tuple[Any, ...]) -> Call:
        """Send a call; its `future` is resolved when the reply has arrived."""
        self._calls += 1
        call = Call(self._calls, life, op, args)
        if self.torn_down:
            call.future.set_exception(NetworkError("the run is over"))
            return call
        self._watcher.sent(call)
        if self.ambush is not None:
            self.ambush(call)
        if life.name in self.cut_off:
            self.fired["cut off"] += 1
            self._fail_perhaps(call)
            return call
        call.fate = self._draw_fate()
        if call.fate is not None:
            self.fired[call.fate] += 1
        if call.fate == "request lost":
            self._fail_perhaps(call)
            return call
        late_s = self._late_s() if call.fate == "request late" else 0.0
        self.later(self._transit_s() + late_s, self._arrive, call, False)
        if call.fate == "request repeated":
            # Mostly at once, as a network does; sometimes when nobody thinks of it any more.
            self.later(self._transit_s() + self._late_s() * self._rng.choice((0.05, 1.0)), self._arrive, call, True)
        return call

    def later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Have something happen in the world, whoever is paused then."""
        self._loop.call_at(self._loop.time() + seconds, callback, *args, context=self._world)

    def _draw_fate(self) -> str | None:
        if not self._rates:
            return None
        drawn = self._rng.random()
        for fault, rate in self._rates:
            if drawn < rate:
                return fault
            drawn -= rate
        return None

    def _transit_s(self) -> float:
        low, high = _TRANSIT_S
        return low + (high - low) * self._rng.random()

    def _late_s(self) -> float:
        return 2 * self._ttl_s * self._rng.random()

    def _arrive(self, call: Call, repeated: bool) -> None:
        if self.down:
            self.fired["store down"] += 1
            if self.down_refuses:
                self.later(self._transit_s(), self._fail, call)
            return
        try:
            reply = self._server.perform(call.op, call.args)
        except Exception as error:  # noqa: BLE001 -- a planted bug may raise anything: it is the caller's then
            self.later(self._transit_s(), self._fail, call, error)
            return
        self._watcher.performed(call, reply, repeated=repeated)
        if call.op == "release" and reply is True:
            self._wake_waiters(call.args[0])
            self._publish_grant(call.args[0])
        if repeated:
            return
        if call.fate == "reply lost":
            self._fail_perhaps(call)
            return
        late_s = self._late_s() if call.fate == "reply late" else 0.0
        self.later(self._transit_s() + late_s, self._deliver, call, reply)

    def _deliver(self, call: Call, reply: Any) -> None:
        if not call.future.done() and call.life.name not in self.cut_off:
            call.future.set_result(reply)

    def _fail_perhaps(self, call: Call) -> None:
        if self._rng.random() < _RESET_SHARE:
            self.later(self._ttl_s / 3 * self._rng.random(), self._fail, call)

    @staticmethod
    def _fail(call: Call, error: Exception | None = None) -> None:
        if not call.future.done():
            call.future.set_exception(error or NetworkError("connection reset"))

    # ------------------------------------------------------------------------------------- wake-ups

    async def released(self, key: str) -> None:
        """Return at the next release of *key*, a few milliseconds later."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.setdefault(key, []).append(waiter)
        try:
            await waiter
        finally:
            with contextlib.suppress(KeyError, ValueError):
                self._waiters[key].remove(waiter)

    def _wake_waiters(self, key: str) -> None:
        waiters: Sequence[asyncio.Future[None]] = self._waiters.pop(key, ())
        for waiter in waiters:
            self.later(self._transit_s(), _resolve, waiter)

    async def granted(self, life: Life, key: str, owner: str) -> Acquired:
        """Return when *life* hears that a release has granted *key* to *owner*."""
        message = self._messages.pop((key, owner), None)
        if message is not None:
            return message
        hearer: asyncio.Future[Acquired] = self._loop.create_future()
        self._hearers[key, owner] = life, hearer
        try:
            return await hearer
        finally:
            self._hearers.pop((key, owner), None)

    def _publish_grant(self, key: str) -> None:
        """Tell the head of the queue, if the release granted it the lock. A message may be lost, or late, as a call."""
        found = self._server.holder(key)
        if found is None:
            return
        owner, granted = found
        # Of messages there are few: they meet more faults than calls do, or none would meet what matters.
        fate = next((fate for _ in range(_MESSAGE_DRAWS) if (fate := self._draw_fate()) is not None), None)
        lost = fate in ("request lost", "reply lost")
        self._watcher.granted_by_release(key, owner, granted, lost=lost)
        if not lost:
            late_s = self._late_s() if fate in ("request late", "reply late") else 0.0
            self.later(self._transit_s() + late_s, self._tell, key, owner, granted)

    def _tell(self, key: str, owner: str, granted: Acquired) -> None:
        life, hearer = self._hearers.get((key, owner), (None, None))
        if hearer is None or life is None:
            self._messages[key, owner] = granted
        elif not hearer.done() and life.name not in self.cut_off:
            hearer.set_result(granted)


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
