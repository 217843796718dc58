"""
Log lines: for people by default, one JSON object a line for machines.

What a reader of the log looks for (the demo, a dashboard) is named by `event` and its fields, not by the wording of
the message: `logger.info("Exported %d …", n, extra={"event": "invoices.exported", "invoices": n})`.
"""

import dataclasses
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

__all__ = ["JsonFormatter", "configure"]

_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
# Each says one line a request or a tick about itself; the jobs' own lines tell the same with its meaning.
_CHATTY: Final = ("saq", "httpx", "httpcore", "asyncio")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, instance, message, and the fields of the event."""

    def __init__(self, instance: str) -> None:
        super().__init__()
        self._instance = instance

    def format(self, record: logging.LogRecord) -> str:
        """Turn *record* into a line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "instance": self._instance,
            "message": record.getMessage(),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        # tenure puts its event on the record as an object; it becomes fields like those of the shop's own events.
        if (event := extra.pop("tenure_event", None)) is not None:
            line |= {"event": f"tenure.{type(event).__name__}", **dataclasses.asdict(event)}
        line |= extra
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(*, level: str, form: str, instance: str) -> None:
    """
    Send every log line to standard output, which is where a container's lines are collected.

    Args:
        level: "debug", "info", "warning" or "error", for the shop's own loggers and those of tenure.
        form: "text" or "json".
        instance: The name of this replica, a field of every JSON line.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(instance) if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("cat_store", "tenure", "tenure_postgres", "tenure_valkey"):
        logging.getLogger(name).setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
