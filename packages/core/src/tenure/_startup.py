"""The start: is the store one that locks can rely on, and is it fast enough for the ttl?"""

import math
import os
from typing import Literal, Protocol

from tenure._durations import Duration, to_ms
from tenure._keeper import Keeper
from tenure._lease_machine import RENEWALS_PER_TTL
from tenure.clock import Clock
from tenure.errors import ConfigurationError
from tenure.store import ChecksServer, Finding

__all__ = [
    "StartupCheck",
    "check_server",
    "look_at_server",
    "measure_round_trip_s",
    "refuse_no_idempotency_store",
    "refuse_no_store",
    "refuse_short_ttl",
    "store_timeout_s",
]

StartupCheck = Literal["warn", "strict", False]
"""What to do with findings: "warn" fails on fatal ones, "strict" on all, False does not look."""

CHECK_S = 3.0
"""How long the check may take, in seconds: a start must not hang on a server that does not answer."""

PROBE_PREFIX = "tenure:start:"
"""What the key begins with whose release measures the round trip. Nobody has such a lock."""

_STORE_TIMEOUT_S = 10.0
"""How long a store call may take where nobody said otherwise, in seconds: longer than a failover takes."""

_PROBES = 3
"""Round trips measured; the shortest counts. The first opens a connection, which no renewal has to."""


def refuse_no_store(store: object) -> None:
    """
    Refuse what is no lock store, such as a URL.

    Raises:
        ConfigurationError: It lacks a method of the contract.
    """
    _refuse_lacking(store, ("acquire", "renew", "release"), "lock store", "open_store", "tenure.LockStore")


def refuse_no_idempotency_store(store: object) -> None:
    """
    Refuse what is no idempotency store, such as a URL or a lock store.

    Raises:
        ConfigurationError: It lacks a method of the contract.
    """
    methods = ("acquire", "extend", "complete", "release", "purge")
    opener, contract = "open_idempotency_store", "tenure.idempotency.IdempotencyStore"
    _refuse_lacking(store, methods, "idempotency store", opener, contract)


def _refuse_lacking(store: object, methods: tuple[str, ...], kind: str, opener: str, contract: str) -> None:
    for method in methods:
        if not callable(getattr(store, method, None)):
            raise ConfigurationError(
                f"A {type(store).__name__} is no {kind}: it has no {method}(). Pass a store, such as "
                f'{opener}("postgresql+asyncpg://..."), or one of your own that keeps {contract}.'
            )


def store_timeout_s(store_timeout: Duration | None, ttl_s: float) -> float:
    """
    Read how long a store call may take, in seconds.

    Raises:
        ConfigurationError: It is no duration, or longer than the ttl.
    """
    if store_timeout is None:
        return min(_STORE_TIMEOUT_S, ttl_s)
    timeout_s = to_ms(store_timeout, name="store_timeout") / 1000
    if timeout_s > ttl_s:
        raise ConfigurationError(
            f"store_timeout is {timeout_s:g} s and ttl is {ttl_s:g} s: a call that is waited for longer than a lease "
            "lives cannot help it. Give a store_timeout of at most the ttl."
        )
    return timeout_s


class _Releases(Protocol):
    """What both kinds of store have, and changes nothing where there is nothing."""

    async def release(self, key: str, owner: str) -> bool: ...


async def look_at_server(store: object, keeper: Keeper) -> list[Finding]:
    """
    Look at the store's server once, for at most three seconds.

    Returns:
        What was found; a server that cannot be looked at is a finding too. Nothing for a store that cannot tell.
    """
    if not isinstance(store, ChecksServer):
        return []
    try:
        return list(await keeper.call("check", store.check(), timeout_s=CHECK_S))
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 -- whatever a driver raises: the server could not be looked at
        # The type alone: a driver's text may hold an address with a password in it.
        return [
            Finding(
                "store-unreachable",
                fatal=False,
                message=f"The start-up check of {type(store).__name__} failed with {type(error).__name__}.",
                remedy="See that the server is up and that its address and credentials are right.",
            )
        ]


async def check_server(store: object, keeper: Keeper, mode: StartupCheck) -> list[Finding]:
    """
    Look at the store's server at the start, for at most three seconds.

    Returns:
        What was found and is no reason not to start.

    Raises:
        ConfigurationError: A finding makes locks impossible or unsafe; in strict mode, any finding.
    """
    if mode is False:
        return []
    findings = await look_at_server(store, keeper)
    if any(finding.fatal or mode == "strict" for finding in findings):
        raise ConfigurationError(" ".join(str(finding) for finding in findings))
    return findings


async def measure_round_trip_s(store: _Releases, keeper: Keeper, clock: Clock) -> float:
    """
    Measure the store's round trip, in seconds: the release of a lock that nobody has, which changes nothing.

    Returns:
        The shortest of a few, or 0.0 where the store did not answer (the first acquire will say why).
    """
    shortest = math.inf
    nobody = os.urandom(16).hex()
    for _ in range(_PROBES):
        sent_at = clock.now()
        try:
            await keeper.call("release", store.release(f"{PROBE_PREFIX}{nobody}", nobody), timeout_s=CHECK_S)
        except Exception:  # noqa: BLE001 -- a server that is down at the start may be up at the first acquire
            return 0.0
        shortest = min(shortest, clock.now() - sent_at)
    return shortest


def refuse_short_ttl(ttl_s: float, round_trip_s: float) -> None:
    """
    Refuse a ttl in which a lease could not be renewed.

    Raises:
        ConfigurationError: The ttl is shorter than three round trips to the store.
    """
    if ttl_s < RENEWALS_PER_TTL * round_trip_s:
        raise ConfigurationError(
            f"The ttl of {ttl_s:g} s is shorter than three round trips to the store ({round_trip_s:.3g} s each, as "
            f"measured): no lease could be renewed in time. Give a ttl of {100 * round_trip_s:.2g} s or more."
        )
