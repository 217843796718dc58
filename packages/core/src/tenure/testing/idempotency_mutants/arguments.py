"""Stores that make a duration, a response or a limit of what is none."""

from typing import Any

from tenure._durations import MAX_MS
from tenure.idempotency_store import check_ttl_ms
from tenure.testing.idempotency_contract import arguments
from tenure.testing.idempotency_mutants.model import Row, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


class _Lenient(SoundRecords):
    """Reads a duration in its own way."""

    def read(self, span_ms: Any) -> Any:
        raise NotImplementedError

    def check_span(self, span_ms: int) -> None:
        check_ttl_ms(self.read(span_ms))

    def span(self, span_ms: int) -> int:
        return int(self.read(span_ms))


@WING.mutant(arguments.zero_is_refused)
class TakesNone(_Lenient):
    """A duration of 0 or less is the shortest one."""

    def read(self, span_ms: Any) -> Any:
        return max(1, span_ms) if type(span_ms) is int else span_ms


@WING.mutant(arguments.bools_are_refused)
class TakesFlags(_Lenient):
    """A bool is a number, and the duration a millisecond."""

    def read(self, span_ms: Any) -> Any:
        return max(1, int(span_ms)) if isinstance(span_ms, bool) else span_ms


@WING.mutant(arguments.fractions_are_refused)
class RoundsFractions(_Lenient):
    """A fraction of a millisecond is rounded."""

    def read(self, span_ms: Any) -> Any:
        return max(1, round(span_ms)) if isinstance(span_ms, float) and 0 < span_ms < MAX_MS else span_ms


@WING.mutant(arguments.text_is_refused)
class ReadsText(_Lenient):
    """A duration in text is read as a number."""

    def read(self, span_ms: Any) -> Any:
        return int(span_ms) if isinstance(span_ms, str) and span_ms.isdigit() else span_ms


@WING.mutant(arguments.centuries_are_refused)
class TakesCenturies(_Lenient):
    """A duration beyond a hundred years is cut to them."""

    def read(self, span_ms: Any) -> Any:
        return min(span_ms, MAX_MS) if type(span_ms) is int else span_ms


@WING.mutant(arguments.responses_are_bytes)
class TakesAnyResponse(SoundRecords):
    """A response of any type is turned into bytes."""

    def check_body(self, response: bytes) -> None:
        del response

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        super().store(row, response if isinstance(response, bytes) else repr(response).encode(), retention_ms)


@WING.mutant(arguments.limits_are_counts)
class TakesAnyLimit(SoundRecords):
    """A limit that is none is the usual one."""

    def check_count(self, limit: int) -> None:
        del limit

    async def purge(self, limit: int = 1000) -> int:
        return await super().purge(limit if type(limit) is int and limit > 0 else 1000)
