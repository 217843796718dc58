"""
What is written into a record: a response, or the note that there was one; in the clear or sealed.

Everything that is digested is made of parts, each with its length in front of it: without it, ("ab", "c") and
("a", "bc") would be one.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final, Protocol

from tenure.errors import StoreReplyError

__all__ = ["RESPONSE", "TOMBSTONE", "Sealer", "bound_to", "digest", "open_envelope", "pack", "seal"]

RESPONSE: Final = b"R"
TOMBSTONE: Final = b"T"

_VERSION: Final = b"\x01"


class Sealer(Protocol):
    """Keeps stored responses from everyone who reads the store; `tenure.ext.sealing.AesGcmSealer` is one."""

    def seal(self, plain: bytes, *, bound_to: bytes) -> bytes:
        """Encrypt *plain*, so that it opens only together with *bound_to*."""
        ...

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes:
        """
        Decrypt what `seal` returned.

        Raises:
            SealError: It was sealed with another key or bound to something else, or was changed.
        """
        ...


def pack(parts: Iterable[bytes | str]) -> bytes:
    """Join *parts* in a way that can be read in one way only: each has its length in front of it."""
    packed = bytearray()
    for part in parts:
        octets = part.encode() if isinstance(part, str) else bytes(part)
        packed += len(octets).to_bytes(8, "big") + octets
    return bytes(packed)


def digest(secret: bytes, parts: Iterable[bytes | str]) -> str:
    """Digest *parts* with HMAC-SHA-256 under *secret*, in 64 hexadecimal characters."""
    return hmac.new(secret, pack(parts), hashlib.sha256).hexdigest()


def bound_to(key: str, owner: str, fingerprint: str) -> bytes:
    """What a sealed response belongs to: moved to another record, it does not open."""
    return pack((key, owner, fingerprint))


def seal(sealer: Sealer | None, kind: bytes, payload: bytes, binding: bytes) -> bytes:
    """Put *payload* into the form in which a store keeps it."""
    plain = _VERSION + kind + payload
    return plain if sealer is None else sealer.seal(plain, bound_to=binding)


def open_envelope(sealer: Sealer | None, stored: bytes, binding: bytes) -> tuple[bytes, bytes]:
    """
    Read what `seal` made.

    Returns:
        The kind, RESPONSE or TOMBSTONE, and the payload.

    Raises:
        SealError: The sealer cannot open it.
        StoreReplyError: It is none of ours.
    """
    plain = stored if sealer is None else sealer.open(stored, bound_to=binding)
    kind = plain[1:2]
    if plain[:1] != _VERSION or kind not in (RESPONSE, TOMBSTONE):
        raise StoreReplyError(
            "A stored response is none that this Idempotency writes. If it is sealed, pass the sealer; if something "
            "else writes under the store's prefix or table, give it another. Nothing was run."
        )
    return kind, plain[2:]
