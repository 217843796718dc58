"""A response as the bytes of a record, and what is left in its place where it cannot be kept."""

import json
from dataclasses import dataclass, field
from typing import Any, Final, final

from tenure.ext.asgi._headers import REPLAYED, header_lines, is_line, is_replayable

__all__ = ["StoredResponse", "UnreadableRecordError", "is_final", "read_summary", "summary_of"]

_VERSION: Final = 1
_LENGTH_BYTES: Final = 4
_LONGEST_SUMMARY: Final = 4096
"""Bytes. A location longer than that is left out: a tombstone is small."""


class UnreadableRecordError(Exception):
    """A record's bytes are no response of this format. The request was carried out; it is not run again."""


@final
@dataclass(frozen=True, slots=True)
class StoredResponse:
    """
    A response as it is kept and replayed.

    Attributes:
        status: Its status.
        headers: Its end-to-end headers: pairs in their order, repeats kept, names in small letters.
        body: Its body, byte for byte.
    """

    status: int
    headers: list[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Give the bytes: a version, the length of the head, the head as JSON, the body."""
        lines = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers]
        head = json.dumps({"status": self.status, "headers": lines}, separators=(",", ":")).encode()
        return bytes([_VERSION]) + len(head).to_bytes(_LENGTH_BYTES, "big") + head + self.body

    def replay_headers(self) -> list[tuple[bytes, bytes]]:
        """Give the headers of its replay: the stored ones, the length, and the mark."""
        # RFC 9110, 8.6: none with these. The length of the first response may have been that of a compressed body.
        bodiless = self.status in (204, 304)
        length = [] if bodiless else [(b"content-length", str(len(self.body)).encode())]
        return [*self.headers, *length, REPLAYED]

    @classmethod
    def decode(cls, payload: bytes) -> "StoredResponse":
        """
        Read what `encode` gave.

        Raises:
            UnreadableRecordError: It is something else, or of a later version; its status is none of a final response,
                or a line of its headers would be more than one.
        """
        if payload[:1] != bytes([_VERSION]):
            raise UnreadableRecordError
        head_at = 1 + _LENGTH_BYTES
        body_at = head_at + int.from_bytes(payload[1:head_at], "big")
        try:
            head = json.loads(payload[head_at:body_at])
            status = head["status"]
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UnreadableRecordError from None
        if type(status) is not int or not is_final(status) or len(payload) < body_at:
            raise UnreadableRecordError
        if not all(is_line(name, value) for name, value in headers):
            raise UnreadableRecordError
        # What is never stored was written by somebody else, or by a release that still stored it.
        return cls(status, [line for line in headers if is_replayable(line[0])], payload[body_at:])


def is_final(status: int) -> bool:
    """Whether *status* is that of a final response (RFC 9110, 15): what a replay may have."""
    return 200 <= status <= 599


def summary_of(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Give what is kept of a response that cannot be: its status, and where its result is."""
    summary: dict[str, Any] = {"original_status": status}
    for location in header_lines(headers, b"location")[:1]:
        if len(location) <= _LONGEST_SUMMARY:
            summary["location"] = location.decode("latin-1")
    return json.dumps(summary).encode()


def read_summary(summary: bytes) -> dict[str, Any]:
    """Read what `summary_of` gave; nothing where it was something else, or empty."""
    try:
        content = json.loads(summary)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    kinds = {"original_status": int, "location": str}
    return {name: content[name] for name, kind in kinds.items() if type(content.get(name)) is kind}
