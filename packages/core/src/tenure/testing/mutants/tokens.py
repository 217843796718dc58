"""Stores whose tokens do not fence."""

from typing import Any

from tenure.store import Acquired, Held
from tenure.testing.contract import queueing, races, repeating, tokens
from tenure.testing.mutants.model import Row, Server, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(tokens.token_is_an_int)
class TextTokens(SoundStore):
    """The token is the text that the driver read a bigint as."""

    def draw(self, row: Row | None, owner: str) -> Any:
        before = None if row is None else Row("", None, int(row.token), 0.0, None)
        return str(super().draw(before, owner))


@WING.mutant(tokens.token_is_an_int)
class FloatTokens(SoundStore):
    """The token is a floating-point number, as Lua has no other."""

    def draw(self, row: Row | None, owner: str) -> Any:
        return float(super().draw(row, owner))


@WING.mutant(tokens.token_is_an_int)
class FlagTokens(SoundStore):
    """The first token of a key is the True that said that its row was inserted."""

    def draw(self, row: Row | None, owner: str) -> Any:
        return True if row is None else super().draw(row, owner)


@WING.mutant(tokens.token_is_in_range)
class NanosecondTokens(SoundStore):
    """The token is the clock in nanoseconds: past 2**53 since April 1970."""

    def draw(self, row: Row | None, owner: str) -> Any:
        return max(super().draw(row, owner), 2**53 + 1)


@WING.mutant(tokens.token_is_in_range, tokens.tokens_grow_for_ever)
class TokensFromZero(SoundStore):
    """The first token of a key is 0."""

    def draw(self, row: Row | None, owner: str) -> Any:
        return 0 if row is None else super().draw(row, owner)


@WING.mutant(
    tokens.tokens_grow_across_a_release,
    races.tokens_are_in_order,
    repeating.own_released_lock_is_new,
    tokens.tokens_grow_for_ever,
    tokens.tokens_grow_across_a_restart,
    queueing.token_grows,
)
class KeepsTheTokenAcrossAHandOver(SoundStore):
    """A lock that was given back in good order hands its token on."""

    def draw(self, row: Row | None, owner: str) -> Any:
        return row.token if row is not None and row.owner is None else super().draw(row, owner)


@WING.mutant(
    tokens.tokens_grow_across_a_release,
    races.tokens_are_in_order,
    repeating.own_released_lock_is_new,
    tokens.tokens_grow_for_ever,
    tokens.tokens_grow_across_a_restart,
    queueing.token_grows,
)
class ForgetsTheReleased(SoundStore):
    """The counter lives in the row, and a release deletes the row."""

    def draw(self, row: Row | None, owner: str) -> Any:
        del owner
        return 1 if row is None or row.owner is None else row.token + 1


@WING.mutant(
    tokens.tokens_grow_across_an_expiry,
    races.expired_lock_has_one_winner,
    repeating.own_expired_lock_is_new,
    tokens.tokens_grow_for_ever,
)
class ForgetsTheExpired(SoundStore):
    """The counter expires with the lock."""

    def draw(self, row: Row | None, owner: str) -> Any:
        del owner
        return 1 if row is None or row.owner is not None else row.token + 1


@WING.mutant(
    tokens.tokens_grow_across_a_release,
    races.tokens_are_in_order,
    repeating.own_released_lock_is_new,
    tokens.tokens_grow_for_ever,
    tokens.tokens_grow_across_a_restart,
    queueing.token_grows,
)
class ClockTokens(SoundStore):
    """The token is the clock alone: two grants within one of its steps share it."""

    def draw(self, row: Row | None, owner: str) -> Any:
        del row
        return super().draw(None, owner)


@WING.mutant(tokens.tokens_grow_for_ever)
class WrapsRound(SoundStore):
    """The counter is a small integer that begins again."""

    def draw(self, row: Row | None, owner: str) -> Any:
        del owner
        return 1 if row is None else row.token % 15 + 1


@WING.mutant(tokens.refusal_keeps_the_token, queueing.free_key_is_taken)
class GrowsWithRefusals(SoundStore):
    """The row's token is drawn before it is known whether the caller gets the lock."""

    def refuse(self, row: Row, owner: str) -> Held:
        row.token += 1
        return super().refuse(row, owner)


@WING.mutant(tokens.renewal_keeps_the_token)
class GrowsWithRenewals(SoundStore):
    """renew() draws a token, as every statement that writes the row does."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        renewed = super().extend(key, owner, ttl_ms)
        row = self.find(key)
        if renewed and row is not None:
            row.token += 1
        return renewed


class _InMemoryCounters(Server):
    async def restart(self) -> None:
        """Start with the rows of the disk, and counters that begin again."""
        for row in self.rows.values():
            row.token = 0


@WING.mutant(tokens.tokens_grow_across_a_restart)
class ForgetsAtRestart(SoundStore):
    """The counter is in the server's memory."""

    server_kind = _InMemoryCounters

    def draw(self, row: Row | None, owner: str) -> Any:
        del owner
        return 1 if row is None else row.token + 1


class _LosesLocks(Server):
    async def restart(self) -> None:
        """Start with nothing."""
        self.rows.clear()


@WING.mutant(tokens.tokens_grow_across_a_restart)
class KeepsNothing(SoundStore):
    """The server persists nothing, and the tokens are counted from one."""

    server_kind = _LosesLocks

    def draw(self, row: Row | None, owner: str) -> Any:
        del owner
        return 1 if row is None else row.token + 1


@WING.mutant(races.tokens_are_in_order, queueing.expired_lock_grants_nobody)
class DrawsBeforeTheLock(SoundStore):
    """The token is drawn from a sequence in a request of its own, before the one that takes the key."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        self.check_arguments(key, owner, ttl_ms)
        sequence = self.server.rows.setdefault("sequence", Row("", None, 0, 0.0, None))
        sequence.token += 1
        drawn = sequence.token
        # Each third caller is held up on the way.
        for _ in range(12 if drawn % 3 == 0 else 1):
            await self.travel()
        row = self.find(key)
        if row is not None and self.is_live(row):
            return self.take(key, owner, ttl_ms)
        granted = self.grant(key, row, owner, ttl_ms)
        self.server.rows[self.name(key)].token = drawn
        return Acquired(drawn, granted.after)
