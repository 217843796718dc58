"""
What a URL says of encryption is honoured or refused, and never dropped.

Shown by an impostor: a server with a certificate that is not the one which was asked for. It keeps what it is told, and
a client that looks at the certificate tells it nothing.
"""

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import ConfigurationError, open_store
from tenure.config import open_idempotency_store
from tenure_testbed import ServerUnavailableError
from tenure_testbed.pytest_plugin import or_skip

PASSWORD = "canary-password-5150"
PATIENCE_S = 10.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca.pem), and what it vouches for: this machine (right), and another name (wrong)."""
    folder = tmp_path_factory.mktemp("certificates")
    with or_skip():
        if shutil.which("openssl") is None:
            raise ServerUnavailableError("openssl is not installed, which makes the certificates.")

    def openssl(command: str) -> None:
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=folder)

    elliptic = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    openssl(f"req -x509 {elliptic} -days 2 -subj /CN=authority -keyout ca-key.pem -out ca.pem")
    for name, said in (("right", "IP:127.0.0.1"), ("wrong", "DNS:elsewhere.example,IP:192.0.2.1")):
        (folder / "names").write_text(f"subjectAltName={said}\nbasicConstraints=CA:FALSE\n", encoding="utf-8")
        openssl(f"req {elliptic} -subj /CN={name} -keyout {name}-key.pem -out {name}-request.pem")
        openssl(
            f"x509 -req -in {name}-request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile names "
            f"-out {name}.pem"
        )
    return folder


class Impostor:
    """
    A server that ends TLS, keeps what it is told, and answers nothing.

    Args:
        certificates: The folder.
        name: Which certificate it shows.
        asked_first: How many bytes a client sends in clear to ask for TLS, as to PostgreSQL.
    """

    def __init__(self, certificates: Path, name: str, *, asked_first: int = 0) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}-key.pem")
        self._asked_first = asked_first
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard = b""
        self.met = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.met.set()
            with contextlib.suppress(OSError), connection:
                connection.settimeout(1)
                if self._asked_first:
                    connection.recv(self._asked_first)
                    connection.sendall(b"S")
                with self._context.wrap_socket(connection, server_side=True) as private:
                    self.heard += private.recv(4096)

    def close(self) -> None:
        # A listener that is closed under an accept does not wake it; one that is shut down does.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def impostor(certificates: Path) -> Iterator[Callable[..., Impostor]]:
    made: list[Impostor] = []

    def make(name: str, **options: Any) -> Impostor:
        made.append(Impostor(certificates, name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def meet(opener: Any, url: str, server: Impostor) -> BaseException:
    """Let a store speak to the impostor until it gives up."""
    async with asyncio.timeout(PATIENCE_S), opener(url) as store:
        with pytest.raises(Exception) as caught:
            if opener is open_store:
                await store.acquire("key", "owner", 1000)
            else:
                await store.acquire("key", "owner", "fingerprint", 1000, 1000)
    assert server.met.is_set(), "it was never asked"
    assert PASSWORD not in f"{caught.value}{caught.value!r}"
    return caught.value


VALKEY_URLS = ["rediss://{}", "valkeys://{}?client=glide", "rediss+cluster://{}", "rediss+sentinel://{}/service"]


def valkey_url(form: str, port: int, **options: object) -> str:
    base, _, query = form.format(f"user:{PASSWORD}@127.0.0.1:{port}").partition("?")
    rest = "&".join([*([query] if query else []), *(f"{name}={value}" for name, value in options.items())])
    return f"{base}?{rest}"


@pytest.mark.parametrize("form", VALKEY_URLS)
async def test_a_valkey_with_the_certificate_of_another_name_is_told_nothing(
    form: str, impostor: Any, certificates: Path
) -> None:
    server = impostor("wrong")
    await meet(open_store, valkey_url(form, server.port, tls_ca=certificates / "ca.pem", timeout="400ms"), server)
    assert server.heard == b""


@pytest.mark.parametrize("form", VALKEY_URLS)
async def test_a_valkey_with_a_certificate_that_nobody_vouches_for_is_told_nothing(form: str, impostor: Any) -> None:
    server = impostor("right")
    await meet(open_idempotency_store, valkey_url(form, server.port, timeout="400ms"), server)
    assert server.heard == b""


@pytest.mark.parametrize("form", VALKEY_URLS)
async def test_a_valkey_with_the_right_certificate_is_spoken_to(form: str, impostor: Any, certificates: Path) -> None:
    """The control: without it, a client that speaks to nobody would pass."""
    server = impostor("right")
    await meet(open_store, valkey_url(form, server.port, tls_ca=certificates / "ca.pem", timeout="400ms"), server)
    assert server.heard


@pytest.mark.parametrize(
    "option", ["ssl=true", "ssl_cert_reqs=none", "tls=off", "ssl_check_hostname=false", "sslmode=x"]
)
@pytest.mark.parametrize("opener", [open_store, open_idempotency_store])
def test_an_option_that_the_valkey_stores_do_not_know_is_refused(option: str, opener: Any) -> None:
    with pytest.raises(ConfigurationError, match=option.partition("=")[0]) as caught:
        opener(f"rediss://user:{PASSWORD}@127.0.0.1?{option}")
    assert PASSWORD not in f"{caught.value}{caught.value!r}"


def test_an_authority_for_a_url_without_tls_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no TLS"):
        open_store("redis://127.0.0.1?tls_ca=ca.pem")


SSL_REQUEST_BYTES = 8


@pytest.mark.parametrize(
    ("shown", "mode", "authority"),
    # Of another name; and vouched for by nobody whom the client was told of.
    [("wrong", "verify-full", "ca"), ("right", "verify-full", "wrong"), ("right", "verify-ca", "wrong")],
)
async def test_a_postgres_whose_certificate_is_not_the_one_asked_for_is_told_nothing(
    shown: str, mode: str, authority: str, impostor: Any, certificates: Path
) -> None:
    root = certificates / f"{authority}.pem"
    for opener in (open_store, open_idempotency_store):
        server = impostor(shown, asked_first=SSL_REQUEST_BYTES)
        url = f"postgresql://user:{PASSWORD}@127.0.0.1:{server.port}/db?sslmode={mode}&sslrootcert={root}"
        await meet(opener, f"{url}&connect_timeout=2", server)
        assert server.heard == b""


@pytest.mark.parametrize(
    ("mode", "name"), [("verify-full", "right"), ("verify-ca", "wrong"), ("require", "wrong")], ids=lambda value: value
)
async def test_a_postgres_that_is_what_was_asked_for_is_spoken_to(
    mode: str, name: str, impostor: Any, certificates: Path
) -> None:
    """The control. `require` encrypts and does not look: whoever wants it looked at says so, as in libpq."""
    server = impostor(name, asked_first=SSL_REQUEST_BYTES)
    root = f"&sslrootcert={certificates / 'ca.pem'}" if mode != "require" else ""
    url = f"postgresql://user:{PASSWORD}@127.0.0.1:{server.port}/db?sslmode={mode}{root}&connect_timeout=2"
    await meet(open_store, url, server)
    assert b"user" in server.heard


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_postgres_without_tls_is_not_spoken_to_in_clear_where_tls_is_asked_for(
    mode: str, postgres_url: str, certificates: Path
) -> None:
    url = f"{postgres_url}?sslmode={mode}&sslrootcert={certificates / 'ca.pem'}"
    async with open_store(url) as store:
        with pytest.raises(Exception, match=r"(?i)ssl") as caught:
            await store.acquire("key", "owner", 1000)
    assert "tenure_locks" not in str(caught.value), "it got as far as a statement"


@pytest.mark.parametrize(
    "option",
    [
        "sslmode=verify_full",
        "sslmod=require",
        "tls=true",
        "sslmode=require&sslmode=disable",
        "sslmode=require&application_name=shop&sslmode=require",
        "sslmode=require&ssl=disable",
    ],
)
async def test_an_option_of_encryption_that_is_none_is_an_error_and_not_a_connection(
    option: str, postgres_url: str
) -> None:
    with pytest.raises(Exception) as caught:
        async with open_store(f"{postgres_url}?{option}") as store:
            await store.acquire("key", "owner", 1000)
    assert "tenure_locks" not in str(caught.value), "it got as far as a statement"
