"""
Who may read the stream from another origin, and who may press a button: pure rules on addresses and headers.

A page goes on reading from the next replica when its own has died, so the stream is readable from the origins of the
other replicas. Nothing else is, and a button is pressed on the page's own origin alone.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

__all__ = ["PRESSED", "is_loopback", "neighbours", "origin_of", "readable_from", "why_not"]

PRESSED: Final = "x-cat-store-live"
"""The header of a pressed button. A page elsewhere cannot send it without asking whether it may, and it may not."""

_HOST: Final = re.compile(r"[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\]")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def origin_of(address: str) -> str | None:
    """
    Return the origin of a URL as browsers write it, or None for what is no address of a replica.

    What comes out has no character that could end a header or an attribute.
    """
    try:
        parts = urlsplit(address.strip().lower())
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if parts.scheme not in _DEFAULT_PORTS or not _HOST.fullmatch(host) or parts.username is not None:
        return None
    if parts.path.strip("/") or parts.query or parts.fragment:
        return None
    return f"{parts.scheme}://{host}" + ("" if port in {None, _DEFAULT_PORTS[parts.scheme]} else f":{port}")


def is_loopback(origin: str) -> bool:
    """Whether an origin is this machine itself."""
    host = urlsplit(origin).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def neighbours(addresses: Iterable[str], host: str) -> list[str]:
    """Return the origins among *addresses* that are on loopback or on *host*, which a browser asked for."""
    asked = origin_of(f"http://{host}")
    name = None if asked is None else urlsplit(asked).hostname
    origins = dict.fromkeys(origin for address in addresses if (origin := origin_of(address)) is not None)
    return [origin for origin in origins if is_loopback(origin) or urlsplit(origin).hostname == name]


def readable_from(origin: str, addresses: Iterable[str], host: str) -> bool:
    """
    Whether a page of *origin* may read the stream: it is one of the replicas' own.

    The names of loopback are one: who opened `localhost:3001` has that origin, whatever the replica calls itself.
    """
    asked = origin_of(origin)
    if asked is None or asked != origin:
        return False
    return any(asked == near or _same_loopback(asked, near) for near in neighbours(addresses, host))


def why_not(headers: Mapping[str, str], scheme: str, addresses: Iterable[str]) -> str | None:
    """
    Say why a button's request is refused; None where it is not.

    The page's own origin is compared with the host that was asked, and that host has to be a replica's or loopback: a
    name that was made to point here (DNS rebinding) has an origin and a host that agree.

    Args:
        headers: The request's, by their lower-case names.
        scheme: How it was asked, "http" or "https".
        addresses: Where the replicas answer.
    """
    if headers.get(PRESSED) != "1":
        return f"A button's request carries {PRESSED}: 1."
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "A button is pressed on the page of this replica, and nowhere else."
    own = origin_of(f"{scheme}://{headers.get('host', '')}")
    origin = origin_of(headers.get("origin", ""))
    if own is None or origin != own:
        return "A button is pressed on the page of this replica, and nowhere else."
    if not is_loopback(own) and own not in {origin_of(address) for address in addresses}:
        return "This replica is asked under a name that is none of its addresses."
    return None


def _same_loopback(one: str, other: str) -> bool:
    first, second = urlsplit(one), urlsplit(other)
    same = (first.scheme, first.port) == (second.scheme, second.port)
    return same and is_loopback(one) and is_loopback(other)
