"""
The lease of a job that a scheduler starts anew for every tick: kept in the store while no process of the job runs.

`@on_one_instance` keeps `<key>:owner` in the memory of a process that lives on. Here each tick is a process of its own,
so the owner is drawn from what all of them on one host know: the instance's name, the machine id and the key. An
acquire is safe to repeat (rule 4 of the store contract): the next tick on the same host gets the lease that the last
one left, in one atomic step; every other host is refused until it has expired. What runs at the same time on one
host is kept apart by the run lock, which has a random owner for each run, as everywhere.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from tenure._acquirer import ask_in_time
from tenure._job_leases import owner_key
from tenure._keys import check_key
from tenure.cli.looking import Look
from tenure.clock import sleep_until
from tenure.store import Acquired, Held, check_acquire_reply

__all__ = ["Ownership"]

_MACHINE_IDS: Final = ("/etc/machine-id", "/var/lib/dbus/machine-id")

_TRIES_PER_TTL: Final = 3


@final
class Ownership:
    """
    The lease of the job under *key*, as this host has it.

    Args:
        look: The store.
        key: The job's key.
        instance: This host's name.
        ttl_ms: How long the lease lives after its last renewal, in milliseconds.
    """

    def __init__(self, look: Look, key: str, instance: str, ttl_ms: int) -> None:
        self._look = look
        self._key = check_key(owner_key(key))
        self._owner = f"{instance}:{_host_digest(instance, self._key)}"
        self._ttl_ms = ttl_ms
        self._timeout_s = min(10.0, ttl_ms / 1000)

    async def take(self) -> bool:
        """
        Take the job, or take it up again where this host has it.

        Returns:
            Whether it is this host's for the next ttl.
        """
        store = self._look.store
        reply: Acquired | Held
        reply, _ = await ask_in_time(
            self._look.keeper,
            self._look.clock,
            store.acquire(self._key, self._owner, self._ttl_ms),
            granted=Acquired,
            ttl_s=self._ttl_ms / 1000,
            timeout_s=self._timeout_s,
            release=partial(store.release, self._key, self._owner),
            check=check_acquire_reply,
        )
        return isinstance(reply, Acquired)

    async def keep(self) -> None:
        """Renew it while the command runs, until cancelled. Where that fails the run goes on, under its own lock."""
        clock = self._look.clock
        while True:
            await sleep_until(clock, clock.now() + self._ttl_ms / 1000 / _TRIES_PER_TTL)
            await self.leave()

    async def leave(self) -> None:
        """Leave it in the store for a ttl from now, for the next tick on this host."""
        call: Any = self._look.store.renew(self._key, self._owner, self._ttl_ms)
        try:
            await self._look.keeper.call("renew", call, timeout_s=self._timeout_s)
        except Exception:  # noqa: BLE001 -- whatever a driver raises: the lease then ends sooner, and no run is at stake
            return


def _host_digest(instance: str, key: str) -> str:
    """
    Draw what stands where a random id would: the same for each process of this host, another on every other one.

    Hosts of one name differ by their machine ids; containers often have none, and names that are drawn. The id is not
    to be shown, and is not: it goes in with the rest, and a digest comes out.
    """
    machine = next((text for text in map(_read, _MACHINE_IDS) if text), "")
    return hashlib.sha256(f"tenure run\0{instance}\0{machine}\0{key}".encode()).hexdigest()[:32]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
