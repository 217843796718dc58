"""What a store offers beyond the three methods is what it says it offers."""

from tenure.store import ChecksServer, ListsLocks, QueuesWaiters, RenewsMany, WakesWaiters
from tenure.testing.contract.bench import Bench
from tenure.testing.contract.case import Script

__all__ = ["CAPABILITIES", "declared"]

CAPABILITIES: tuple[type, ...] = (RenewsMany, ListsLocks, ChecksServer, WakesWaiters, QueuesWaiters)


def declared(capabilities: frozenset[type]) -> Script:
    """Make the script that holds a store to *capabilities*."""

    async def play(bench: Bench) -> None:
        for capability in CAPABILITIES:
            bench.equal(
                isinstance(bench.store, capability),
                capability in capabilities,
                what=f"isinstance(store, {capability.__name__})",
            )

    return Script(
        name="The store has the capabilities that it declares, and no others",
        rule=1,
        race="A method is renamed, ten thousand renewals go out one by one, and every test is green.",
        play=play,
    )
