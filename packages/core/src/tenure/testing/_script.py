"""What can happen to a store call, as a test says it."""

from collections.abc import Callable, Collection
from typing import final

from tenure._durations import Duration
from tenure.errors import ConfigurationError
from tenure.testing import _passage
from tenure.testing._passage import Call, Fault, Rule
from tenure.testing._spans import span_s

__all__ = ["Faults"]


@final
class Faults:
    """
    The faults that can be set for the calls chosen by `FaultyStore.on()`.

    Each takes `times`, the number of calls that it meets; None is until `heal()`, or until the returned `Rule`
    is lifted. Durations are seconds, a `timedelta`, or a string, on the store's clock.
    """

    def __init__(
        self,
        rules: list[Rule],
        method: str,
        meets: Callable[[Call], bool],
        after: int,
        refusals: Collection[str],
    ) -> None:
        self._rules = rules
        self._method = method
        self._meets = meets
        self._after = after
        self._refusals = refusals

    def slow_request(self, duration: Duration, *, times: int | None = None) -> Rule:
        """The request takes *duration* to reach the store. A caller that gives up before takes it back."""
        return self._set("slow_request", _passage.slow_request(span_s(duration, name="duration")), times)

    def slow_reply(self, duration: Duration, *, times: int | None = None) -> Rule:
        """The store executes at once, and its reply takes *duration*."""
        return self._set("slow_reply", _passage.slow_reply(span_s(duration, name="duration")), times)

    def lose_request(self, *, times: int | None = None) -> Rule:
        """The call raises `FaultError`, and nothing was executed."""
        return self._set("lose_request", _passage.lose_request, times)

    def lose_reply(self, *, times: int | None = None) -> Rule:
        """The call raises `FaultError` after it was executed."""
        return self._set("lose_reply", _passage.lose_reply, times)

    def fail(self, error: Exception | Callable[[], Exception], *, times: int | None = None) -> Rule:
        """The call raises *error*, or what it returns, and nothing was executed."""
        return self._set("fail", _passage.fail(error), times)

    def refuse(self, *, times: int | None = None) -> Rule:
        """
        The store says no, and nothing was executed: `Held()`, `InFlight`, or False. Other methods pass.

        Raises:
            ConfigurationError: The method has no way to say no.
        """
        if self._method != "*" and self._method not in self._refusals:
            raise ConfigurationError(f"{self._method}() cannot refuse; these can: {', '.join(self._refusals)}.")
        return self._set("refuse", _passage.refuse, times)

    def answer(self, reply: object, *, times: int | None = None) -> Rule:
        """The call is executed, and answers *reply*, whatever the store said."""
        return self._set("answer", _passage.answer(reply), times)

    def hang(self, *, ignore_cancellation: Duration = 0, times: int | None = None) -> Rule:
        """
        The call never answers, and is never executed. After `heal()` it raises `FaultError`.

        Args:
            ignore_cancellation: How long it goes on when cancelled, as a driver does that waits for its
                server's leave; `math.inf` is until `heal()`. Then the cancellation goes through.
            times: How many calls hang.
        """
        span = span_s(ignore_cancellation, name="ignore_cancellation", or_for_ever=True)
        return self._set("hang", _passage.hang(span), times)

    def execute_late(self, *, after: Duration | None = None, times: int | None = None) -> Rule:
        """
        The server is frozen: no answer until *after* has passed or `heal()` was called, then it executes.

        Also when the caller has given up by then: a request that was sent cannot be taken back, and an acquire
        that nobody waits for takes the key.
        """
        span = None if after is None else span_s(after, name="after")
        return self._set("execute_late", _passage.execute_late(span), times)

    def _set(self, kind: str, fault: Fault, times: int | None) -> Rule:
        rule = Rule(kind, self._method, fault, self._meets, times, self._after)
        self._rules.append(rule)
        return rule
