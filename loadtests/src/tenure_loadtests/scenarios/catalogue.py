"""All scenarios by name, in the order in which they are run."""

from collections.abc import Mapping
from typing import Final

from tenure_loadtests.scenarios.commit import CommitScenario
from tenure_loadtests.scenarios.contract import Scenario
from tenure_loadtests.scenarios.cycle import CycleScenario
from tenure_loadtests.scenarios.expiry import ExpiryScenario
from tenure_loadtests.scenarios.handoff import HandoffScenario
from tenure_loadtests.scenarios.held import HeldScenario
from tenure_loadtests.scenarios.request import RequestScenario
from tenure_loadtests.scenarios.section import SectionScenario
from tenure_loadtests.scenarios.tick import TickScenario

__all__ = ["SCENARIOS"]

_ALL: Final[tuple[Scenario, ...]] = (
    CycleScenario(),
    HandoffScenario(),
    SectionScenario(),
    TickScenario(),
    RequestScenario(),
    CommitScenario(),
    ExpiryScenario(),
    HeldScenario(),
)

SCENARIOS: Final[Mapping[str, Scenario]] = {scenario.name: scenario for scenario in _ALL}
