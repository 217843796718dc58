"""Stores that make a ttl of what is none."""

from typing import Any

from tenure._durations import MAX_MS
from tenure.store import check_key, check_owner, check_ttl_ms
from tenure.testing.contract import durations, queueing, renewing_many
from tenure.testing.mutants.model import SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


class _Lenient(SoundStore):
    """Reads a ttl in its own way."""

    def read(self, ttl_ms: Any) -> Any:
        raise NotImplementedError

    def check_arguments(self, key: str, owner: str, ttl_ms: int) -> None:
        check_key(key)
        check_owner(owner)
        check_ttl_ms(self.read(ttl_ms))

    def expiry(self, ttl_ms: int) -> float:
        return super().expiry(self.read(ttl_ms))


@WING.mutant(durations.zero_is_refused, renewing_many.bad_claims_are_refused, queueing.arguments_are_refused)
class TakesNone(_Lenient):
    """A ttl of 0 or less is the shortest one."""

    def read(self, ttl_ms: Any) -> Any:
        return max(1, ttl_ms) if type(ttl_ms) is int else ttl_ms


@WING.mutant(durations.bools_are_refused, renewing_many.bad_claims_are_refused, queueing.arguments_are_refused)
class TakesFlags(_Lenient):
    """A bool is a number, and the ttl a millisecond."""

    def read(self, ttl_ms: Any) -> Any:
        return max(1, int(ttl_ms)) if isinstance(ttl_ms, bool) else ttl_ms


@WING.mutant(durations.fractions_are_refused, renewing_many.bad_claims_are_refused, queueing.arguments_are_refused)
class RoundsFractions(_Lenient):
    """A fraction of a millisecond is rounded."""

    def read(self, ttl_ms: Any) -> Any:
        return max(1, round(ttl_ms)) if isinstance(ttl_ms, float) and 0 < ttl_ms < MAX_MS else ttl_ms


@WING.mutant(durations.text_is_refused, queueing.arguments_are_refused)
class ReadsText(_Lenient):
    """A ttl in text is read as a number."""

    def read(self, ttl_ms: Any) -> Any:
        return int(ttl_ms) if isinstance(ttl_ms, str) and ttl_ms.isdigit() else ttl_ms


@WING.mutant(durations.centuries_are_refused, queueing.arguments_are_refused)
class TakesCenturies(_Lenient):
    """A ttl beyond a hundred years is cut to them."""

    def read(self, ttl_ms: Any) -> Any:
        return min(ttl_ms, MAX_MS) if type(ttl_ms) is int else ttl_ms
