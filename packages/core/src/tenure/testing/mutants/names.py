"""Stores that take one key for another, or what is none."""

import unicodedata
import urllib.parse
import zlib
from collections.abc import Sequence
from typing import Any

from tenure.errors import ConfigurationError
from tenure.store import Acquired, Claim, check_key, check_owner, check_ttl_ms
from tenure.testing.contract import durations, keys, listing, queueing, races, renewing_many
from tenure.testing.mutants.model import Row, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(
    keys.case_is_kept, keys.keys_are_text, listing.lists_the_live, listing.prefix_is_exact, queueing.queues_are_exact
)
class FoldsCase(SoundStore):
    """The key's column ignores case."""

    def name(self, key: str) -> str:
        return key.lower()


@WING.mutant(keys.spaces_are_kept, queueing.queues_are_exact)
class StripsSpaces(SoundStore):
    """The key is stripped of white space at its ends."""

    def name(self, key: str) -> str:
        return key.strip()


@WING.mutant(keys.spaces_are_kept, queueing.queues_are_exact)
class PadsKeys(SoundStore):
    """The key's column is padded with spaces, as char(n) is."""

    def name(self, key: str) -> str:
        return key.rstrip(" ")


@WING.mutant(keys.normal_forms_are_apart, queueing.queues_are_exact)
class Composes(SoundStore):
    """The key is stored in normal form C."""

    def name(self, key: str) -> str:
        return unicodedata.normalize("NFC", key)


@WING.mutant(keys.normal_forms_are_apart)
class ComposesForCompatibility(SoundStore):
    """The key is stored in normal form KC: a ligature is its letters."""

    def name(self, key: str) -> str:
        return key.replace("\ufb01", "fi")


@WING.mutant(keys.collation_is_exact)
class Collates(SoundStore):
    """The key's index follows a linguistic collation: joiners are ignored, and a sharp s is two."""

    def name(self, key: str) -> str:
        return key.replace("\u00df", "ss").replace("\u200d", "").replace("\u00ad", "")


@WING.mutant(keys.collation_is_exact)
class IgnoresAccents(SoundStore):
    """The key's collation ignores accents."""

    def name(self, key: str) -> str:
        return key.replace("r\u00e9sum\u00e9", "resume")


@WING.mutant(keys.marks_are_data)
class CutsAtBraces(SoundStore):
    """The key is put into a hash tag as it is: what stands in its own braces is all that counts."""

    def name(self, key: str) -> str:
        return key.replace("{a}", "a")


@WING.mutant(keys.marks_are_data)
class DecodesPercent(SoundStore):
    """Braces are escaped with percent signs, and percent signs are not."""

    def name(self, key: str) -> str:
        return urllib.parse.unquote(key)


@WING.mutant(keys.marks_are_data)
class EscapesTwice(SoundStore):
    """A quote is doubled by hand, and what was doubled already is taken for it."""

    def name(self, key: str) -> str:
        return key.replace("''", "'").replace("\\\\", "\\")


@WING.mutant(keys.keys_are_text)
class GuessesNumbers(SoundStore):
    """What looks like a number is stored as one."""

    def name(self, key: str) -> str:
        stem, _, last = key.rpartition(":")
        try:
            return f"{stem}:{float(last):g}"
        except ValueError:
            return key


@WING.mutant(keys.keys_are_text)
class GuessesNull(SoundStore):
    """What reads null is stored as nothing."""

    def name(self, key: str) -> str:
        return key.removesuffix("null")


@WING.mutant(keys.neighbours_are_apart, listing.lists_the_live)
class KeepsTheOwnerBeside(SoundStore):
    """A key's owner is kept under the key with a suffix, where a job's own lease lives."""

    def grant(self, key: str, row: Row | None, owner: str, ttl_ms: int) -> Acquired:
        granted = super().grant(key, row, owner, ttl_ms)
        if not key.endswith(":owner"):
            beside = Row(f"{key}:owner", owner, granted.token, self.expiry(ttl_ms), None)
            self.server.rows[self.name(beside.key)] = beside
        return granted

    def free(self, key: str, owner: str) -> bool:
        freed = super().free(key, owner)
        if freed:
            self.server.rows.pop(f"{key}:owner", None)
        return freed

    def is_listed(self, row: Row, prefix: str) -> bool:
        return not row.key.endswith(":owner") and super().is_listed(row, prefix)


@WING.mutant(keys.neighbours_are_apart)
class DropsTheSlot(SoundStore):
    """What follows an @ is taken for a comment."""

    def name(self, key: str) -> str:
        return key.partition("@")[0]


@WING.mutant(keys.long_keys_are_whole)
class CutsLongKeys(SoundStore):
    """The key's column has 255 characters, and the rest is cut."""

    def name(self, key: str) -> str:
        return key[:255]


@WING.mutant(keys.long_keys_are_whole)
class CutsLongBytes(SoundStore):
    """The key's index takes 1 900 bytes: not quite 500 characters of four."""

    def name(self, key: str) -> str:
        return key.encode()[:1900].decode(errors="ignore")


# Ten locks among a thousand names, of 65 536 numbers: one time in seven two of them are one.
@WING.mutant(races.names_do_not_collide, sometimes=[renewing_many.a_thousand_claims])
class HashesToSixteenBits(SoundStore):
    """The lock's number is two bytes of a checksum of the key."""

    def name(self, key: str) -> str:
        return str(zlib.crc32(key.encode()) & 0xFFFF)


class _Lenient(SoundStore):
    """Checks as the rules say, but for what a mutant lets through."""

    def lets_key_through(self, key: Any) -> bool:
        del key
        return False

    def lets_owner_through(self, owner: Any) -> bool:
        del owner
        return False

    def check_arguments(self, key: str, owner: str, ttl_ms: int) -> None:
        if not self.lets_key_through(key):
            check_key(key)
        if not self.lets_owner_through(owner):
            check_owner(owner)
        check_ttl_ms(ttl_ms)


@WING.mutant(keys.bad_keys_are_refused, renewing_many.bad_claims_are_refused, queueing.arguments_are_refused)
class TakesEmptyKeys(_Lenient):
    """An empty key is a key."""

    def lets_key_through(self, key: Any) -> bool:
        return bool(key == "")


@WING.mutant(keys.bad_keys_are_refused)
class TakesKeysOfAnyLength(_Lenient):
    """A key of 501 characters is a key."""

    def lets_key_through(self, key: Any) -> bool:
        return isinstance(key, str) and len(key) > 500


@WING.mutant(keys.bad_keys_are_refused, renewing_many.bad_claims_are_refused, queueing.arguments_are_refused)
class TakesNul(_Lenient):
    """A key with NUL is a key, as Redis has them."""

    def lets_key_through(self, key: Any) -> bool:
        return isinstance(key, str) and "\0" in key


@WING.mutant(keys.bad_keys_are_refused)
class TakesSurrogates(_Lenient):
    """A lone surrogate is encoded as a question mark."""

    def lets_key_through(self, key: Any) -> bool:
        return isinstance(key, str) and key.endswith("\ud800")


@WING.mutant(keys.bad_keys_are_refused)
class TakesBytes(_Lenient):
    """Bytes are a key, decoded."""

    def lets_key_through(self, key: Any) -> bool:
        return isinstance(key, bytes)


@WING.mutant(keys.bad_owners_are_refused, renewing_many.bad_claims_are_refused, queueing.arguments_are_refused)
class TakesAnyOwner(_Lenient):
    """An owner with NUL is an owner."""

    def lets_owner_through(self, owner: Any) -> bool:
        return isinstance(owner, str) and "\0" in owner


@WING.mutant(keys.bad_keys_are_refused, renewing_many.bad_claims_are_refused, queueing.arguments_are_refused)
class RefusesInItsOwnWords(SoundStore):
    """A key that the driver cannot send is refused by the driver, after it was sent."""

    def check_arguments(self, key: str, owner: str, ttl_ms: int) -> None:
        try:
            check_key(key)
        except ConfigurationError as error:
            raise UnicodeError(str(error)) from None
        super().check_arguments(key, owner, ttl_ms)


@WING.mutant(keys.bad_owners_are_refused, renewing_many.bad_claims_are_refused, queueing.arguments_are_refused)
class TellsTheOwner(SoundStore):
    """The refusal of an owner says which one."""

    def check_arguments(self, key: str, owner: str, ttl_ms: int) -> None:
        try:
            check_owner(owner)
        except ConfigurationError as error:
            raise ConfigurationError(f"The owner {owner!r} is none.") from error
        super().check_arguments(key, owner, ttl_ms)


@WING.mutant(
    keys.bad_keys_are_refused,
    durations.zero_is_refused,
    durations.bools_are_refused,
    durations.fractions_are_refused,
    durations.text_is_refused,
    durations.centuries_are_refused,
    keys.bad_owners_are_refused,
    renewing_many.bad_claims_are_refused,
)
class ChecksOnTheWayInOnly(SoundStore):
    """acquire() checks its arguments; renew() and release() trust that what they are given was acquired."""

    async def release(self, key: str, owner: str) -> bool:
        await self.travel()
        return self.free(key, owner)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        await self.travel()
        return self.extend(key, owner, ttl_ms)

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        return [await self.renew(claim.key, claim.owner, claim.ttl_ms) for claim in claims]
