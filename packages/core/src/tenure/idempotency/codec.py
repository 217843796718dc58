"""Codecs: a function's result as the bytes that a store keeps, and back."""

import json
from typing import Any, Final, Protocol, final

from tenure.errors import StoreReplyError

__all__ = ["JSON", "Codec", "decode_stored"]


class Codec(Protocol):
    """Turns a result into bytes and back. Both callers, the first and the repeat, get what `decode` returns."""

    def encode(self, value: Any) -> bytes:
        """Encode *value*; raises what it likes for one that it cannot, and the result is then not kept."""
        ...

    def decode(self, stored: bytes) -> Any:
        """Decode what `encode` returned, perhaps by an older release of the application."""
        ...


@final
class _Json:
    """JSON in UTF-8. NaN and infinity are refused: they are no JSON, and not every reader takes them."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def decode(self, stored: bytes) -> Any:
        return json.loads(stored)

    def __repr__(self) -> str:
        return "JSON"


JSON: Final[Codec] = _Json()
"""The default codec. A tuple comes back as a list, and a number as a key as text: from the first call on."""


def decode_stored(codec: Codec, stored: bytes) -> Any:
    """
    Decode what was stored before, for a repeat.

    Raises:
        StoreReplyError: The codec cannot.
    """
    try:
        return codec.decode(stored)
    except Exception as error:  # noqa: BLE001 -- whatever a codec raises for what it cannot read
        kind = type(error).__name__
    # Outside of the handler: the codec's own error holds what it read, and is not to be found behind this one.
    raise StoreReplyError(
        f"A stored result cannot be decoded ({kind}): another codec or another release wrote it, or something else "
        "writes under the store's prefix or table. It was carried out before; nothing was run now. Read it with the "
        "codec that it was stored with."
    )
