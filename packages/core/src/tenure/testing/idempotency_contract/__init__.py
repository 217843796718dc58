"""
The contract of an idempotency store, as cases for any test runner.

    @pytest.mark.parametrize("case", idempotency_store_contract(make_store, concurrent=True), ids=str)
    async def test_contract(case): await case.run()

One module a subject; each case is a fact, named for it, with the rule of `tenure.idempotency_store` that it belongs to
and the race that it prevents: A1 to A10 begin a record, E1 to E5 extend it, C1 to C8 complete it, R1 and R2 release it.
That the cases find what they look for is shown by the museum of broken stores in `tenure.testing.idempotency_mutants`.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from tenure.errors import ConfigurationError
from tenure.idempotency_store import check_ttl_ms
from tenure.testing._stage import Setting
from tenure.testing.idempotency_contract import (
    arguments,
    beginning,
    classifying,
    ending,
    extending,
    names,
    ownership,
    purging,
    races,
    releasing,
    repeating,
    responses,
    surviving,
)
from tenure.testing.idempotency_contract import effects as effects_rung
from tenure.testing.idempotency_contract.bench import MakeIdempotencyStore, OpenTransaction, RecordBench
from tenure.testing.idempotency_contract.case import Case

__all__ = ["MakeIdempotencyStore", "OpenTransaction", "idempotency_store_contract"]

_RUNGS = (
    beginning.RUNG,
    classifying.RUNG,
    ending.RUNG,
    ownership.RUNG,
    repeating.RUNG,
    extending.RUNG,
    releasing.RUNG,
    responses.RUNG,
    surviving.RUNG,
    names.RUNG,
    arguments.RUNG,
    purging.RUNG,
    effects_rung.RUNG,
    races.RUNG,
)

_LATE_SHARE = 1 / 16
"""
A case that failed later than this share of its ttl is tried again with more time: less than the tenth of it that the
briefest locks last, within which some cases make two or three calls.
"""


def idempotency_store_contract(  # noqa: PLR0913 -- options of one call, each with a default
    make_store: MakeIdempotencyStore,
    *,
    concurrent: bool | int = False,
    callers: int = 16,
    rounds: int = 20,
    advance_time: Callable[[float], Awaitable[None]] | None = None,
    restart: Callable[[], Awaitable[None]] | None = None,
    ttl_ms: int = 2500,
    limit_s: float = 60.0,
    effects: OpenTransaction | None = None,
    purges: bool | None = None,
) -> list[Case]:
    """
    List what an `IdempotencyStore` must bear out, one case a fact.

    Each case makes a store of its own and works on keys that it drew, so that a server may be shared with other cases,
    other runs and other people. Afterwards it gives back what it began; what it completed stays until its retention
    ends, which is ten minutes, but for three records of a few bytes that are kept for weeks or for a century.

    Args:
        make_store: Makes the store under test. A function, or an async one, that returns a store; or what cleans up
            too: one that returns an async context manager, or an async generator that yields a store once. A store
            that is a context manager itself is entered and left.
        concurrent: Adds the races. Run them where calls really overlap: on a pool of connections. A number is that of
            the callers.
        callers: How many callers race for a key, at least 2.
        rounds: How many times they do.
        advance_time: Moves the store's clock, which stands still otherwise, by so many seconds. Without it, cases
            that need time to pass wait for it: about a minute in all at the default ttl, or a few seconds with
            `run_all`.
        restart: Restarts the store's server; adds the case of a restart. `make_store` is called again after it.
        ttl_ms: The time of locks, graces and retentions whose end is measured: looked at a quarter of it before the
            end, at least 100. Raise it for a store whose round trips take more than a tenth of it.
        limit_s: How long a case may take, in real seconds, before it fails as hung.
        effects: Opens a transaction in the store's own database, as an async context manager that gives its
            connection, commits when left and rolls back on an exception; adds the cases of `RecordsEffects`.
        purges: Whether `purge()` has anything to do: True holds the store to delete what has ended, False, for a
            store that expires records by itself, to answer 0. None allows both.

    Returns:
        The cases, in the order of the rules. `await case.run()` runs one; `run_all(cases)` all.

    Raises:
        ConfigurationError: An option is out of range.
    """
    if not isinstance(concurrent, bool):
        callers = concurrent
    if callers < 2 or rounds < 1:
        raise ConfigurationError(f"A race takes 2 callers and 1 round at least, not {callers} and {rounds}.")
    if check_ttl_ms(ttl_ms) < 100:
        raise ConfigurationError(f"ttl_ms is {ttl_ms}: a time that is measured takes 100 ms at least.")
    setting = Setting(
        bench=partial(RecordBench, effects=effects, purges=purges),
        make_store=make_store,
        advance_time=advance_time,
        restart=restart,
        ttl_ms=ttl_ms,
        callers=callers,
        rounds=rounds,
        limit_s=limit_s,
        contract="idempotency store contract",
        late_share=_LATE_SHARE,
    )
    return [
        setting.case(script)
        for rung in _RUNGS
        for script in rung.scripts
        if (concurrent or not script.races)
        and (restart is not None or not script.restarts)
        and (effects is not None or script.capability is None)
    ]
