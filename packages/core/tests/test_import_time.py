"""What `import tenure` costs, beside asyncio: a part of it, and nothing that a program may do without."""

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import tenure

ROUNDS = 5

HEAVY = [
    "cryptography",
    "decimal",
    "email",
    "fractions",
    "glide",
    "hmac",
    "http",
    "importlib.metadata",
    "json",
    "litestar",
    "multiprocessing",
    "opentelemetry",
    "prometheus_client",
    "redis",
    "secrets",
    "sqlalchemy",
    "structlog",
    "tenure.config",
    "tenure.election",
    "tenure.ext",
    "tenure.idempotency",
    "tenure.idempotency_store",
    "tenure.jobs",
    "tenure.memory",
    "tenure.testing",
    "unittest",
    "uuid",
    "zoneinfo",
]

COST = """
import time
began = time.process_time()
import asyncio
between = time.process_time()
import tenure
ended = time.process_time()
print((ended - began) / (between - began))
"""


def python(code: str, cache: Path) -> str:
    """Run *code* in a fresh interpreter, with a bytecode cache of its own."""
    command = [sys.executable, "-I", "-X", f"pycache_prefix={cache}", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bytecode cache that knows asyncio and tenure."""
    directory = tmp_path_factory.mktemp("bytecode")
    python(COST, directory)
    return directory


def test_nothing_is_imported_that_a_program_may_do_without(cache: Path) -> None:
    loaded = python("import sys, tenure; print(*sys.modules, sep='\\n')", cache).split("\n")
    assert "tenure.locks" in loaded
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize("name", ["tenure.jobs", "secrets"])
def test_planted_an_import_of_something_heavy_is_found(cache: Path, name: str) -> None:
    loaded = python(f"import sys, tenure; import {name}; print(*sys.modules, sep='\\n')", cache).split("\n")
    assert name in [heavy for heavy in HEAVY if heavy in loaded]


def test_it_costs_less_than_asyncio_itself(cache: Path) -> None:
    """A third to a half of it, as processor time; the band is wide, for a machine may be busy."""
    assert statistics.median(float(python(COST, cache)) for _ in range(ROUNDS)) < 1.9


def test_every_name_is_there_when_it_is_asked_for(cache: Path) -> None:
    asked = "\n".join(f"assert tenure.{name} is not None" for name in tenure.__all__)
    assert python(
        f"import tenure\n{asked}\nfrom tenure import *\nprint(set(tenure.__all__) <= set(dir(tenure)))", cache
    )


def test_a_name_that_is_not_there_is_said_not_to_be() -> None:
    with pytest.raises(AttributeError, match="module 'tenure' has no attribute 'Lock'"):
        tenure.Lock  # type: ignore[attr-defined]  # noqa: B018 -- asked for, not used
