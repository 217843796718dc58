import json
import logging
from typing import Any

from cat_store.logs import JsonFormatter
from tenure.events import JobSkipped, SkipReason


def written(message: str, *args: Any, level: int = logging.INFO, exc_info: Any = None, **extra: Any) -> dict[str, Any]:
    logger = logging.getLogger("cat_store.test")
    record = logger.makeRecord("cat_store.test", level, __file__, 1, message, args, exc_info, extra=extra)
    return json.loads(JsonFormatter("cat-store-1").format(record))


def test_a_line_has_its_time_level_instance_message_and_the_fields_of_its_event() -> None:
    line = written("Exported %d invoices", 3, event="invoices.exported", invoices=3)
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "cat_store.test",
        "instance": "cat-store-1",
        "message": "Exported 3 invoices",
        "event": "invoices.exported",
        "invoices": 3,
    }


def test_an_event_of_tenure_becomes_fields_too() -> None:
    event = JobSkipped("shop:export", "invoices:nightly-export", SkipReason.ELSEWHERE)
    line = written("Skipped shop:export: it runs on another instance", tenure_event=event)
    assert line["event"] == "tenure.JobSkipped"
    assert line["key"] == "invoices:nightly-export"
    assert line["reason"] == "it runs on another instance"


def test_an_error_brings_its_traceback_in_the_same_line() -> None:
    error = RuntimeError("no such partner")
    line = written("failed", level=logging.ERROR, exc_info=(RuntimeError, error, None))
    assert line["traceback"] == "RuntimeError: no such partner"


def test_a_field_that_is_no_json_is_written_as_text() -> None:
    assert written("x", path=object)["path"] == "<class 'object'>"
