"""Stores that keep another response, or another part of the record."""

import asyncio
import json
from typing import Any

from tenure.idempotency_store import AcquireReply, Completed, Completion
from tenure.testing.idempotency_contract import classifying, ownership, races, releasing, responses, surviving
from tenure.testing.idempotency_mutants.model import Row, Server, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


class _Converts(SoundRecords):
    """Stores something else than it was given."""

    def converted(self, response: bytes) -> Any:
        raise NotImplementedError

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        super().store(row, self.converted(response), retention_ms)


@WING.mutant(responses.empty_is_kept)
class EmptyIsNone(SoundRecords):
    """A record is completed if it has a response, and an empty one is none."""

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        super().store(row, response, retention_ms)
        row.completed = bool(response)


@WING.mutant(
    responses.nul_is_kept,
    responses.every_byte_is_kept,
    responses.large_is_kept,
    responses.complete_is_one_write,
    surviving.records_survive,
    races.acquire_against_complete,
)
class CutsAtNul(_Converts):
    """A response is cut at its first NUL."""

    def converted(self, response: bytes) -> bytes:
        return response.split(b"\0", maxsplit=1)[0]


@WING.mutant(
    responses.every_byte_is_kept,
    responses.large_is_kept,
    responses.complete_is_one_write,
    races.acquire_against_complete,
)
class DecodesAndEncodes(_Converts):
    """A response is kept as text."""

    def converted(self, response: bytes) -> bytes:
        return response.decode("utf-8", errors="replace").encode()


@WING.mutant(responses.looks_are_nothing)
class RewritesJson(_Converts):
    """A response that is JSON is kept as jsonb is: in another order, and without its spaces."""

    def converted(self, response: bytes) -> bytes:
        try:
            return json.dumps(json.loads(response), sort_keys=True).encode()
        except ValueError:
            return response


@WING.mutant(responses.looks_are_nothing)
class StripsResponses(_Converts):
    """A response is stripped of white space at its ends."""

    def converted(self, response: bytes) -> bytes:
        return response.strip()


@WING.mutant(responses.large_is_kept)
class CutsLargeResponses(_Converts):
    """A response is cut at 64 kibibytes."""

    def converted(self, response: bytes) -> bytes:
        return response[: 2**16]


@WING.mutant(
    responses.every_byte_is_kept,
    responses.large_is_kept,
    responses.complete_is_one_write,
    races.acquire_against_complete,
)
class GivesAnotherType(_Converts):
    """A response that is no text is given as what the driver has read: a bytearray."""

    def converted(self, response: bytes) -> Any:
        return response if response.isascii() else bytearray(response)


@WING.mutant(responses.fingerprint_is_kept, classifying.mismatch_completed)
class ForgetsTheFingerprint(SoundRecords):
    """C8. complete() writes the row without its fingerprint, which then is any."""

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        super().store(row, response, retention_ms)
        row.fingerprint = ""

    def is_same(self, row: Row, new: Row) -> bool:
        return not row.fingerprint or super().is_same(row, new)


@WING.mutant(responses.responses_are_apart)
class OneResponseAnOwner(SoundRecords):
    """Responses are kept by who completed them."""

    def replay(self, row: Row, owner: str) -> AcquireReply:
        del owner
        return Completed(self.server.marks[row.owner], row.owner)

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        super().store(row, response, retention_ms)
        self.server.marks[row.owner] = response


@WING.mutant(responses.owner_is_named, ownership.replaced_does_not_overwrite, releasing.second_completes)
class NamesTheFirstOwner(SoundRecords):
    """An outcome names the owner of the first attempt."""

    def take_over(self, key: str, row: Row, new: Row) -> AcquireReply:
        self.server.marks.setdefault(new.owner, row.owner)
        return super().take_over(key, row, new)

    def replay(self, row: Row, owner: str) -> AcquireReply:
        del owner
        return Completed(row.response, self.server.marks.get(row.owner, row.owner))


@WING.mutant(responses.complete_is_one_write, races.acquire_against_complete)
class WritesTheStateFirst(SoundRecords):
    """C7. complete() writes the state, then the response, in two requests."""

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        was_open = row is not None and not row.completed
        reply = await super().complete(key, owner, response, retention_ms)
        if was_open and row is not None and row.completed and reply is Completion.STORED:
            row.response = b""
            await self.travel()
            row.response = response
        return reply


@WING.mutant(responses.complete_is_one_write)
class WritesTheTimeLast(SoundRecords):
    """C7. complete() writes the response, then its time, in two requests."""

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        kept = None if row is None or row.completed else row.expires
        reply = await super().complete(key, owner, response, retention_ms)
        if kept is not None and row is not None and row.completed and reply is Completion.STORED:
            ends, row.expires = row.expires, kept
            await asyncio.sleep(0)
            row.expires = ends
        return reply


class _ForgetsRows(Server):
    """Has its rows in memory."""

    async def restart(self) -> None:
        self.rows.clear()


@WING.mutant(surviving.records_survive)
class ForgetsAtRestart(SoundRecords):
    """The table is unlogged: a restart empties it."""

    server_kind = _ForgetsRows
