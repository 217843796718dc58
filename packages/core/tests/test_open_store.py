"""Stores found by their URL: the plugin that is missing is named, and the URL itself never is."""

import importlib.metadata
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from tenure import Acquired, ConfigurationError, InMemoryLockStore, open_idempotency_store, open_store
from tenure.idempotency import Idempotency, InMemoryIdempotencyStore

SECRET = "hunter2-canary"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting of whoever runs the tests is none of theirs."""
    monkeypatch.delenv("TENURE_ENVIRONMENT", raising=False)


class Plugin:
    """An installed entry point, as importlib.metadata would find it."""

    def __init__(self, name: str, factory: Callable[[str], object], group: str = "tenure.stores") -> None:
        self.name = name
        self.group = group
        self._factory = factory

    def load(self) -> Callable[[str], object]:
        return self._factory


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Have these plugins installed, and no other."""

    def only(*plugins: Plugin) -> None:
        def entry_points(*, group: str, name: str | None = None) -> list[Plugin]:
            assert group in ("tenure.stores", "tenure.idempotency_stores")
            return [plugin for plugin in plugins if name in (None, plugin.name) and plugin.group == group]

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    return only


def refusal(url: str, **options: Any) -> str:
    """Open *url*, which is refused; the traceback that a log would hold has no secret either."""
    with pytest.raises(ConfigurationError) as refused:
        open_store(url, **options)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    return str(refused.value)


async def test_a_store_in_memory_is_opened_by_its_url() -> None:
    async with open_store("memory://") as store:
        assert isinstance(store, InMemoryLockStore)
        assert isinstance(await store.acquire("invoices", "a:1", 1000), Acquired)


def test_a_plugin_is_found_by_its_scheme_and_given_the_whole_url(install: Install) -> None:
    opened = InMemoryLockStore()
    urls: list[str] = []

    def factory(url: str) -> InMemoryLockStore:
        urls.append(url)
        return opened

    install(Plugin("other", lambda _: None), Plugin("acme+tls", factory))
    url = f"acme+tls://app:{SECRET}@db/shop?ssl=true#fragment"
    assert open_store(url) is opened
    assert urls == [url]


@pytest.mark.parametrize(
    ("scheme", "plugin"),
    [
        ("postgresql", "tenure-postgres"),
        ("postgresql+asyncpg", "tenure-postgres"),
        ("postgres", "tenure-postgres"),
        ("valkey", "tenure-valkey"),
        ("valkeys", "tenure-valkey"),
        ("valkey+cluster", "tenure-valkey"),
        ("redis", "tenure-valkey"),
        ("rediss", "tenure-valkey"),
        ("redis+sentinel", "tenure-valkey"),
    ],
)
def test_a_missing_plugin_is_named_with_the_command_that_installs_it(
    install: Install, scheme: str, plugin: str
) -> None:
    install()
    assert refusal(f"{scheme}://app:{SECRET}@db/shop") == (
        f'No store is installed for "{scheme}://": pip install {plugin}'
    )


def test_an_unknown_scheme_is_answered_with_the_known_ones_and_a_way_to_add_one(install: Install) -> None:
    install(Plugin("memory", lambda _: None), Plugin("acme", lambda _: None))
    assert refusal(f"mysql://app:{SECRET}@db/shop") == (
        'No store is known for "mysql://": the schemes are acme, memory, postgresql+asyncpg, valkey. A store of your '
        'own registers an entry point in the group "tenure.stores".'
    )


@pytest.mark.parametrize("url", ["", "memory", f"app:{SECRET}@db/shop", "://db/shop", f"postgresql:/app:{SECRET}@db"])
def test_a_url_without_a_scheme_is_answered_with_how_one_looks(url: str) -> None:
    assert refusal(url) == (
        'A store URL begins with a scheme, such as "postgresql+asyncpg://", "valkey://" or "memory://"; this one has '
        "none."
    )


@pytest.mark.parametrize(
    "url", [f"app:{SECRET}@db/shop?next=http://shop", f"postgresql:app:{SECRET}@db?proxy=socks://p", f" {SECRET}://db"]
)
def test_what_stands_before_the_slashes_is_no_scheme_because_of_them(url: str) -> None:
    assert "begins with a scheme" in refusal(url)


@pytest.mark.parametrize("url", [None, 7, b"memory://", object()])
def test_what_is_no_text_is_refused_as_such(url: Any) -> None:
    assert "begins with a scheme" in refusal(url)


def test_what_a_plugin_raises_is_its_own(install: Install) -> None:
    def factory(url: str) -> object:
        raise ImportError("No module named 'acme'", name="acme")

    install(Plugin("acme", factory))
    with pytest.raises(ImportError, match="acme"):
        open_store("acme://db")


# ------------------------------------------------------------------------------ memory in production


@pytest.mark.parametrize("environment", ["production", "Production", "PRODUCTION"])
def test_a_store_in_memory_is_refused_in_production(environment: str) -> None:
    message = refusal("memory://", environment=environment)
    assert "every instance would take the same lock" in message
    assert 'such as "postgresql+asyncpg://…"' in message
    assert "allow_in_memory=True where there is one instance" in message


def test_a_store_in_memory_is_refused_where_the_variable_says_production(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_ENVIRONMENT", "production")
    assert "the environment is production" in refusal("memory://")


def test_the_argument_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_ENVIRONMENT", "production")
    assert isinstance(open_store("memory://", environment="staging"), InMemoryLockStore)
    monkeypatch.setenv("TENURE_ENVIRONMENT", "staging")
    assert refusal("memory://", environment="production")


def test_a_store_in_memory_is_accepted_where_one_instance_says_so() -> None:
    assert isinstance(open_store("memory://", environment="production", allow_in_memory=True), InMemoryLockStore)


@pytest.mark.parametrize("environment", [None, "", "development", "test", "preproduction"])
def test_a_store_in_memory_is_accepted_elsewhere(environment: str | None) -> None:
    assert isinstance(open_store("memory://", environment=environment), InMemoryLockStore)


@pytest.mark.parametrize("url", ["Memory://", "MEMORY://x"])
def test_no_spelling_of_memory_gets_past_the_refusal(url: str) -> None:
    assert refusal(url, environment="production")


def test_a_store_that_the_instances_share_is_opened_in_production(install: Install) -> None:
    shared = InMemoryLockStore()
    install(Plugin("acme", lambda _: shared))
    assert open_store("acme://db", environment="production") is shared


def test_what_is_opened_can_be_closed() -> None:
    assert hasattr(open_store("memory://"), "aclose")


# ----------------------------------------------------------------------------- idempotency stores


async def test_an_idempotency_store_in_memory_is_opened_by_its_url_and_used() -> None:
    async with open_idempotency_store("memory://") as store, Idempotency(store, hooks=[]) as idempotency:
        assert isinstance(store, InMemoryIdempotencyStore)

        async def fn() -> int:
            return 7

        assert await idempotency.run("k", "f", fn) == 7


def test_an_idempotency_store_is_found_in_its_own_group(install: Install) -> None:
    locks, records = object(), object()
    install(
        Plugin("valkey", lambda _: locks),
        Plugin("valkey", lambda _: records, "tenure.idempotency_stores"),
    )
    assert open_idempotency_store("valkey://cache") is records  # type: ignore[comparison-overlap]
    assert open_store("valkey://cache") is locks  # type: ignore[comparison-overlap]


def test_an_idempotency_store_that_is_missing_is_answered_with_its_plugin_and_its_group(install: Install) -> None:
    install(Plugin("valkey", object))
    with pytest.raises(ConfigurationError, match="pip install tenure-valkey"):
        open_idempotency_store(f"valkey://app:{SECRET}@cache")
    with pytest.raises(ConfigurationError, match=r"tenure\.idempotency_stores"):
        open_idempotency_store("etcd://cache")


def test_an_idempotency_store_in_memory_is_refused_in_production() -> None:
    with pytest.raises(ConfigurationError, match="in memory"):
        open_idempotency_store("memory://", environment="production")
    assert open_idempotency_store("memory://", environment="production", allow_in_memory=True)
