"""Stores whose replies tell what is not so."""

from typing import Any

from tenure.store import Acquired, Ending, Held
from tenure.testing.contract import remaining
from tenure.testing.mutants.model import Row, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


class _Tells(SoundStore):
    """Tells of a refusal what a mutant makes up; a listing stays true."""

    def left_of(self, row: Row) -> Any:
        raise NotImplementedError

    def refuse(self, row: Row, owner: str) -> Held:
        del owner
        return Held(self.left_of(row))


@WING.mutant(remaining.left_is_plausible, remaining.left_shrinks, remaining.left_is_enough)
class TellsSeconds(_Tells):
    """What is left is told in seconds."""

    def left_of(self, row: Row) -> Any:
        return max(1, int(row.expires_at - self.now()))


@WING.mutant(remaining.left_is_plausible, remaining.left_shrinks)
class TellsATime(_Tells):
    """The time of the expiry is told, instead of what is left until it."""

    def left_of(self, row: Row) -> Any:
        return int(row.expires_at * 1000)


@WING.mutant(remaining.left_is_plausible, remaining.left_shrinks)
class TellsAFraction(_Tells):
    """What is left is told as a floating-point number."""

    def left_of(self, row: Row) -> Any:
        return float(self.left_ms(row))


@WING.mutant(remaining.left_shrinks)
class TellsTheWholeTtl(_Tells):
    """What is told is the ttl that the lock was given, not what is left of it."""

    def left_of(self, row: Row) -> Any:
        return self.server.rows[f"ttl {row.key}"].token

    def grant(self, key: str, row: Row | None, owner: str, ttl_ms: int) -> Acquired:
        self.server.rows[f"ttl {key}"] = Row("", None, ttl_ms, 0.0, None)
        return super().grant(key, row, owner, ttl_ms)


@WING.mutant(remaining.left_shrinks)
class TellsNowAndThen(_Tells):
    """What is left is told while there is much of it, and nothing after."""

    def left_of(self, row: Row) -> Any:
        left = self.left_ms(row)
        return left if left > 2000 else None


@WING.mutant(remaining.left_is_enough)
class RoundsDown(_Tells):
    """What is left is rounded down: the waiter comes back a fraction early."""

    def left_of(self, row: Row) -> Any:
        return max(1, int((row.expires_at - self.now()) * 1000 - 0.5))


@WING.mutant(remaining.after_is_true)
class SaysReleasedOfAll(SoundStore):
    """Every grant says that the lock before it was released."""

    def ending(self, row: Row | None) -> Ending | None:
        return None if row is None else "released"


@WING.mutant(remaining.after_is_true)
class SaysExpiredOfAll(SoundStore):
    """The first grant of a key says that a lock before it has expired."""

    def ending(self, row: Row | None) -> Ending | None:
        return super().ending(row) or "expired"


@WING.mutant(remaining.after_is_true)
class TellsOfCrashesOnly(SoundStore):
    """A grant tells of an expiry, and keeps a release to itself."""

    def ending(self, row: Row | None) -> Ending | None:
        ending = super().ending(row)
        return ending if ending == "expired" else None
