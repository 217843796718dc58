"""What each request was answered with. The users write it down line by line; everything else is found out from that."""

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TextIO, final

import msgspec

__all__ = [
    "IN_FLIGHT",
    "NOT_STORED",
    "NO_ANSWER",
    "Answer",
    "AnswerBook",
    "Kind",
    "is_cut_off",
    "problem_code",
    "read_answers",
]

NO_ANSWER: Final = 0
"""The status of a request that nobody answered: refused, reset, or given up by its client."""

IN_FLIGHT: Final = "in-flight"
"""The code of a repeat that came while the first request, or one that may still be under way, was worked on."""

NOT_STORED: Final = "response-not-stored"
"""The code of a repeat whose first request was carried out by a replica that died with the answer."""


class Kind:
    """What a request was for."""

    ORDER: Final = "order"
    RETRY: Final = "retry"  # of a customer whose patience ended, or whose answer was lost
    AGAIN: Final = "again"  # the same order once more, after its answer: a second click
    STORM: Final = "storm"
    READ: Final = "read"
    EXPORT: Final = "export"
    SETTLING: Final = "settling"


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One request, and what came back.

    Attributes:
        block: The block of load that it belongs to.
        kind: What it was for, one of `Kind`.
        customer: Who orders: one name for each order that somebody wants, whatever the number of its requests. Empty
            for a request that orders nothing.
        key: Its `Idempotency-Key`; empty where it had none.
        replica: The number of the replica that was asked, from 0.
        at: When it was sent, in seconds on the machine's monotonic clock.
        took_ms: How long the answer took, or the giving up.
        status: The status, or `NO_ANSWER`.
        code: What the problem's code is; empty where there is none.
        replayed: Whether the answer says that it is the first one once more.
        location: The header of a placed order.
        body: The answer's body, where it is compared with others or looked into.
        order: The order as it was sent, to the byte; empty for a request that orders nothing.
        cents: What the order costs at the catalogue's prices.
    """

    block: str
    kind: str
    customer: str = ""
    key: str = ""
    replica: int = 0
    at: float = 0.0
    took_ms: float = 0.0
    status: int = NO_ANSWER
    code: str = ""
    replayed: bool = False
    location: str = ""
    body: str = ""
    order: str = ""
    cents: int = 0

    @property
    def final(self) -> bool:
        """Whether the client knows now what became of its request: no answer, 5xx and a request under way are not."""
        return self.status != NO_ANSWER and self.status < HTTPStatus.INTERNAL_SERVER_ERROR and self.code != IN_FLIGHT

    @property
    def failed(self) -> bool:
        """Whether the shop did not do its part: no answer, or 5xx."""
        return self.status == NO_ANSWER or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def placed(self) -> bool:
        """Whether it says that an order is placed."""
        return bool(self.customer) and self.status == HTTPStatus.CREATED

    def told(self) -> tuple[int, str, str]:
        """What a client reads: two final answers under one key have this in common."""
        return self.status, self.location, self.body

    @property
    def order_id(self) -> str:
        """The id of the order that it says is placed; empty where the body has none."""
        try:
            document: Any = msgspec.json.decode(self.body)
        except msgspec.MsgspecError:
            return ""
        return str(document.get("id", "")) if isinstance(document, dict) else ""


@final
class AnswerBook:
    """
    Appends answers to a file, each as a line at once: what was heard is not lost with a process that is killed.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", buffering=1, encoding="utf-8")
        self._encoder = msgspec.json.Encoder()

    def write(self, answer: Answer) -> None:
        """Append an answer."""
        self._file.write(self._encoder.encode(answer).decode() + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_answers(paths: Iterable[Path]) -> Iterator[Answer]:
    """
    Read the answers of files.

    Raises:
        msgspec.MsgspecError: A line is none of an `AnswerBook`.
    """
    decoder = msgspec.json.Decoder(Answer)
    for path in paths:
        with path.open(encoding="utf-8") as file:
            yield from (decoder.decode(line) for line in file)


def is_cut_off(headers: Mapping[str, str], body: bytes) -> bool:
    """
    Tell whether a replica died with a part of its answer sent: a client that has half an order has none.

    Args:
        headers: Of the answer.
        body: What came of it, decoded.
    """
    length = headers.get("content-length", "")
    return length.isdecimal() and "content-encoding" not in headers and len(body) < int(length)


def problem_code(content_type: str, body: bytes) -> str:
    """Find the code in problem details: tenure's own member, or the last part of the type; empty where it is none."""
    if not content_type.startswith("application/problem+json"):
        return ""
    try:
        document: Any = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return ""
    if not isinstance(document, dict):
        return ""
    return str(document.get("code") or str(document.get("type", "")).rpartition(":")[2])
