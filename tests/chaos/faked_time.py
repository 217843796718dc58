"""Clocks that step while a process runs: libfaketime, which stands between a process and its clocks."""

import asyncio
import contextlib
import dataclasses
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chaos.stores import Backend
from tenure_postgres import create_schema_sql
from tenure_testbed import PostgresServer, ValkeyServer
from tenure_testbed.process import Child, Program
from tenure_testbed.server import Server

_PLACES = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime", "/usr/lib64/faketime")
MISSING = "libfaketime is not installed: apt-get install libfaketime"


def library() -> Path | None:
    """Find the library, for programs with threads; None where it is not installed."""
    found = [path for place in _PLACES for path in Path("/").glob(f"{place[1:]}/libfaketimeMT.so.1")]
    return found[0] if found else None


class FakedTime:
    """
    The clocks of the processes that are started with `env`.

    Args:
        directory: Where the file stands that says what they read; every account may read it.
        name: Of that file.
        monotonic: Whether a step moves their monotonic clocks as well. Those must not be moved back.
    """

    def __init__(self, directory: Path, name: str, *, monotonic: bool = False) -> None:
        self._path = directory / name
        self._monotonic = monotonic
        self.set("+0s")

    def set(self, offset: str) -> None:
        """Move the clocks, now: "+3600s", "-3600s", or "+0 x2" for twice the rate."""
        beside = self._path.with_suffix(".next")
        beside.write_text(offset + "\n", encoding="ascii")
        beside.chmod(0o644)
        beside.replace(self._path)

    @property
    def env(self) -> dict[str, str]:
        """What a process is started with."""
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "0" if self._monotonic else "1",
        }


@contextlib.contextmanager
def readable_directory() -> Iterator[Path]:
    """Make a directory that the account of the servers can read as well."""
    with tempfile.TemporaryDirectory(prefix="tenure-faketime-") as made:
        os.chmod(made, 0o755)  # noqa: PTH101 -- one call for one path
        yield Path(made)


class _OnFakedTime(Server):
    """A server of the test bed, started with more variables."""

    more: Mapping[str, str] = {}

    def _launch(
        self, program: Program, port: int, serving: Callable[[Child], bool], prove: Callable[[], None] | None = None
    ) -> None:
        super()._launch(dataclasses.replace(program, env={**program.env, **self.more}), port, serving, prove)


class _Postgres(_OnFakedTime, PostgresServer):
    pass


class _Valkey(_OnFakedTime, ValkeyServer):
    pass


@contextlib.asynccontextmanager
async def backend_on(clock: FakedTime, store: str) -> AsyncIterator[Backend]:
    """Start the server of *store* with its clock on *clock*; end it on leaving."""
    server: Any = _Postgres() if store == "postgres" else _Valkey()
    server.more = clock.env
    async with server:
        if store == "postgres":
            await asyncio.to_thread(server.execute, create_schema_sql())
            yield Backend(store, server.url(), server)
        else:
            client = "glide" if store == "valkey" else "redis"
            yield Backend(store, f"{server.url()}?client={client}", server)


def server_time_us(backend: Backend) -> int:
    """Read the clock of the server, in microseconds."""
    if backend.store == "postgres":
        question = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        return int(backend.server.execute(question)[0][0])
    seconds, rest = backend.server.execute("TIME")
    return int(seconds) * 1_000_000 + int(rest)
