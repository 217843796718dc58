"""
The names that a machine draws from: keys, owners and payloads that some store takes for one another.

An example plays on the few names of one group, so that calls meet; each group is a way in which a store can fail to
keep them apart.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from tenure._durations import MAX_MS

__all__ = ["KEYS", "OWNERS", "PAYLOADS", "WRONG_KEYS", "WRONG_OWNERS", "WRONG_SPANS", "Names"]

_CAT = "\U0001f408"  # four bytes in UTF-8, two units in UTF-16

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "plain": ("job", "export", "feed"),
    "one": ("job",),
    "case": ("job", "Job", "JOB"),
    "spaces at the end": ("job", "job ", "job\n"),
    "spaces at the start": ("job", " job", "\u00a0job"),
    "composition": ("caf\u00e9", "cafe\u0301"),
    "compatibility": ("\ufb01le", "file"),
    "letters of a language": ("strasse", "stra\u00dfe"),
    "joiners": ("co\u00adop", "coop"),
    "accents": ("resume", "r\u00e9sum\u00e9"),
    "braces": ("{a}", "a", "{a}b"),
    "percent": ("{a}", "%7Ba%7D", "%257Ba%257D"),
    "quotes": ("'", "''", '"'),
    "backslashes": ("\\", "\\\\"),
    "wildcards of SQL": ("a_b", "axb", "a%b"),
    "wildcards of a pattern": ("a*", "a?b", "axb"),
    "numbers": ("1", "01", "1.0"),
    "nothing": ("null", ""),
    "an owner beside": ("job", "job:owner", "job:fence"),
    "a slot": ("job", "job@2026-01-01T00:00:00Z"),
    "500 characters": ("long+1", "long+2"),
    "500 characters of four bytes": ("cats+1", "cats+2"),
}
"""By what they are alike in."""

OWNERS: Final[Mapping[str, tuple[str, ...]]] = {
    "plain": ("A", "B", "C", "D"),
    "case": ("A", "a"),
    "spaces": ("A", "A ", " A"),
    "normal forms": ("\u00e9", "e\u0301"),
    "200 characters": ("long+1", "long+2"),
    "an empty name": ("A", ":"),
}

PAYLOADS: Final[Mapping[str, tuple[str, ...]]] = {
    "plain": ("x", "y"),
    "case": ("x", "X"),
    "spaces": ("x", "x "),
    "normal forms": ("\u00e9", "e\u0301"),
    "200 characters": ("long+1", "long+2"),
}

WRONG_KEYS: Final[Mapping[str, Any]] = {
    "an empty key": "",
    "a key of 501 characters": "x" * 501,
    "a key with NUL": "job\0",
    "a key with a lone surrogate": "job\ud800",
    "a key of bytes": b"job",
    "no key": None,
    "a key that is a number": 7,
}

WRONG_OWNERS: Final[Mapping[str, Any]] = {
    "an empty owner": "",
    "an owner of 201 characters": "x" * 201,
    "an owner with NUL": "secret-owner\0",
    "an owner with a lone surrogate": "secret-owner\udfff",
    "an owner of bytes": b"secret-owner",
    "no owner": None,
}

WRONG_SPANS: Final[Mapping[str, Any]] = {
    "0 ms": 0,
    "-1 ms": -1,
    "True ms": True,
    "0.5 ms": 0.5,
    "30000.0 ms": 30_000.0,
    "NaN ms": float("nan"),
    "'30000' ms": "30000",
    "None ms": None,
    "over a hundred years": MAX_MS + 1,
    "2**63 ms": 2**63,
}


@final
@dataclass(frozen=True)
class Names:
    """Names of one example alone: a server may be shared with other examples, other runs and other people."""

    run: str
    secret: str = field(repr=False)

    @classmethod
    def drawn(cls) -> "Names":
        """Draw them."""
        return cls(f"machine:{secrets.token_hex(8)}", secrets.token_hex(16))

    def key(self, label: str) -> str:
        """Return the key that *label* stands for."""
        return _long(f"{self.run}:", label, 500)

    def owner(self, label: str) -> str:
        """Return the owner that *label* stands for."""
        return _long(f"machine:{self.secret}", label, 200)

    @staticmethod
    def payload(label: str) -> str:
        """Return the fingerprint that *label* stands for."""
        return _long("v1:", label, 200)


def _long(stem: str, label: str, longest: int) -> str:
    kind, plus, last = label.partition("+")
    if not plus:
        return stem + label
    return (stem + kind).ljust(longest - 1, _CAT if kind == "cats" else "x") + last
