"""What the tests of core share: how a planted bug is shown to be caught."""

import asyncio
import gc
import importlib.util
import logging
import pathlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

HERE = pathlib.Path(__file__).parent


def facts_of(file: str) -> ModuleType:
    """Load the facts of *file*, once: a job that is declared twice under two module names is two jobs on one key."""
    path = str(HERE / f"{file}.py")
    loaded = next((module for module in sys.modules.values() if getattr(module, "__file__", None) == path), None)
    if loaded is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(f"planted_{file.replace('/', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_fact(test: Callable[[], Any]) -> None:
    """Run a fact to its end, or to where a planted bug hangs it."""
    if asyncio.iscoroutinefunction(test):

        async def bounded() -> None:
            async with asyncio.timeout(10):  # a planted bug may hang the fact, which is a failure too
                await test()

        asyncio.run(bounded())
    else:
        test()


@pytest.fixture(name="facts_of")
def facts_of_fixture() -> Callable[[str], ModuleType]:
    return facts_of


@pytest.fixture
def assert_caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """
    Plant a bug and see the fact that it breaks fail.

    What the bug leaves behind, tasks that failed with nobody to look at them, ends here and unsaid.
    """
    logger = logging.getLogger("asyncio")
    logger.disabled = True

    def check(plant: Callable[[pytest.MonkeyPatch], None], file: str, fact: str) -> None:
        test = getattr(facts_of(file), fact)
        with monkeypatch.context() as patch:
            plant(patch)
            with pytest.raises((Exception, pytest.fail.Exception)):
                run_fact(test)

    yield check
    gc.collect()
    logger.disabled = False
