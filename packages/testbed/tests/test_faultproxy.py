"""Each fault of the proxy, seen from both ends, in front of a real Valkey."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tenure_testbed import (
    Blackhole,
    Counters,
    Delay,
    DropReply,
    FaultProxy,
    Limit,
    Pass,
    Reset,
    ServerError,
    Slice,
    ThreadedFaultProxy,
    ValkeyServer,
)

Connect = Callable[[], "contextlib.AbstractAsyncContextManager[Client]"]


class Client:
    """Commands over one connection, in the inline form of the protocol: a line for a line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, command: str) -> str:
        self.writer.write(command.encode() + b"\r\n")
        async with asyncio.timeout(10):  # a broken proxy fails the test and does not hang the suite
            reply = (await self.reader.readline()).decode()
        if not reply:
            raise ConnectionResetError
        return reply.rstrip()

    async def bulk(self, command: str) -> str:
        size = int((await self.ask(command)).removeprefix("$"))
        async with asyncio.timeout(10):
            return (await self.reader.readexactly(size + 2)).decode().rstrip()


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def eventually(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not reached():
            await asyncio.sleep(0.005)


def value(server: ValkeyServer, key: str = "n") -> object:
    return server.execute("GET", key)


@pytest.fixture
def server(valkey_server: ValkeyServer) -> ValkeyServer:
    valkey_server.execute("FLUSHALL")
    return valkey_server


@pytest.fixture
async def proxy(server: ValkeyServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(("127.0.0.1", server.port)) as started:
        yield started


@pytest.fixture
def threaded(server: ValkeyServer) -> Iterator[ThreadedFaultProxy]:
    with ThreadedFaultProxy(("127.0.0.1", server.port)) as started:
        yield started


async def test_bytes_pass_both_ways_and_are_counted(proxy: FaultProxy) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("PING") == "+PONG"
        assert proxy.counters == Counters(accepted=1, open=1, to_server=6, to_client=7)
    await eventually(lambda: proxy.counters.open == 0)


async def test_a_large_value_passes_whole(proxy: FaultProxy, server: ValkeyServer) -> None:
    server.execute("SET", "big", "x" * 1_000_000)
    async with connected(proxy.port) as client:
        assert await client.bulk("GET big") == "x" * 1_000_000


async def test_the_end_of_a_connection_passes(proxy: FaultProxy) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("QUIT") == "+OK"
        assert await client.reader.read() == b""


async def test_a_delay_holds_for_each_direction(proxy: FaultProxy) -> None:
    proxy.delay(50, jitter_ms=10)
    async with connected(proxy.port) as client:
        started = time.monotonic()
        assert await client.ask("PING") == "+PONG"
        assert time.monotonic() - started >= 0.08  # twice 50 ms, less the jitter


async def test_a_delay_makes_bytes_late_and_not_the_line_slow(proxy: FaultProxy) -> None:
    proxy.set(to_server=Delay(200))
    async with connected(proxy.port) as client:
        started = time.monotonic()
        for _ in range(20):
            client.writer.write(b"PING\r\n")
            await asyncio.sleep(0.005)  # chunks of their own
        for _ in range(20):
            assert await client.reader.readline() == b"+PONG\r\n"
        assert 0.2 <= time.monotonic() - started < 2.0  # one after the other they would need 4 s


async def test_a_blackhole_hides_the_request_until_it_is_healed(proxy: FaultProxy, server: ValkeyServer) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("PING") == "+PONG"
        proxy.blackhole()
        asking = asyncio.create_task(client.ask("INCR n"))
        await eventually(lambda: proxy.counters.held == 1)
        assert not asking.done()
        assert value(server) is None
        proxy.heal()
        assert await asking == ":1"
        assert proxy.counters.held == 0


async def test_a_request_behind_a_blackhole_runs_late_although_its_client_has_gone(
    proxy: FaultProxy, server: ValkeyServer
) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("PING") == "+PONG"
        clients_before = str(server.execute("CLIENT", "LIST")).count("id=")
        proxy.blackhole()
        client.writer.write(b"INCR n\r\n")
        await eventually(lambda: proxy.counters.held == 1)
    assert str(server.execute("CLIENT", "LIST")).count("id=") == clients_before, "the server has not heard of its end"
    proxy.heal()
    await eventually(lambda: value(server) == "1")
    await eventually(lambda: proxy.counters.open == 0)


async def test_the_end_of_an_idle_connection_does_not_pass_a_blackhole(proxy: FaultProxy, server: ValkeyServer) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("CLIENT SETNAME idle") == "+OK"
        proxy.blackhole()
    await eventually(lambda: proxy.counters.held == 1)
    assert "name=idle" in str(server.execute("CLIENT", "LIST"))
    proxy.heal()
    await eventually(lambda: "name=idle" not in str(server.execute("CLIENT", "LIST")))


async def test_a_blackhole_that_is_reset_loses_the_request(proxy: FaultProxy, server: ValkeyServer) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("PING") == "+PONG"
        proxy.blackhole()
        asking = asyncio.create_task(client.ask("INCR n"))
        await eventually(lambda: proxy.counters.held == 1)
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            await asking
        proxy.heal()
    async with connected(proxy.port) as client:
        assert await client.ask("INCR n") == ":1"


async def test_a_blackhole_of_replies_lets_requests_through(proxy: FaultProxy, server: ValkeyServer) -> None:
    async with connected(proxy.port) as client:
        proxy.set(to_client=Blackhole())
        asking = asyncio.create_task(client.ask("INCR n"))
        await eventually(lambda: value(server) == "1")
        assert not asking.done()
        proxy.heal()
        assert await asking == ":1"


async def test_a_new_connection_behind_a_blackhole_reaches_the_server_late(
    proxy: FaultProxy, server: ValkeyServer
) -> None:
    before = str(server.execute("INFO", "stats")).split("total_connections_received:")[1].split()[0]
    proxy.blackhole()
    async with connected(proxy.port) as client:
        asking = asyncio.create_task(client.ask("PING"))
        await eventually(lambda: proxy.counters.held == 1)
        after = str(server.execute("INFO", "stats")).split("total_connections_received:")[1].split()[0]
        assert int(after) == int(before) + 1, "the one that asks for the figure, and no other"
        proxy.heal()
        assert await asking == "+PONG"


async def test_a_dropped_reply_has_had_its_effect(proxy: FaultProxy, server: ValkeyServer) -> None:
    proxy.drop_reply()
    for _ in range(2):
        async with connected(proxy.port) as client:
            with pytest.raises(ConnectionResetError):
                await client.ask("INCR n")
    assert value(server) == "2"
    assert proxy.counters.dropped_replies == 2
    assert proxy.counters.to_client == 0


async def test_a_reply_is_dropped_as_often_as_was_asked_for(proxy: FaultProxy) -> None:
    proxy.drop_reply(times=1)
    async with connected(proxy.port) as client:
        with pytest.raises(ConnectionResetError):
            await client.ask("INCR n")
    async with connected(proxy.port) as client:
        assert await client.ask("INCR n") == ":2"


async def test_a_reset_loses_the_request(proxy: FaultProxy, server: ValkeyServer) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("PING") == "+PONG"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await client.ask("INCR n")
    assert value(server) is None
    assert proxy.counters.lost == len("INCR n\r\n")


async def test_reset_all_resets_idle_connections_and_leaves_new_ones(proxy: FaultProxy) -> None:
    async with connected(proxy.port) as idle, connected(proxy.port) as other:
        for client in (idle, other):
            assert await client.ask("PING") == "+PONG"
        proxy.reset_all()
        for client in (idle, other):
            with pytest.raises(ConnectionResetError):
                await client.reader.read()
    async with connected(proxy.port) as client:
        assert await client.ask("PING") == "+PONG"


async def test_reset_all_reaches_connections_that_were_accepted_this_instant(proxy: FaultProxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.settimeout(5)
        while proxy.counters.accepted == 0:
            await asyncio.sleep(0)
        proxy.reset_all()
        await eventually(lambda: proxy.counters.open == 0)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


async def test_a_refused_connection_is_refused_and_an_open_one_stays(proxy: FaultProxy) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("PING") == "+PONG"
        port = proxy.port
        proxy.refuse()
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert await client.ask("PING") == "+PONG"
        proxy.accept()
        assert proxy.port == port
    async with connected(port) as client:
        assert await client.ask("PING") == "+PONG"


async def test_a_refusing_proxy_keeps_its_port_from_others(proxy: FaultProxy) -> None:
    proxy.refuse()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", proxy.port))


async def test_slices_arrive_whole_in_small_pieces(proxy: FaultProxy, server: ValkeyServer) -> None:
    server.execute("SET", "k", "0123456789")
    proxy.set(to_client=Slice(3, pause_ms=20))
    async with connected(proxy.port) as client:
        client.writer.write(b"GET k\r\n")
        pieces = []
        async with asyncio.timeout(10):
            while b"".join(pieces) != b"$10\r\n0123456789\r\n":
                pieces.append(await client.reader.read(100))
        assert len(pieces) > 2
        proxy.slice(1)
        assert await client.bulk("GET k") == "0123456789"


async def test_a_limit_tears_the_reply_of_each_connection(proxy: FaultProxy, server: ValkeyServer) -> None:
    server.execute("SET", "k", "0123456789")
    proxy.limit(8)
    for _ in range(2):
        async with connected(proxy.port) as client:
            client.writer.write(b"GET k\r\n")
            received = b""
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(10):
                    while piece := await client.reader.read(100):
                        received += piece
            assert received == b"$10\r\n012"


async def test_a_limit_counts_over_several_messages(proxy: FaultProxy) -> None:
    async with connected(proxy.port) as client:
        assert await client.ask("PING") == "+PONG"
        proxy.limit(14)  # counted from here: two more replies of seven bytes
        assert await client.ask("PING") == "+PONG"
        assert await client.ask("PING") == "+PONG"
        with pytest.raises(ConnectionResetError):
            await client.ask("PING")


async def test_a_server_that_is_down_resets_the_client(proxy: FaultProxy) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        proxy.upstream = ("127.0.0.1", closed.getsockname()[1])
        async with connected(proxy.port) as client:
            with pytest.raises(ConnectionResetError):
                await client.ask("PING")


async def test_a_change_of_upstream_holds_for_new_connections(proxy: FaultProxy, own_valkey: ValkeyServer) -> None:
    async with connected(proxy.port) as old:
        assert await old.ask("SET where first") == "+OK"
        proxy.upstream = ("127.0.0.1", own_valkey.port)
        async with connected(proxy.port) as new:
            assert await new.ask("EXISTS where") == ":0"
        assert await old.ask("EXISTS where") == ":1"


async def test_the_jitter_repeats_with_its_seed() -> None:
    def lateness(seed: int) -> list[float]:
        proxy = FaultProxy(("127.0.0.1", 1), seed=seed)
        proxy.delay(10, jitter_ms=10)
        return [proxy._to_server.lateness() for _ in range(20)]

    assert lateness(1) == lateness(1) != lateness(2)
    assert all(0 <= late <= 0.02 for late in lateness(1))


def test_a_proxy_in_a_thread_serves_synchronous_callers(threaded: ThreadedFaultProxy) -> None:
    with socket.create_connection(("127.0.0.1", threaded.port), timeout=5) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        assert threaded.counters.to_client == 7
        threaded.set(to_server=Reset())
        client.sendall(b"PING\r\n")
        with pytest.raises(ConnectionResetError):
            client.recv(100)
        port = threaded.port
        threaded.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        threaded.heal()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"


async def test_a_proxy_in_a_thread_goes_on_while_the_loop_is_blocked(
    threaded: ThreadedFaultProxy, server: ValkeyServer
) -> None:
    async with connected(threaded.port) as client:
        client.writer.write(b"INCR n\r\n")
        await asyncio.sleep(0)  # the write goes out; from here on the loop stands still
        deadline = time.monotonic() + 5
        while value(server) != "1":
            assert time.monotonic() < deadline
        assert await client.reader.readline() == b":1\r\n"


def test_a_closed_proxy_leaves_no_thread_and_says_that_it_does_not_run(threaded: ThreadedFaultProxy) -> None:
    with socket.create_connection(("127.0.0.1", threaded.port), timeout=5) as client:
        threaded.blackhole()
        client.sendall(b"PING\r\n")
        threaded.close()
        threaded.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert not [thread for thread in threading.enumerate() if thread.name == "fault proxy"]
    with pytest.raises(ServerError, match="does not run"):
        threaded.heal()
    with pytest.raises(ServerError, match="no port yet"):
        _ = threaded.port


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_no_descriptor_is_left_behind(server: ValkeyServer) -> None:
    before = descriptors()
    async with FaultProxy(("127.0.0.1", server.port)) as proxy:
        for _ in range(20):
            async with connected(proxy.port) as client:
                await client.ask("PING")
        proxy.drop_reply()
        for _ in range(20):
            async with connected(proxy.port) as client:
                with contextlib.suppress(ConnectionResetError):
                    await client.ask("PING")
        proxy.blackhole()
        async with connected(proxy.port) as client:
            client.writer.write(b"PING\r\n")
    assert descriptors() == before


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Delay(10, jitter_ms=20),
        lambda: Delay(-1),
        lambda: Slice(0),
        lambda: Limit(0),
        lambda: DropReply(0),
        lambda: FaultProxy(("127.0.0.1", 1)).set(to_server=DropReply()),
    ],
)
def test_a_mode_that_makes_no_sense_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        wrong()


def test_modes_are_values() -> None:
    assert Pass() == Pass()
    assert Delay(5) == Delay(5.0, 0)
