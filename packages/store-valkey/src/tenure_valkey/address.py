"""URLs of servers: one, a cluster, or a primary behind Sentinel. No error holds the URL, which may hold a password."""

import re
from dataclasses import dataclass, field
from typing import Final, Literal, final
from urllib.parse import parse_qsl, unquote

from tenure.errors import ConfigurationError

__all__ = ["Address", "parse_address", "split_options"]

Mode = Literal["standalone", "cluster", "sentinel"]

_SCHEME: Final = re.compile(r"(?P<product>valkey|redis|valkeys|rediss)(?:\+(?P<mode>cluster|sentinel))?")
_SERVER_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379

_FORM: Final = (
    "valkey://user:password@host:6379/0, valkey+cluster://one,two:6380, or redis+sentinel://one,two:26380/service"
)


@final
@dataclass(frozen=True, slots=True)
class Address:
    """
    Where the servers are, and who asks.

    Attributes:
        product: "valkey" or "redis", as the scheme says; it decides which client is tried first.
        mode: What stands behind the hosts.
        hosts: Hosts and ports: the server, some nodes of the cluster, or the Sentinels.
        tls: Whether connections are encrypted (`valkeys`, `rediss`).
        database: The number of the logical database.
        service: The name by which Sentinel knows the primary.
    """

    product: str
    mode: Mode
    hosts: tuple[tuple[str, int], ...]
    tls: bool
    username: str | None
    password: str | None = field(repr=False)
    database: int
    service: str | None
    tls_ca: str | None = None


def split_options(url: str) -> tuple[str, dict[str, str]]:
    """
    Part a URL from the options after its `?`.

    Raises:
        ConfigurationError: An option stands there twice, or the URL is no text.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"The URL is a {type(url).__name__}: give a str.")
    base, _, query = url.partition("?")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in options:
            raise ConfigurationError(f"The URL has {name} more than once: give it once.")
        options[name] = value
    return base, options


def parse_address(url: str, *, tls_ca: str | None = None) -> Address:
    """
    Read a URL without options.

    Raises:
        ConfigurationError: It is none of the forms; the message does not hold it.
    """
    scheme, _, rest = url.partition("://")
    found = _SCHEME.fullmatch(scheme)
    if found is None or "?" in rest or "#" in rest:
        raise ConfigurationError(f"The URL is none of a Valkey or Redis server: give one such as {_FORM}.")
    mode: Mode = {None: "standalone", "cluster": "cluster", "sentinel": "sentinel"}[found["mode"]]  # type: ignore[assignment]
    authority, _, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    username, password = _credentials(credentials) if at else (None, None)
    service, database = _path(path, mode)
    port = _SENTINEL_PORT if mode == "sentinel" else _SERVER_PORT
    addresses = tuple(_host(host, port) for host in hosts.split(","))
    if mode == "standalone" and len(addresses) > 1:
        raise ConfigurationError(
            "The URL names several hosts: add +cluster or +sentinel to its scheme, or name the one server."
        )
    product = found["product"]
    tls = product.endswith("s") and product != "redis"
    return Address(
        product=product.removesuffix("s") if tls else product,
        mode=mode,
        hosts=addresses,
        tls=tls,
        username=username,
        password=password,
        database=database,
        service=service,
        tls_ca=tls_ca,
    )


def _credentials(text: str) -> tuple[str | None, str | None]:
    username, colon, password = text.partition(":")
    return unquote(username) or None, unquote(password) if colon else None


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5}))?", text, re.ASCII)
    if found is None or not 0 < int(found["port"] or default_port) < 2**16:
        raise ConfigurationError(f"The URL has a host that is none: give one such as {_FORM}.")
    return found["six"] or unquote(found["name"]), int(found["port"] or default_port)


def _path(path: str, mode: Mode) -> tuple[str | None, int]:
    """Read the path: the service of Sentinel, and the number of the database."""
    parts = [unquote(part) for part in path.split("/") if part]
    service = None
    if mode == "sentinel":
        if not parts:
            raise ConfigurationError(
                "The URL names no service: after the Sentinels stands the name by which they know the primary, such as "
                "redis+sentinel://one,two:26380/service."
            )
        service = parts.pop(0)
    if not parts:
        return service, 0
    if len(parts) > 1 or not re.fullmatch(r"\d{1,5}", parts[0], re.ASCII):
        raise ConfigurationError("The URL's path is no number of a database: give /0, or leave it out.")
    if mode == "cluster" and int(parts[0]) != 0:
        raise ConfigurationError("The URL names a database, and a cluster has but the first one: leave it out.")
    return service, int(parts[0])
