"""
Which store is meant, and how it may be named to a person.

A URL may hold a password. What is shown of it is what stands behind the password, and what a driver says in an error is
searched for it first.
"""

import os
import re
from collections.abc import Sequence
from typing import Final, final
from urllib.parse import unquote

from tenure.cli.endings import Stop, one_line, shortened

__all__ = ["STORE_VARIABLE", "Address", "from_words", "refuse_more"]

STORE_VARIABLE: Final = "TENURE_STORE"

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_OWNER_ID: Final = re.compile(r"\b[0-9a-f]{32}\b")
_SHORTEST_PART: Final = 3
"""Of a part of a password that is shorter, a line would be full of stars that hide nothing."""

_SECRET_NAME: Final = re.compile(r"pass|secret|token|pwd", re.IGNORECASE)


@final
class Address:
    """
    The URL of a store.

    Attributes:
        url: As it was given. Never shown.
        shown: The scheme, the servers and the path: what can be shown.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        match = _URL.match(url)
        self._scheme, rest = (match[1], match[2]) if match else ("", url)
        self.shown = self._show(rest)
        self._secrets = self._find_secrets(rest)

    def _show(self, rest: str) -> str:
        plain = rest.partition("?")[0].partition("#")[0]
        user, at, servers = plain.rpartition("@")
        if "@" in rest[len(plain) :] or (at and "/" in user):
            # A password with a ?, a # or a / in it that nobody escaped: where it ends is a guess.
            return f"{self._scheme}://…"
        return f"{self._scheme}://{servers}"

    def _find_secrets(self, rest: str) -> list[str]:
        user = rest.rpartition("@")[0]
        password = user.partition(":")[2]
        found = [user, password] if password else []
        # A driver takes an unescaped / or ? for the end of the password, and tells what is before it: "no port: …".
        found += [part for part in re.split(r"[/?#@]", password) if len(part) >= _SHORTEST_PART]
        for pair in rest.partition("?")[2].split("&"):
            name, _, value = pair.partition("=")
            if _SECRET_NAME.search(name):
                found.append(value)
        found += [unquote(text) for text in found]
        # The longest first: what stands inside another one goes with it.
        return sorted({text for text in [self.url, *found] if text}, key=len, reverse=True)

    def tell(self, error: BaseException) -> str:
        """Say what a driver's error says, on one line, without a password or an owner."""
        said = one_line(str(error).partition("\n")[0])
        told = f"{type(error).__name__}: {said}" if said else type(error).__name__
        for note in getattr(error, "__notes__", ()):
            told = f"{told} {one_line(note)}"
        for secret in self._secrets:
            told = told.replace(secret, "***")
        return shortened(_OWNER_ID.sub("***", told))

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def from_words(words: Sequence[str], usage: str) -> tuple[Address, list[str]]:
    """
    Read the store from a command's words: the first one where it is a URL, otherwise the variable TENURE_STORE.

    Returns:
        The store, and the words behind it.

    Raises:
        Stop: There is neither.
    """
    if words and _URL.match(words[0]):
        return Address(words[0]), list(words[1:])
    given = os.environ.get(STORE_VARIABLE, "")
    if not given:
        raise Stop(f"No store is given: begin with its URL, as in `{usage}`, or set {STORE_VARIABLE}.")
    return Address(given), list(words)


def refuse_more(words: Sequence[str], names: Sequence[str], usage: str) -> None:
    """
    Refuse too few or too many words behind the URL.

    Raises:
        Stop: There are.
    """
    if len(words) < len(names):
        raise Stop(f"{names[len(words)]} is missing: `{usage}`.")
    if len(words) > len(names):
        raise Stop(f"There is a word too many, {words[len(names)]!r}: `{usage}`. Quote a key that has spaces in it.")
