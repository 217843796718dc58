"""The scenarios, by what they hurt. Importing this registers all of them."""

import importlib
import pkgutil

from chaos.scenario import SCENARIOS

__all__ = ["SCENARIOS"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

SCENARIOS.sort(key=lambda found: int(found.id[1:]))
