"""The compose file, brought up under a project name and on ports of the test's own, and taken down by that name."""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx
import pytest

from cat_store.inventory.catalogue import SALMON_KIBBLE
from tenure_testbed.ports import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
_REPLICAS: Final = ("cat-store-1", "cat-store-2", "cat-store-3")
_OURS: Final = ("CAT_STORE_", "COMPOSE_", "PARTNERS_", "POSTGRES_")
_IMAGE: Final = "cat-store:test"
_LOOK_EVERY_S: Final = 0.1
_CALL_S: Final = 60.0
_BUILD_S: Final = 240.0
# Images from the network; what is measured is measured later.
_UP_S: Final = 150.0
_HTTP_S: Final = 5.0
# What a busy machine may add to anything that is waited for; nothing that is measured depends on it.
_PATIENCE_S: Final = 30.0

Found = TypeVar("Found")


def run(*command: str, environment: Mapping[str, str] | None = None, within_s: float = _CALL_S) -> str:
    """Run a command; returns what it wrote, and fails with it where the command failed."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=within_s, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _until(look: Callable[[], Found | None], what: str, *, within_s: float) -> Found:
    """Look until there is something to be seen; a server that does not answer yet is nothing."""
    end = time.monotonic() + within_s
    while True:
        try:
            found = look()
        except httpx.TransportError:
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"Waited {within_s:g} s in vain for: {what}"
        time.sleep(_LOOK_EVERY_S)


class Containers:
    """
    The containers of one project, as somebody with `docker` and a browser has them.

    Args:
        env_file: The file of a profile; None for the shop on PostgreSQL alone.
    """

    replicas: Final = _REPLICAS
    # A command of the engine's takes about a second on a busy machine: ttl and tick are well above that.
    ttl_s: Final = 6
    tick_s: Final = 4

    def __init__(self, env_file: str | None = None) -> None:
        self.project: Final = f"cat-store-test-{secrets.token_hex(4)}"
        self.files = ["-f", str(ROOT / "docker/compose.yml")]
        if env_file is not None:
            self.files += ["--env-file", str(ROOT / "docker" / env_file)]
        ports = {name: free_port() for name in (*_REPLICAS, "partners")}
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(_OURS)},
            **{f"CAT_STORE_PORT_{name[-1]}": str(ports[name]) for name in _REPLICAS},
            "PARTNERS_PORT": str(ports["partners"]),
            "CAT_STORE_IMAGE": _IMAGE,
            "CAT_STORE_LOCK_TTL": str(self.ttl_s),
            "CAT_STORE_INVOICE_EXPORT_CRON": f"* * * * * */{self.tick_s}",
            "CAT_STORE_STOCK_RECONCILIATION_CRON": f"* * * * * */{self.tick_s}",
            "CAT_STORE_LOG_LEVEL": "debug",
            "CAT_STORE_LOG_FORMAT": "json",
            "CAT_STORE_REHEARSAL": "on",
        }
        self.web: Final = {name: self._client(port) for name, port in ports.items()}
        self.placed: list[str] = []
        self._containers: dict[str, str] = {}

    @classmethod
    def read(cls) -> dict[str, Any]:
        """The file as compose reads it, with every profile, and nothing set in the environment."""
        shop = cls()
        bare = {name: value for name, value in shop.environment.items() if not name.startswith(_OURS)}
        command = ["docker", "compose", *shop.files, "--profile", "*", "config", "--format", "json"]
        found: dict[str, Any] = json.loads(run(*command, environment=bare))
        return found

    @staticmethod
    def _client(port: int) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_HTTP_S, trust_env=False)

    def compose(self, *arguments: str, within_s: float = _CALL_S) -> str:
        """Run a command of compose on this project."""
        command = ["docker", "compose", *self.files, "-p", self.project, *arguments]
        return run(*command, environment=self.environment, within_s=within_s)

    def __enter__(self) -> Self:
        try:
            self.compose("up", "--detach", within_s=_UP_S)
            self.heal()
        except BaseException as error:
            error.add_note(self._last_lines())
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.web.values():
            client.close()
        # The profiles' own services are taken down only where their profile is named, so all are.
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "3")

    def _last_lines(self) -> str:
        try:
            return self.compose("ps", "--all") + self.compose("logs", "--no-color", "--tail", "20")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return str(error)

    def until(self, look: Callable[[], Found | None], what: str, *, within_s: float | None = None) -> Found:
        """Look until there is something to be seen: by default, for as long as a takeover may take, and a while."""
        return _until(look, what, within_s=within_s or self.ttl_s + 2 * self.tick_s + _PATIENCE_S)

    def heal(self) -> None:
        """Start whichever replica is not there, and wait until all of them take work."""
        run("docker", "start", *(self.container(name) for name in _REPLICAS))
        for name in _REPLICAS:
            self.until(lambda name=name: self.ready(name), f"{name} to be ready", within_s=60)  # type: ignore[misc]

    def ready(self, name: str) -> bool:
        """Whether a replica takes work."""
        return self.web[name].get("/health/ready").status_code == httpx.codes.OK

    def container(self, name: str) -> str:
        """The id of a service's container, which it keeps until it is taken down."""
        if name not in self._containers:
            self._containers[name] = self.compose("ps", "--all", "--quiet", name).strip()
        return self._containers[name]

    def state(self, name: str) -> dict[str, Any]:
        """What the engine says of a service's container."""
        found: dict[str, Any] = json.loads(run("docker", "inspect", self.container(name)))[0]
        return found

    def do(self, command: str, name: str, *options: str) -> None:
        """`docker kill`, `stop`, `pause` or `unpause` a replica."""
        run("docker", command, *options, self.container(name))

    def events(self, name: str, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Every line of a replica that tells of *event*, with these fields; lines that are no JSON tell nothing."""
        lines = run("docker", "logs", self.container(name)).splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in told if line.get("event") == event and fields.items() <= line.items()]

    def order(self, through: str, count: int = 1) -> list[str]:
        """Place orders through a replica; returns their ids."""
        order = {"customer": "alice", "lines": [{"product_id": SALMON_KIBBLE, "quantity": 1}]}
        placed = [self.web[through].post("/orders", json=order).raise_for_status().json()["id"] for _ in range(count)]
        self.placed += placed
        return placed

    def stock(self, through: str, product_id: str) -> int:
        """How many bags the shop believes to have."""
        products = self.web[through].get("/products").raise_for_status().json()
        return next(int(each["in_stock"]) for each in products if each["id"] == product_id)

    def partner(self, name: str) -> dict[str, Any]:
        """The statement of "accounting" or "warehouse"."""
        found: dict[str, Any] = self.web["partners"].get(f"/{name}/statement").raise_for_status().json()
        return found

    def switch(self, name: str, **switches: Any) -> None:
        """Set every switch of a partner; one that is left out is off."""
        self.web["partners"].put(f"/{name}/switches", json=switches).raise_for_status()

    def batches_with(self, orders: list[str]) -> list[dict[str, Any]]:
        """The batches in accounting's books that have one of these orders, or more."""
        return [each for each in self.partner("accounting")["batches"] if set(each["order_ids"]) & set(orders)]

    def see_every_order_booked_once(self) -> None:
        """Wait until every order is in the books; fails where one is in them twice."""
        placed = sorted(self.placed)

        def booked() -> list[str]:
            return sorted(each for batch in self.partner("accounting")["batches"] for each in batch["order_ids"])

        self.until(lambda: set(booked()) >= set(placed), "every order in the books")
        assert booked() == placed


@pytest.fixture(scope="session")
def engine() -> None:
    """Skip where no container engine answers, or where it has no compose."""
    for command in (("docker", "info"), ("docker", "compose", "version")):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_CALL_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"`{' '.join(command)}` did not run: {error}")
        if done.returncode:
            pytest.skip(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")


@pytest.fixture(scope="session")
def image(engine: None, containers: type[Containers]) -> Iterator[str]:
    """Build the image; it goes when the tests do, and its layers stay in the builder's cache."""
    containers().compose("build", "--quiet", within_s=_BUILD_S)
    yield _IMAGE
    subprocess.run(["docker", "image", "rm", _IMAGE], capture_output=True, timeout=_CALL_S, check=False)


@pytest.fixture(scope="module")
def shop(image: str) -> Iterator[Containers]:
    """The shop on PostgreSQL."""
    with Containers() as opened:
        yield opened


@pytest.fixture(scope="session")
def containers(engine: None) -> type[Containers]:
    """What brings the compose file up: `with containers("valkey.env") as shop`."""
    return Containers


@pytest.fixture(scope="session")
def built(image: str) -> dict[str, Any]:
    """What the engine says of the image."""
    found: dict[str, Any] = json.loads(run("docker", "image", "inspect", image))[0]
    return found


_PACKAGES: Final = """
import json
from importlib.metadata import distributions
print(json.dumps({each.metadata["Name"]: each.read_text("direct_url.json") for each in distributions()}))
"""


@pytest.fixture(scope="session")
def packages(image: str) -> dict[str, str | None]:
    """The packages that the image's environment has, and where each came from if not from an index."""
    inside = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python", image, "-c", _PACKAGES]
    found: dict[str, str | None] = json.loads(run(*inside))
    return found
