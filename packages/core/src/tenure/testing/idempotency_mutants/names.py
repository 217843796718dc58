"""Stores that take one name for another, or what is none."""

import unicodedata
import urllib.parse

from tenure.errors import ConfigurationError
from tenure.idempotency_store import check_fingerprint, check_key, check_owner
from tenure.testing.idempotency_contract import names
from tenure.testing.idempotency_mutants.model import SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(names.case_is_kept, names.keys_are_text)
class FoldsCase(SoundRecords):
    """The key's column ignores case."""

    def name(self, key: str) -> str:
        return key.lower()


@WING.mutant(names.spaces_are_kept)
class StripsSpaces(SoundRecords):
    """The key is stripped of white space at its ends."""

    def name(self, key: str) -> str:
        return key.strip()


@WING.mutant(names.spaces_are_kept)
class PadsKeys(SoundRecords):
    """The key's column is padded with spaces, as char(n) is."""

    def name(self, key: str) -> str:
        return key.rstrip(" ")


@WING.mutant(names.normal_forms_are_apart)
class Composes(SoundRecords):
    """The key is stored in normal form C."""

    def name(self, key: str) -> str:
        return unicodedata.normalize("NFC", key)


@WING.mutant(names.collation_is_exact)
class Collates(SoundRecords):
    """The key's index follows a linguistic collation: joiners are ignored, and a sharp s is two."""

    def name(self, key: str) -> str:
        return key.replace("\u00df", "ss").replace("\u200d", "").replace("\u00ad", "")


@WING.mutant(names.marks_are_data)
class ReadsPercent(SoundRecords):
    """The key is read as part of a URL."""

    def name(self, key: str) -> str:
        return urllib.parse.unquote(key)


@WING.mutant(names.marks_are_data)
class DropsBraces(SoundRecords):
    """The key's braces are dropped, to choose the cluster's slot."""

    def name(self, key: str) -> str:
        return key.replace("{", "").replace("}", "")


@WING.mutant(names.keys_are_text)
class GuessesTypes(SoundRecords):
    """The key's last part is read as a number."""

    def name(self, key: str) -> str:
        stem, _, text = key.rpartition(":")
        return f"{stem}:{float(text):g}" if text.replace(".", "").isascii() and _is_number(text) else key


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


@WING.mutant(names.long_keys_are_whole)
class CutsKeys(SoundRecords):
    """The key's column holds 499 characters."""

    def name(self, key: str) -> str:
        return key[:499]


@WING.mutant(names.payloads_are_exact)
class FoldsPayloads(SoundRecords):
    """The fingerprint's column ignores case."""

    def payload_name(self, fingerprint: str) -> str:
        return fingerprint.lower()


@WING.mutant(names.payloads_are_exact)
class PadsPayloads(SoundRecords):
    """The fingerprint's column is padded with spaces, as char(n) is."""

    def payload_name(self, fingerprint: str) -> str:
        return fingerprint.rstrip(" ")


@WING.mutant(names.payloads_are_exact)
class ComposesPayloads(SoundRecords):
    """The fingerprint is stored in normal form C."""

    def payload_name(self, fingerprint: str) -> str:
        return unicodedata.normalize("NFC", fingerprint)


@WING.mutant(names.long_payloads_are_whole)
class CutsPayloads(SoundRecords):
    """The fingerprint's column holds 199 characters."""

    def payload_name(self, fingerprint: str) -> str:
        return fingerprint[:199]


@WING.mutant(names.long_owners_are_whole)
class CutsOwners(SoundRecords):
    """The owner's column holds 199 characters."""

    def owner_name(self, owner: str) -> str:
        return owner[:199]


@WING.mutant(names.bad_keys_are_refused)
class TakesAnyKey(SoundRecords):
    """Keys are not checked."""

    def check_names(self, key: str, owner: str) -> None:
        del key
        check_owner(owner)


@WING.mutant(names.bad_owners_are_refused)
class TakesAnyOwner(SoundRecords):
    """Owners are not checked."""

    def check_names(self, key: str, owner: str) -> None:
        del owner
        check_key(key)


@WING.mutant(names.bad_owners_are_refused)
class TellsTheOwner(SoundRecords):
    """An owner is refused in words that hold it."""

    def check_names(self, key: str, owner: str) -> None:
        check_key(key)
        try:
            check_owner(owner)
        except ConfigurationError as error:
            raise ConfigurationError(f"The owner {owner!r} is none.") from error


@WING.mutant(names.bad_payloads_are_refused)
class TakesAnyPayload(SoundRecords):
    """Fingerprints are not checked."""

    def check_payload(self, fingerprint: str) -> None:
        del fingerprint


@WING.mutant(names.bad_payloads_are_refused)
class TellsThePayload(SoundRecords):
    """A fingerprint is refused in words that hold it."""

    def check_payload(self, fingerprint: str) -> None:
        try:
            check_fingerprint(fingerprint)
        except ConfigurationError as error:
            raise ConfigurationError(f"The fingerprint {fingerprint!r} is none.") from error
