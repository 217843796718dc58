"""
Where a lock lives: `<prefix>{<tag>}`, and its fence at `<prefix>{<tag>}:fence`.

A cluster hashes what stands between the first `{` and the `}` after it, so both keys of a lock are in one slot and
locks spread over all slots, whatever a key holds: the tag is the key with `%`, `{` and `}` written as `%25`, `%7B` and
`%7D`. That is one-to-one, and it keeps beginnings: the tag of a key's beginning is the beginning of its tag.

A record of a request is one key, `<prefix><key>`, which is in one slot whatever braces it holds.
"""

import re
from dataclasses import dataclass, field

from tenure.errors import ConfigurationError

__all__ = ["DEFAULT_PREFIX", "DEFAULT_RECORD_PREFIX", "FENCE", "Keys", "RecordKeys"]

DEFAULT_PREFIX = "locks:"
DEFAULT_RECORD_PREFIX = "idem:"

FENCE = b":fence"
"""What the name of a fence has after that of its lock."""

_MAX_PREFIX_LENGTH = 200
"""Characters. A prefix is sent and stored with every key."""

_ESCAPES = {"%": "%25", "{": "%7B", "}": "%7D"}
_PLAIN = {escaped: character for character, escaped in _ESCAPES.items()}


@dataclass(frozen=True, slots=True)
class Keys:
    """
    The keys of one lock store.

    Args:
        prefix: What all its keys begin with, without braces.

    Raises:
        ConfigurationError: The prefix cannot be one.
    """

    prefix: str
    _begin: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_prefix(self.prefix, DEFAULT_PREFIX)
        object.__setattr__(self, "_begin", self.prefix + "{")

    def lock(self, key: str) -> bytes:
        """Where the lock of *key* lives."""
        return f"{self._begin}{_escape(key)}}}".encode()

    def fence(self, key: str) -> bytes:
        """Where the last token of *key* lives."""
        return self.lock(key) + FENCE

    def pattern(self, beginning: str) -> bytes:
        """Return the glob by which SCAN finds the locks whose key begins with *beginning*, taken literally."""
        literal = re.sub(r"([*?\[\]\\^])", r"\\\1", self._begin + _escape(beginning))
        return f"{literal}*}}".encode()

    def key_of(self, name: bytes | str) -> str | None:
        """
        Return the key whose lock lives at *name*, or None where it is no lock of this store.

        A name that is not in UTF-8, or has an escape that this store does not write, is somebody else's.
        """
        try:
            text = name.decode() if isinstance(name, bytes) else name
        except UnicodeDecodeError:
            return None
        if not text.startswith(self._begin) or not text.endswith("}"):
            return None
        key = _unescape(text[len(self._begin) : -1])
        return key if key and self._begin + _escape(key) + "}" == text else None


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """
    The keys of one idempotency store.

    Args:
        prefix: What all its keys begin with, without braces.

    Raises:
        ConfigurationError: The prefix cannot be one.
    """

    prefix: str

    def __post_init__(self) -> None:
        _check_prefix(self.prefix, DEFAULT_RECORD_PREFIX)

    def record(self, key: str) -> bytes:
        """Where the record of *key* lives."""
        return f"{self.prefix}{key}".encode()


def _escape(text: str) -> str:
    # Hardly a key has one of them, and each call of the store comes by here.
    if "%" not in text and "{" not in text and "}" not in text:
        return text
    return re.sub("[%{}]", lambda found: _ESCAPES[found[0]], text)


def _unescape(tag: str) -> str:
    return re.sub("%25|%7B|%7D", lambda found: _PLAIN[found[0]], tag)


def _check_prefix(prefix: object, example: str) -> None:
    if not isinstance(prefix, str):
        raise ConfigurationError(f"The prefix is of type {type(prefix).__name__}: give a str, such as {example!r}.")
    if "{" in prefix or "}" in prefix:
        raise ConfigurationError(
            f"The prefix {prefix!r} holds a brace: a cluster would hash what stands in it, and put everything on "
            "one node, or a lock and its fence on two. Leave braces out of it."
        )
    if len(prefix) > _MAX_PREFIX_LENGTH:
        raise ConfigurationError(f"The prefix has {len(prefix)} characters: it may have {_MAX_PREFIX_LENGTH}.")
    if "\0" in prefix or any("\ud800" <= character <= "\udfff" for character in prefix):
        raise ConfigurationError("The prefix holds NUL or a lone surrogate, which no key may have: leave it out.")
