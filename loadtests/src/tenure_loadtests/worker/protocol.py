"""
The lines between the driver and a contender's process.

The driver sends `{"do": name, ...}`. The process first tells that it is ready, and then answers each command with
`{"ok": {...}}` or `{"error": text, "trace": text}`, one line each.
"""

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Command", "ProtocolError", "answer_line", "command_line", "error_line", "read_answer", "read_command"]


class ProtocolError(Exception):
    """A line is none of the protocol's, or tells of a failure in the process; the text is for people."""


@dataclass(frozen=True, slots=True)
class Command:
    """
    What the driver wants.

    Attributes:
        do: The name of the work.
        values: Its arguments.
    """

    do: str
    values: Mapping[str, Any] = field(default_factory=dict)


def command_line(command: Command) -> str:
    """The line that carries *command*."""
    return json.dumps({"do": command.do, **command.values}) + "\n"


def read_command(line: str) -> Command:
    """
    Read what the driver sent.

    Raises:
        ProtocolError: The line is no command.
    """
    fields = _object(line)
    name = fields.pop("do", None)
    if not isinstance(name, str):
        raise ProtocolError("The line names no work: it has to be an object with the member 'do'.")
    return Command(name, fields)


def answer_line(answer: Mapping[str, Any]) -> str:
    """The line that carries an answer."""
    return json.dumps({"ok": answer}) + "\n"


def error_line(error: BaseException) -> str:
    """The line that tells of a failure: the type, the text, and the end of the trace."""
    trace = "".join(traceback.format_exception(error))
    return json.dumps({"error": f"{type(error).__name__}: {error}"[:500], "trace": trace[-2000:]}) + "\n"


def read_answer(line: str) -> dict[str, Any]:
    """
    Read what the process answered.

    Raises:
        ProtocolError: It failed, or ended, or its line is no answer.
    """
    if not line:
        raise ProtocolError("The process ended without an answer.")
    fields = _object(line)
    if "error" in fields:
        raise ProtocolError(str(fields["error"]))
    answer = fields.get("ok")
    if not isinstance(answer, dict):
        raise ProtocolError("The line is no answer: it has neither 'ok' nor 'error'.")
    return answer


def _object(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        raise ProtocolError(f"The line is no JSON: {line[:80]!r}.") from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"The line is no JSON object: {line[:80]!r}.")
    return fields
