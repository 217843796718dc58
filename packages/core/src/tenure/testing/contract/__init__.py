"""
The contract of a lock store, as cases for any test runner.

    @pytest.mark.parametrize("case", lock_store_contract(make_store, concurrent=True), ids=str)
    async def test_contract(case): await case.run()

One module a subject; each case is a fact, named for it, with the rule of `tenure.store` that it belongs to and
the race that it prevents. That the cases find what they look for is shown by the museum of broken stores in
`tenure.testing.mutants`.
"""

from collections.abc import Awaitable, Callable, Collection

from tenure.errors import ConfigurationError
from tenure.store import check_ttl_ms
from tenure.testing.contract import (
    durations,
    exclusion,
    expiry,
    keys,
    listing,
    ownership,
    queueing,
    races,
    remaining,
    renewing_many,
    repeating,
    tokens,
    waking,
)
from tenure.testing.contract.bench import Bench, MakeStore, Setting
from tenure.testing.contract.capabilities import CAPABILITIES, declared
from tenure.testing.contract.case import Case, run_all

__all__ = ["Case", "MakeStore", "lock_store_contract", "run_all"]

_RUNGS = (
    exclusion.RUNG,
    expiry.RUNG,
    ownership.RUNG,
    repeating.RUNG,
    tokens.RUNG,
    keys.RUNG,
    durations.RUNG,
    remaining.RUNG,
    renewing_many.RUNG,
    listing.RUNG,
    waking.WAKING,
    waking.CHECKING,
    queueing.RUNG,
    races.RACES,
    races.MANY_RACES,
    queueing.RACES,
)


def lock_store_contract(  # noqa: PLR0913 - options of one call, each with a default
    make_store: MakeStore,
    *,
    concurrent: bool | int = False,
    callers: int = 16,
    rounds: int = 20,
    advance_time: Callable[[float], Awaitable[None]] | None = None,
    restart: Callable[[], Awaitable[None]] | None = None,
    capabilities: Collection[type] | None = None,
    ttl_ms: int = 2500,
    limit_s: float = 60.0,
) -> list[Case]:
    """
    List what a `LockStore` must bear out, one case a fact.

    Each case makes a store of its own and works on keys that it drew, so that a server may be shared with
    other cases, other runs and other people. Afterwards it gives back what it took.

    Args:
        make_store: Makes the store under test. A function, or an async one, that returns a store; or what
            cleans up too: one that returns an async context manager, or an async generator that yields a
            store once. A store that is a context manager itself is entered and left.
        concurrent: Adds the races. Run them where calls really overlap: on a pool of connections. A number is
            that of the callers.
        callers: How many callers race for a key, at least 2.
        rounds: How many times they do.
        advance_time: Moves the store's clock by so many seconds. Without it, cases that need time to pass
            wait for it: some twenty seconds in all at the default ttl, or a few with `run_all`.
        restart: Restarts the store's server; adds the cases of a restart. `make_store` is called again after it.
        capabilities: The protocols that the store has besides (`RenewsMany`, `ListsLocks`, `ChecksServer`,
            `WakesWaiters`, `QueuesWaiters`): exactly these have cases, and the store is held to have them and no
            others. Without it, cases of all are listed, and those of a capability that the store has not are skipped.
        ttl_ms: The ttl of locks whose end is measured: looked at half-way and a twelfth past the end. Raise it for
            a store whose round trips take more than a tenth of it.
        limit_s: How long a case may take, in real seconds, before it fails as hung.

    Returns:
        The cases, in the order of the rules. `await case.run()` runs one.

    Raises:
        ConfigurationError: An option is out of range, or `capabilities` names what is none.
    """
    if not isinstance(concurrent, bool):
        callers = concurrent
    if callers < 2 or rounds < 1:
        raise ConfigurationError(f"A race takes 2 callers and 1 round at least, not {callers} and {rounds}.")
    unknown = [one for one in capabilities or () if one not in CAPABILITIES]
    if unknown:
        names = ", ".join(one.__name__ for one in CAPABILITIES)
        raise ConfigurationError(f"capabilities names {unknown[0]!r}, which is none: they are {names}.")
    setting = Setting(
        bench=Bench,
        make_store=make_store,
        advance_time=advance_time,
        restart=restart,
        ttl_ms=check_ttl_ms(ttl_ms),
        callers=callers,
        rounds=rounds,
        limit_s=limit_s,
    )
    scripts = [script for rung in _RUNGS for script in rung.scripts]
    if capabilities is not None:
        offered = frozenset(capabilities)
        scripts = [script for script in scripts if script.capability is None or script.capability in offered]
        scripts.append(declared(offered))
    return [
        setting.case(script)
        for script in scripts
        if (concurrent or not script.races) and (restart is not None or not script.restarts)
    ]
