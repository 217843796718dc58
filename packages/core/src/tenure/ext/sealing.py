"""
Stored responses, sealed: AES-256-GCM, bound to the record that they belong to, under keys that can be rotated.

A response may hold what its store should not: a token, an address, a card's last digits. Sealed, it is bytes that mean
nothing to whoever reads the store, its backups, its replication or its slow log. And it opens nowhere else: not under
another idempotency key, not for another owner, not beside another payload's fingerprint.

An envelope, from its first byte:

    54 4e 53 01      what it is, and the version of this form
    length           of the key id, one byte
    key id           ASCII; which key it was sealed under
    nonce            12 bytes, drawn for this envelope alone
    ciphertext       as long as what was sealed
    tag              16 bytes, over the ciphertext, everything before the nonce, and what the envelope is bound to
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, final

from tenure.errors import ConfigurationError, SealError

__all__ = ["AesGcmSealer"]

_MARK: Final = b"TNS"
_VERSION: Final = b"\x01"
"""What every envelope begins with."""

_BEFORE_ID: Final = len(_MARK + _VERSION) + 1
"""With the length of the key id."""

_KEY_BYTES: Final = 32
"""AES-256 takes no other length; a passphrase is not a key."""

_NONCE_BYTES: Final = 12
"""What GCM is made for; any other length goes through a hash, and makes equal nonces likelier."""

_TAG_BYTES: Final = 16

_KEY_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
"""Ids are stored in clear with each response and named in errors."""


@final
class AesGcmSealer:
    """
    Seals stored responses with AES-256-GCM; give it to `Idempotency(sealer=…)`.

        sealer = AesGcmSealer({"2026-11": new, "2026-05": old}, current="2026-11")

    To rotate, add the new key on every instance first, then make it the current one, and take the old one away once the
    retention of what it sealed is over. Draw keys with `secrets.token_bytes(32)`, and keep them where passwords are.

    A key may seal some 2**32 responses: nonces are random, and beyond that two equal ones are no longer negligible. At
    a thousand responses a second that is seven weeks.

    Args:
        keys: Keys of 32 bytes by their ids. An id is 1 to 64 letters, digits and any of `._:-`; it is stored in clear.
        current: The id of the key that seals. The others only open.

    Raises:
        ConfigurationError: A key or an id cannot be, the current one is missing, two ids have the same key, or
            `cryptography` is not installed. The message holds no key.
    """

    def __init__(self, keys: Mapping[str, bytes], *, current: str) -> None:
        cipher = _cipher()
        _check_keys(keys, current)
        self._ciphers: dict[str, Any] = {name: cipher(bytes(key)) for name, key in keys.items()}
        self._current = current

    def seal(self, plain: bytes, *, bound_to: bytes) -> bytes:
        """
        Seal *plain* under the current key.

        Args:
            plain: A response.
            bound_to: What the envelope belongs to; it opens with exactly these bytes again. Not stored.

        Returns:
            An envelope, 33 bytes and the key id longer than *plain*. Never the same twice.
        """
        head = _head(self._current)
        nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = self._ciphers[self._current].encrypt(nonce, plain, head + bound_to)
        return head + nonce + sealed

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes:
        """
        Open an envelope.

        Args:
            sealed: What `seal` returned.
            bound_to: What it belongs to, as it was sealed.

        Raises:
            SealError: It is no envelope, or one that is cut off, was sealed under a key that is not here, or does not
                open: changed, moved, or sealed under another key of this id. The message holds nothing of it but the
                key id.
        """
        name, start = _read_head(sealed)
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise SealError(
                f"The stored response was sealed under the key {name!r}, which is not here. Keep a key until the "
                "retention of what it sealed is over: give it to the sealer beside the current one."
            )
        nonce, rest = sealed[start : start + _NONCE_BYTES], sealed[start + _NONCE_BYTES :]
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = cipher.decrypt(nonce, rest, sealed[:start] + bound_to)
        except InvalidTag:
            raise SealError(
                f"The stored response does not open under the key {name!r}. Its bytes were changed, or it was moved "
                "from another record (idempotency key, owner or fingerprint), or another instance has another key "
                "under this id."
            ) from None
        return plain

    def __repr__(self) -> str:
        return f"AesGcmSealer(keys={sorted(self._ciphers)}, current={self._current!r})"

    def __reduce__(self) -> NoReturn:
        # A pickle would hold the keys in clear.
        raise TypeError("An AesGcmSealer is not pickled: make one where it is needed, from keys that are kept there.")


def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError("cryptography is not installed: pip install tenure[sealing]") from None
    return AESGCM


def _check_keys(keys: Any, current: Any) -> None:
    if not isinstance(keys, Mapping) or not keys:
        raise ConfigurationError(
            "A sealer takes its keys by their ids: AesGcmSealer({'2026-11': key}, current='2026-11')."
        )
    for name, key in keys.items():
        if not isinstance(name, str) or not _KEY_ID.fullmatch(name):
            # An argument in the wrong place may be a key: it is not shown.
            raise ConfigurationError(
                "A key id of the sealer is none: it is 1 to 64 ASCII letters, digits and any of '._:-', such as "
                "'2026-11'."
            )
        if not isinstance(key, bytes | bytearray):
            raise ConfigurationError(
                f"The key {name!r} is a {type(key).__name__}: give 32 bytes. Decode text that a secret store gives "
                "(base64.b64decode); a passphrase is no key."
            )
        if len(key) != _KEY_BYTES:
            raise ConfigurationError(
                f"The key {name!r} has {len(key)} bytes: AES-256 takes 32. Draw one with secrets.token_bytes(32)."
            )
    if len({bytes(key) for key in keys.values()}) < len(keys):
        raise ConfigurationError("Two ids of the sealer have the same key: a rotation takes a new one.")
    if current not in keys:
        raise ConfigurationError(
            f"The current key of the sealer is not among its keys ({', '.join(sorted(keys))}): name the one that seals."
        )


def _head(name: str) -> bytes:
    return _MARK + _VERSION + bytes((len(name),)) + name.encode()


def _read_head(sealed: Any) -> tuple[str, int]:
    """Read the key id of an envelope, and where its nonce begins."""
    if not isinstance(sealed, bytes) or not sealed.startswith(_MARK):
        raise SealError(
            "The stored response is not sealed, or not by this sealer. Responses of before it was configured cannot be "
            "told from forged ones, and are not passed through: they end with their retention."
        )
    version, length = sealed[3:4], sealed[4:5]
    if version not in (b"", _VERSION):
        raise SealError(
            "The stored response is sealed in a form that this version of tenure does not know: a newer one wrote it. "
            "Upgrade this instance too."
        )
    start = _BEFORE_ID + int.from_bytes(length)
    if len(sealed) < start + _NONCE_BYTES + _TAG_BYTES:
        raise SealError("The stored response is sealed, and cut off: its envelope is shorter than it says.")
    name = sealed[_BEFORE_ID:start].decode("ascii", "replace")
    if not _KEY_ID.fullmatch(name):
        raise SealError("The stored response is sealed, and damaged: the id of its key is none.")
    return name, start
