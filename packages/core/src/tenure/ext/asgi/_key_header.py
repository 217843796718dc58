"""
The header that carries the key: a structured-field string (RFC 9651), or the bare value that most clients send.

What cannot be read is an error and never "no key": a request whose client asked for protection must not run without it.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal

__all__ = ["MAX_KEY_CHARACTERS", "MalformedKeyError", "read_key"]

MAX_KEY_CHARACTERS: Final = 255

_CHARACTERS: Final = r'(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*'
_BARE_ITEM: Final = (
    r"(?:-?[0-9]{1,15}|-?[0-9]{1,12}\.[0-9]{1,3}"  # an integer, a decimal
    rf'|"{_CHARACTERS}"'  # a string
    r"|[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*"  # a token
    r"|:[A-Za-z0-9+/=]*:|\?[01]|@-?[0-9]{1,15})"  # bytes, a boolean, a date
)
_STRING_ITEM: Final = re.compile(rf'"({_CHARACTERS})"(?:; *[a-z*][a-z0-9_\-.*]*(?:={_BARE_ITEM})?)*', re.ASCII)
"""A string and its parameters. Draft-07 defines none, so they are read and ignored."""

_BARE: Final = re.compile(r"[!#-+\-.\/0-:<-\[\]-~]*", re.ASCII)
"""Printable ASCII without the space, the quote, the comma, the semicolon and the backslash."""


class MalformedKeyError(ValueError):
    """The header cannot be read, or names more than one key. The message holds nothing of it."""


def read_key(lines: Sequence[bytes], *, syntax: Literal["lenient", "strict"]) -> str:
    """
    Read the key from the lines of its header.

    Args:
        lines: The value of each line, at least one. Two are an error, also where they say the same: which of them a
            proxy on the way looks at is not known.
        syntax: `"lenient"` takes `"abc"` and `abc`, as one key; `"strict"` the first alone.

    Returns:
        1 to 255 printable ASCII characters, not all of them spaces.

    Raises:
        MalformedKeyError: It is none, or there are two.
    """
    if len(lines) != 1:
        raise MalformedKeyError
    # OWS is trimmed, and no other whitespace. What is not ASCII matches nothing below.
    value = lines[0].decode("latin-1").strip(" \t")
    quoted = _STRING_ITEM.fullmatch(value)
    if quoted is not None:
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    elif syntax == "lenient" and _BARE.fullmatch(value):
        key = value
    else:
        raise MalformedKeyError
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or not key.strip():
        raise MalformedKeyError
    return key
