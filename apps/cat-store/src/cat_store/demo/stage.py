"""The stage: servers, partners and three replicas, all started here and ended here, however the story ends."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from cat_store.demo.journal import Journal
from cat_store.demo.options import DemoOptions
from cat_store.demo.partners import PartnersProcess
from cat_store.demo.past import Past
from cat_store.demo.shop import Shop
from cat_store.settings import PREFIX
from cat_store.web.server import Listener
from tenure import open_store
from tenure.store import ListsLocks, LockRecord
from tenure_testbed import (
    PostgresServer,
    Replica,
    ReplicaGroup,
    ServerStartError,
    ValkeyCluster,
    ValkeyServer,
    free_port,
)

__all__ = ["INSTANCES", "RECORD_LOCK_TTL_S", "Stage", "State", "open_stage"]

INSTANCES: Final = ("cat-store-1", "cat-store-2", "cat-store-3")

# Short, because a client of the story waits for it, and long against the pauses of a busy machine.
RECORD_LOCK_TTL_S: Final = 2.0

State = Literal["up", "paused", "gone"]

# Three interpreters that start at once on a busy machine with two cores.
_UP_WITHIN_S: Final = 60.0


_LOOPBACK: Final = "127.0.0.1"


@dataclass(slots=True)
class Stage:
    """
    Everything that the scenes act on.

    Attributes:
        options: What the demo was asked for.
        shop: The shop's database.
        partners: The accounting system and the warehouse.
        replicas: The replicas by name; none runs at first.
        journal: What they log.
        store: Where the locks are, to look at them.
        environment: What every replica is told.
        ports: Where each replica serves, the same after each of its starts: a page goes on at another one's address.
        admin_token: What an administrator sends to any of them.
        past: What they asked the lock store and were told, to be checked.
        launched: The journal's mark at the last start of each replica.
        runs_with_locks: Whether replicas are started with locks.
    """

    options: DemoOptions
    shop: Shop
    partners: PartnersProcess
    replicas: Mapping[str, Replica]
    journal: Journal
    store: ListsLocks
    environment: dict[str, str]
    ports: Mapping[str, int]
    admin_token: str = field(repr=False)
    past: Past
    launched: dict[str, int] = field(default_factory=dict)
    runs_with_locks: bool = True

    async def start(self, *, locks: bool) -> None:
        """Start every replica, and return when each of them is up."""
        self.runs_with_locks = locks
        for name in INSTANCES:
            await self.launch(name)
        await self.wait_until_up()

    async def launch(self, name: str) -> None:
        """Start a replica as the others run, and do not wait for it: they go on without it for a while."""
        replica = self.replicas[name]
        mine = {
            "INSTANCE": name,
            "PORT": str(self.ports[name]),
            "LOCKS": "on" if self.runs_with_locks else "off",
            "LOCK_HISTORY": str(self.past.file_of(name)),
        }
        replica.env = {**self.environment, **{f"{PREFIX}{key}": value for key, value in mine.items()}}
        self.launched[name] = self.journal.mark
        self.past.note("started", name)
        await asyncio.to_thread(replica.start)

    async def kill(self, name: str) -> None:
        """Kill it with SIGKILL: nobody cleans up."""
        await asyncio.to_thread(self.replicas[name].kill)
        self.past.note("died", name)

    async def terminate(self, name: str) -> int:
        """Stop it with SIGTERM, and return its exit code once it has ended."""
        code = await asyncio.to_thread(self.replicas[name].terminate)
        self.past.note("died", name)
        return code

    async def pause(self, name: str) -> None:
        """Stop it where it stands, with SIGSTOP."""
        await asyncio.to_thread(self.replicas[name].pause)
        self.past.note("paused", name)

    async def resume(self, name: str) -> None:
        """Let it go on, with SIGCONT."""
        self.past.note("resumed", name)
        await asyncio.to_thread(self.replicas[name].resume)

    async def wait_until_up(self) -> None:
        """Wait until each replica that was launched is up."""
        await self.journal.wait_until(
            lambda: all(self._is_up_or_ended(name) for name in INSTANCES),
            "the start of every replica",
            within_s=_UP_WITHIN_S,
        )
        for name in INSTANCES:
            if not self.replicas[name].running:
                raise ServerStartError(f"{name} ended:\n{self.replicas[name].output.tail()}")

    def _is_up_or_ended(self, name: str) -> bool:
        up = self.journal.count("replica.up", after=self.launched[name], instance=name)
        return not self.replicas[name].running or bool(up)

    async def stop(self) -> None:
        """Stop every replica as a deploy does, with SIGTERM, all at once."""
        running = [name for name, replica in self.replicas.items() if replica.running]
        await asyncio.gather(*(self.terminate(name) for name in running))

    def state_of(self, name: str) -> State:
        """Whether a replica is up, paused or gone."""
        replica = self.replicas[name]
        if not replica.running:
            return "gone"
        return "paused" if replica.paused else "up"

    def url_of(self, name: str) -> str:
        """Where a replica answers while it is up."""
        return f"http://{_LOOPBACK}:{self.ports[name]}"

    def urls(self) -> list[str]:
        """Where the replicas answer, in the order of their names, whether they are up or not."""
        return [self.url_of(name) for name in INSTANCES]

    async def locks(self) -> list[LockRecord]:
        """Look at who holds what until when."""
        return list(await self.store.list_locks())

    async def owner_of(self, job: str) -> str | None:
        """The instance that holds a job's lease, or None."""
        return next((lock.instance for lock in await self.locks() if lock.key == f"{job}:owner"), None)

    def arm_pause(self, name: str) -> None:
        """Have a replica pause right before its next stock write."""
        os.kill(self.replicas[name].pid, signal.SIGUSR1)


@contextlib.asynccontextmanager
async def open_stage(options: DemoOptions) -> AsyncIterator[Stage]:
    """Start the servers and the partners, migrate and fill the database. Everything is ended when it is left."""
    async with contextlib.AsyncExitStack() as left:
        # With fsync, as a shop runs it: without, tenure warns at the start of every replica.
        postgres, valkey, partners = PostgresServer(fsync=True), ValkeyServer(), PartnersProcess()
        await asyncio.gather(*(left.enter_async_context(each) for each in (postgres, valkey, partners)))
        database_url = await asyncio.to_thread(postgres.create_database, "cat_store")
        locks_url = await _start_lock_store(options, valkey, left)
        shop = await left.enter_async_context(Shop(database_url))
        store = await left.enter_async_context(open_store(locks_url or database_url))
        assert isinstance(store, ListsLocks), "every store that the demo offers can tell who holds what"
        bytecode = _keep_bytecode(left)
        replicas = ReplicaGroup(len(INSTANCES), _replica)  # started by the scenes, with the settings of each
        left.push_async_callback(asyncio.to_thread, replicas.close)
        journal = await left.enter_async_context(Journal().reading())
        for replica in replicas:
            journal.follow(replica)
        admin_token = secrets.token_urlsafe(24)
        directory = left.enter_context(tempfile.TemporaryDirectory(prefix="cat-store-", ignore_cleanup_errors=True))
        past = Past(Path(directory), store=options.store, ttl_s=options.ttl_s)
        left.callback(past.close)
        yield Stage(
            options,
            shop,
            partners,
            {replica.name: replica for replica in replicas},
            journal,
            store,
            {
                **_environment(options, database_url, valkey.url(), partners),
                f"{PREFIX}ADMIN_TOKEN": admin_token,
                **({f"{PREFIX}LOCKS_URL": locks_url} if locks_url else {}),
                **bytecode,
            },
            {name: _keep_port(left) for name in INSTANCES},
            admin_token,
            past,
        )


def _keep_bytecode(left: contextlib.AsyncExitStack) -> dict[str, str]:
    """
    Give the replicas a place of their own for bytecode where none is written beside the sources, as in a container.

    A dozen of them are started, and each would compile the same thousand modules, for most of the time that it starts.
    """
    if not sys.dont_write_bytecode:
        return {}
    kept = left.enter_context(tempfile.TemporaryDirectory(prefix="cat-store-", ignore_cleanup_errors=True))
    return {"PYTHONPYCACHEPREFIX": kept, "PYTHONDONTWRITEBYTECODE": ""}


def _keep_port(left: contextlib.AsyncExitStack) -> int:
    """
    Keep a port for a replica, also while it is gone.

    A port that is bound and not listened on is given to no outgoing connection of anybody, and its replica can have
    it all the same: both say that they share it (SO_REUSEADDR). Elsewhere than on Linux that would not do.
    """
    if sys.platform != "linux":
        return free_port()
    return left.enter_context(Listener(_LOOPBACK, 0)).port


async def _start_lock_store(options: DemoOptions, valkey: ValkeyServer, left: contextlib.AsyncExitStack) -> str | None:
    """Start what the locks need beyond the shop's own servers; returns its URL, or None for the shop's database."""
    if options.store == "valkey":
        return valkey.url(scheme="valkey")
    if options.store == "valkey-cluster":
        cluster = await left.enter_async_context(ValkeyCluster())
        return cluster.url()
    return None


def _replica(index: int) -> Replica:
    return Replica([sys.executable, "-m", "cat_store", "replica"], name=INSTANCES[index])


def _environment(options: DemoOptions, database_url: str, valkey_url: str, partners: PartnersProcess) -> dict[str, str]:
    settings = {
        "DATABASE_URL": database_url,
        "VALKEY_URL": valkey_url,
        "ACCOUNTING_URL": partners.accounting_url,
        "WAREHOUSE_URL": partners.warehouse_url,
        "LOCK_TTL": f"{options.ttl_s:g}",
        "IDEMPOTENCY_LOCK_TTL": f"{RECORD_LOCK_TTL_S:g}",
        "DRAIN": "5",
        "INVOICE_EXPORT_CRON": options.cron,
        "STOCK_RECONCILIATION_CRON": options.cron,
        "TIMEZONE": "UTC",
        "LOG_LEVEL": "debug",  # skipped ticks are told at this level
        "LOG_FORMAT": "json",
        "REHEARSAL": "on",
    }
    return {f"{PREFIX}{name}": value for name, value in settings.items()}
