"""
From the text of a variable to a setting. Each function returns the value or raises ValueError.

A message continues the sentence "CAT_STORE_X (what it is for) …" and never repeats the text of a URL.
"""

import math
import re
import zoneinfo
from collections.abc import Callable
from urllib.parse import urlsplit

from croniter import croniter  # type: ignore[import-untyped]  # it ships no types

__all__ = [
    "cron",
    "host",
    "name",
    "one_of",
    "optional",
    "port",
    "retention",
    "seconds",
    "secret",
    "store",
    "switch",
    "timezone",
    "url",
]

_ON = frozenset({"on", "true", "yes", "1"})
_OFF = frozenset({"off", "false", "no", "0"})
_LONGEST_NAME = 100
# A day: longer than any drain or lease that somebody means, and milliseconds typed for seconds end up beyond it.
_MOST_SECONDS = 86_400.0
# A month: what the longest-lived peers keep. Every answer is a row until then.
_MOST_RETENTION_SECONDS = 30 * _MOST_SECONDS
_LAST_PORT = 65_535
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")
# What fits into a header as it is, and is too long to be guessed through the web.
_SECRET = re.compile(r"[!-~]{16,200}")


def url(*schemes: str) -> Callable[[str], str]:
    """Return a reader of URLs with one of *schemes* and a host."""

    def read(text: str) -> str:
        wanted = " or ".join(f"{scheme}://" for scheme in schemes)
        try:
            parts = urlsplit(text)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ValueError(f"is no URL: its host or port cannot be read; write {wanted}host:port/…") from None
        if parts.scheme not in schemes:
            raise ValueError(f"has the scheme {parts.scheme or 'none'!r}: it must begin with {wanted}")
        if not host:
            raise ValueError(f"has no host: write {wanted}host:port/…")
        return text

    return read


def store(*schemes: str) -> Callable[[str], str]:
    """Return a reader of store URLs with one of *schemes*; the rest, several hosts perhaps, is the store's to read."""

    def read(text: str) -> str:
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in schemes or not rest:
            raise ValueError(f"is no URL of a store: it must begin with {', '.join(f'{one}://' for one in schemes)}")
        return text

    return read


def optional(read: Callable[[str], str]) -> Callable[[str], str | None]:
    """Return a reader that leaves out what is not set."""
    return lambda text: read(text) if text else None


def seconds(text: str) -> float:
    """Read a positive number of seconds, such as `30` or `2.5`."""
    return _seconds(text, _MOST_SECONDS, "a day")


def retention(text: str) -> float:
    """Read a positive number of seconds for which something is kept."""
    return _seconds(text, _MOST_RETENTION_SECONDS, "thirty days")


def _seconds(text: str, most: float, in_words: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"is {text!r}: write seconds as a number, such as 30 or 2.5") from None
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"is {text!r}: it must be more than 0 seconds")
    if value > most:
        raise ValueError(f"is {text!r}: it must be at most {most:.0f} seconds, {in_words}")
    return value


def port(text: str) -> int:
    """Read the number of a TCP port; 0 is any that is free."""
    if not (text.isascii() and text.isdigit()) or int(text) > _LAST_PORT:
        raise ValueError(f"is {text!r}: write a number from 0 (any free port) to {_LAST_PORT}")
    return int(text)


def host(text: str) -> str:
    """Read the address or the name of an interface to listen on."""
    if not _HOST.fullmatch(text):
        raise ValueError("is no address to listen on: write one such as 127.0.0.1, 0.0.0.0 or ::")
    return text


def secret(text: str) -> str:
    """Read a token that clients send in a header. No message holds it."""
    if not _SECRET.fullmatch(text):
        raise ValueError(
            "must have 16 to 200 printable ASCII characters and no space: it is compared with a header, and whoever "
            "guesses it is an administrator"
        )
    return text


def switch(text: str) -> bool:
    """Read `on` or `off`."""
    if text.lower() in _ON:
        return True
    if text.lower() in _OFF:
        return False
    raise ValueError(f"is {text!r}: write on or off")


def name(text: str) -> str:
    """Read a name that is safe in a queue's name and in a log line."""
    if len(text) > _LONGEST_NAME or not all(c.isalnum() or c in "-_." for c in text):
        raise ValueError(f"must have at most {_LONGEST_NAME} letters, digits, dots, dashes and underscores")
    return text


def cron(text: str) -> str:
    """Read a cron expression of five fields, or six with the seconds last."""
    if len(text.split()) not in (5, 6) or not croniter.is_valid(text):
        raise ValueError(
            f"is {text!r}: write a cron expression of five fields ('0 2 * * *'), "
            "or six with the seconds last ('* * * * * */10')"
        )
    return text


def timezone(text: str) -> str:
    """Read the name of a time zone of the IANA database."""
    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"is {text!r}: write a time zone's name, such as Europe/Warsaw or UTC") from None
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader of one of *words*."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"is {text!r}: write one of {', '.join(words)}")
        return text.lower()

    return read
