"""The public API: its names, what its classes promise, and what importing it brings along."""

import ast
import enum
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import tenure

SOURCE = Path(tenure.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
CORE = [path for path in FILES if path.relative_to(SOURCE).parts[0] not in ("cli", "ext", "sync", "testing")]
EXT = [path for path in FILES if path.relative_to(SOURCE).parts[0] == "ext"]
CLI = [path for path in FILES if path.relative_to(SOURCE).parts[0] == "cli"]
SYNC = [path for path in FILES if path.relative_to(SOURCE).parts[0] == "sync"]

# Names that are published: taking one away or renaming it breaks somebody's program.
NAMES = [
    "Acquired",
    "ConfigurationError",
    "Held",
    "InMemoryLockStore",
    "LeaderElection",
    "Lease",
    "LeaseLostError",
    "LeaseStateError",
    "LockNotAcquiredError",
    "LockStore",
    "Locks",
    "LossReason",
    "StoreError",
    "StoreReplyError",
    "StoreTimeoutError",
    "TenureError",
    "current_lease",
    "locked",
    "on_one_instance",
    "open_idempotency_store",
    "open_store",
    "without_overlapping",
]

MODULES = [
    "tenure",
    "tenure.clock",
    "tenure.config",
    "tenure.context",
    "tenure.election",
    "tenure.errors",
    "tenure.events",
    "tenure.idempotency",
    "tenure.idempotency_store",
    "tenure.instrumentation",
    "tenure.jobs",
    "tenure.lease",
    "tenure.locks",
    "tenure.memory",
    "tenure.store",
    "tenure.sync",
]


def published() -> Iterator[tuple[str, Any]]:
    """Every public name of every public module."""
    for name in MODULES:
        module = importlib.import_module(name)
        for member in module.__all__:
            yield f"{name}.{member}", getattr(module, member)


PUBLISHED = dict(published())
CLASSES = {name: member for name, member in PUBLISHED.items() if isinstance(member, type)}
FUNCTIONS = {name: member for name, member in PUBLISHED.items() if inspect.isfunction(member)}
METHODS = {
    f"{name}.{method}": member
    for name, cls in CLASSES.items()
    for method, member in vars(cls).items()
    if not method.startswith("_") and isinstance(member, property | classmethod | staticmethod | FunctionType)
}


def test_the_names_are_the_published_ones() -> None:
    assert tenure.__all__ == NAMES == sorted(NAMES)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_what_it_says_it_has(name: str) -> None:
    module = importlib.import_module(name)
    assert [member for member in module.__all__ if not hasattr(module, member)] == []


def test_every_public_module_is_looked_at_here() -> None:
    found = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in [*CORE, *SYNC]}
    assert {name.rpartition(".")[2] for name in MODULES} == {name for name in found if not name.startswith("_")} | {
        "tenure"
    }


def is_closed(cls: type) -> bool:
    """Nobody can derive from it and be surprised by the next version, or it is there to be derived from."""
    protocol = getattr(cls, "_is_protocol", False)
    full_enum = issubclass(cls, enum.Enum) and len(cls) > 0
    return getattr(cls, "__final__", False) or protocol or full_enum or issubclass(cls, Exception)


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_is_final_or_a_protocol_or_an_error(name: str) -> None:
    assert is_closed(CLASSES[name])


@pytest.mark.parametrize("name", [*CLASSES, *FUNCTIONS, *METHODS])
def test_what_is_public_is_documented(name: str) -> None:
    member = {**CLASSES, **FUNCTIONS, **METHODS}[name]
    # Its own words: a method of a protocol's child may not lean on its parent's, nor a dataclass on its signature.
    documented = member.__doc__ if not isinstance(member, type) else vars(member).get("__doc__")
    assert documented
    assert not documented.startswith(f"{name.rpartition('.')[2]}(")


@pytest.mark.parametrize("name", ["try_acquire", "acquire", "hold"])
def test_whatever_takes_a_key_says_what_it_raises(name: str) -> None:
    documented = inspect.getdoc(getattr(tenure.Locks, name))
    assert documented is not None
    assert "Raises:" in documented


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_most_two_arguments_are_given_by_position(name: str) -> None:
    positional = [
        parameter
        for parameter in inspect.signature(FUNCTIONS[name]).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert len(positional) <= 2


def test_a_lease_is_not_made_by_hand() -> None:
    with pytest.raises(TypeError):
        tenure.Lease("invoices")  # type: ignore[call-arg, arg-type]


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").is_file()


# ------------------------------------------------------------------ what importing it brings along


def imported(program: str) -> list[str]:
    """Run *program* in a new interpreter, and tell which modules it brought in."""
    code = f"import sys, json; before = {{*sys.modules}}\n{program}\nprint(json.dumps([*{{*sys.modules}} - before]))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    modules: list[str] = json.loads(ran.stdout)
    return modules


def test_importing_it_brings_in_the_standard_library_alone() -> None:
    roots = {module.partition(".")[0] for module in imported("import tenure, tenure.config, tenure.instrumentation")}
    assert "tenure" in roots
    assert roots - sys.stdlib_module_names - {"tenure"} == set()


def test_importing_it_brings_in_nothing_that_only_some_need() -> None:
    modules = imported("import tenure")
    slow = ("logging.handlers", "logging.config", "importlib.metadata", "email", "unittest", "multiprocessing", "http")
    assert [module for module in slow if module in modules] == []
    seldom = ("tenure.testing", "tenure.sync", "tenure.cli", "tenure.ext")
    assert [module for module in modules if module.startswith(seldom)] == []


def test_importing_it_says_nothing_and_sets_up_no_logging() -> None:
    program = (
        "import tenure, logging; assert not logging.getLogger('tenure').handlers; assert not logging.root.handlers"
    )
    assert "tenure" in imported(program)


def imports_of(path: Path) -> set[str]:
    """The roots of what a file imports, wherever in it."""
    roots: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            roots.add(node.module.partition(".")[0])
    return roots


@pytest.mark.parametrize("path", [*CORE, *SYNC], ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_the_standard_library_and_its_own_hooks_libraries_only(path: Path) -> None:
    foreign = imports_of(path) - sys.stdlib_module_names - {"tenure"}
    allowed = {"_structlog.py": "structlog", "_prometheus.py": "prometheus_client", "_otel.py": "opentelemetry"}
    assert foreign <= {allowed.get(path.name)}


@pytest.mark.parametrize(
    "file",
    ["errors.py", "events.py", "_keys.py", "_lease_machine.py", "_election_machine.py", "_idempotency_machine.py"],
)
def test_the_words_and_the_machines_do_no_input_or_output_and_read_no_clock(file: str) -> None:
    forbidden = {"asyncio", "time", "datetime", "random", "logging", "socket", "os", "threading"}
    assert imports_of(SOURCE / file) & forbidden == set()


def calls_in(path: Path) -> set[str]:
    """The names of what a file calls: `print`, `time.time`, `loop.create_task`."""
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("path", EXT, ids=lambda path: str(path.relative_to(SOURCE)))
def test_an_extension_imports_its_own_framework_only(path: Path) -> None:
    foreign = imports_of(path) - sys.stdlib_module_names - {"tenure"}
    allowed = {
        "litestar": {"litestar", "advanced_alchemy", "msgspec"},
        "starlette": {"starlette"},
        "saq.py": {"saq"},
        "apscheduler.py": {"apscheduler"},
        "sealing.py": {"cryptography"},
    }
    assert foreign <= allowed.get(path.relative_to(SOURCE / "ext").parts[0], set())


@pytest.mark.parametrize("path", CLI, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_command_imports_its_two_libraries_only(path: Path) -> None:
    assert imports_of(path) - sys.stdlib_module_names - {"tenure"} <= {"typer", "rich"}


@pytest.mark.parametrize("path", [*CORE, *SYNC, *EXT, *CLI], ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_printed(path: Path) -> None:
    assert "print" not in calls_in(path)


@pytest.mark.parametrize("path", [*CORE, *SYNC], ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_wall_clock_decides_and_nothing_claims_to_bound_a_driver(path: Path) -> None:
    banned = {"time.time", "datetime.now", "datetime.datetime.now", "datetime.utcnow"}
    banned |= {"asyncio.wait_for", "asyncio.timeout", "asyncio.timeout_at", "asyncio.ensure_future"}
    assert calls_in(path) & banned == set()


def test_only_the_keeper_creates_tasks() -> None:
    makers = {path for path in CORE for call in calls_in(path) if call.endswith(("create_task", "TaskGroup"))}
    assert makers == {SOURCE / "_keeper" / "calls.py"}
