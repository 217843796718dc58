"""TLS, by way of a proxy that ends it: the server of the test bed speaks plain text."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure_testbed import ServerUnavailableError, ValkeyServer
from tenure_testbed.pytest_plugin import or_skip


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca.pem) and what it made for 127.0.0.1 (cert.pem, key.pem)."""
    folder = tmp_path_factory.mktemp("tls")
    with or_skip():
        if shutil.which("openssl") is None:
            raise ServerUnavailableError("openssl is not installed, which makes the certificates.")
    name = "subjectAltName=IP:127.0.0.1"
    (folder / "name").write_text(f"{name}\nbasicConstraints=CA:FALSE\n", encoding="utf-8")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca-key.pem -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile name -out cert.pem",
    ):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=folder)
    return folder


@pytest.fixture
def tls_port(certificates: Path, valkey_server: ValkeyServer, valkey_url: str) -> Iterator[int]:
    """A port that speaks TLS to the shared server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    loop = asyncio.new_event_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", valkey_server.port)
        tasks.add(asyncio.create_task(copy(reader, server_writer)))
        tasks.add(asyncio.create_task(copy(server_reader, writer)))

    async def stop() -> None:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    asyncio.run_coroutine_threadsafe(stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_a_store_over_tls(tls_port: int, certificates: Path, open_store: Any, client: str) -> None:
    store = open_store(f"valkeys://127.0.0.1:{tls_port}", client=client, tls_ca=certificates / "ca.pem")
    assert (await store.acquire("job", "owner", 1000)).token > 0
    assert await store.release("job", "owner")
    await store.aclose()


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    tls_port: int, valkey_server: ValkeyServer, open_store: Any, client: str
) -> None:
    store = open_store(f"rediss://127.0.0.1:{tls_port}", client=client)
    with pytest.raises(Exception):  # noqa: B017 -- redis-py names the certificate; glide tries until it times out
        await store.acquire("job", "owner", 1000)
    assert valkey_server.execute("DBSIZE") == 0
