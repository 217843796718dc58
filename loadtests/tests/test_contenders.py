import asyncio
import socket

import pytest

from tenure_loadtests.contenders.captured import sent_to_valkey
from tenure_loadtests.contenders.contract import Address
from tenure_loadtests.contenders.programs import read_redis_benchmark
from tenure_loadtests.contenders.renewed_by_task import Renewals, TaskALease
from tenure_loadtests.contenders.tenure_locks import store_url
from tenure_loadtests.driver.environments import Environments, EnvironmentUnusableError
from tenure_loadtests.driver.servers import POSTGRES_VARIABLE, VALKEY_VARIABLE, Servers
from tenure_loadtests.worker.held import connections_to
from tenure_loadtests.worker.meter import Meter


async def test_a_floor_sends_what_the_store_sends_on_a_key_of_its_own() -> None:
    acquire, release = await sent_to_valkey()
    keys, arguments = acquire.with_names("bench:7", "bench-1:abc")
    assert all(b"{bench:7}" in key for key in keys)
    assert b"bench-1:abc" in arguments
    assert b"{bench:7}" in release.with_names("bench:7", "bench-1:abc")[0][0]


def test_a_server_that_the_environment_names_is_not_started() -> None:
    with Servers({VALKEY_VARIABLE: "elsewhere:6379"}) as servers:
        assert servers.address("valkey") == Address(valkey="elsewhere:6379")
        assert servers.processes("valkey") == []
        assert servers.ports("valkey") == [6379]
        assert servers.named


def test_an_address_of_two_servers_has_both() -> None:
    both = Address(postgres="postgresql://one").with_all_of(Address(valkey="two:1"))
    assert store_url(both, "postgres") == "postgresql://one"
    assert store_url(both, "valkey-glide") == "valkey://two:1/0?client=glide"
    assert POSTGRES_VARIABLE != VALKEY_VARIABLE


def test_a_peer_whose_environment_cannot_be_made_has_a_reason(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    environments = Environments(tmp_path_factory.mktemp("cache"), {})
    with pytest.raises(EnvironmentUnusableError, match="uv is not installed"):
        environments.python("redis")
    with pytest.raises(EnvironmentUnusableError, match="node and npm"):
        environments.node()


def test_the_figures_of_redis_benchmark_are_read() -> None:
    output = (
        '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms"\n'
        '"EVALSHA 0a1b 2 locks:{__rand_int__}","40000.00","0.6","0.2","0.5","0.9","1.5"\n'
    )
    assert read_redis_benchmark(output) == {"requests_per_s": 40_000, "p50_us": 500, "p99_us": 1500}
    with pytest.raises(RuntimeError, match="no figures"):
        read_redis_benchmark("Could not connect")


def test_only_connections_to_the_server_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = server.getsockname()[1]
        assert connections_to([port]) == 0
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(other.getsockname()):
            assert connections_to([port]) == 1


def test_the_meter_tells_this_processs_work_from_the_machines() -> None:
    meter = Meter([])
    usage = meter.read()
    while usage.client_s < 0.02:
        usage = meter.read()
    assert usage.server_s == 0
    assert usage.wall_s > 0


def test_the_first_renewal_of_a_lease_is_measured_from_its_taking() -> None:
    renewals = Renewals(period_s=100.0)
    renewals.note("key")
    assert renewals.late_ms == []
    renewals.note("key")
    assert renewals.late_ms == [0.0]  # early is not late


async def test_a_lease_that_cannot_be_renewed_counts_as_lost() -> None:
    async def take(key: str) -> tuple[object, object]:
        async def renew() -> None:
            raise ConnectionError(key)

        async def release() -> None:
            released.append(key)

        return renew, release

    released: list[str] = []
    held = TaskALease(ttl_s=0.03)
    await held.take(["one", "two"], take, at_once=2)  # type: ignore[arg-type]  # what it calls is all that matters
    while held.lost() < 2:
        await asyncio.sleep(0.001)
    await held.let_go()
    assert released == []
