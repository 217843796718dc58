"""Settings: checked against each other when they are made, read from the environment, and opened as one."""

import importlib.metadata
import logging
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self

import pytest

from tenure import Acquired, ConfigurationError, Held, InMemoryLockStore, LeaseStateError
from tenure.config import TenureConfig
from tenure.events import Event
from tenure.store import Finding

SECRET = "hunter2-canary"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of whoever runs the tests are none of theirs."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


VARIABLES = [
    "TENURE_STORE",
    "TENURE_TTL",
    "TENURE_INSTANCE",
    "TENURE_STORE_TIMEOUT",
    "TENURE_DRAIN",
    "TENURE_STARTUP_CHECK",
    "TENURE_ENVIRONMENT",
    "TENURE_ALLOW_IN_MEMORY",
]


# ----------------------------------------------------------------------------------------- settings


def config(**settings: Any) -> TenureConfig:
    return TenureConfig(**{"store": f"acme://app:{SECRET}@db/shop", **settings})


def test_settings_have_the_defaults_of_locks() -> None:
    settings = TenureConfig(store="memory://")
    assert (settings.ttl, settings.store_timeout, settings.drain, settings.startup_check) == (30, None, 10, "warn")
    assert (settings.instance, settings.environment, settings.allow_in_memory) == (None, None, False)


@pytest.mark.parametrize(
    "settings",
    [
        {"ttl": "30s", "store_timeout": "30s"},
        {"ttl": timedelta(minutes=1), "store_timeout": 5},
        {"drain": 0},
        {"drain": float("inf")},
        {"startup_check": "strict"},
        {"startup_check": False},
        {"instance": "shop-1"},
    ],
)
def test_settings_that_fit_together_are_accepted(settings: dict[str, Any]) -> None:
    made = config(**settings)
    assert {name: getattr(made, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ttl": 0}, "ttl is 0: it must be at least 1 ms"),
        ({"ttl": "soon"}, "ttl is 'soon': it is no duration"),
        ({"ttl": float("inf")}, "ttl is inf: it must be finite"),
        ({"store_timeout": 0}, "store_timeout is 0: it must be at least 1 ms"),
        ({"ttl": 30, "store_timeout": 30.001}, "Give a store_timeout of at most the ttl"),
        ({"ttl": "5s", "store_timeout": "10s"}, "Give a store_timeout of at most the ttl"),
        ({"drain": -1}, "drain is -1: it must be at least 0 ms"),
        ({"instance": ""}, "The instance is empty"),
        ({"instance": "x" * 101}, "The instance has 101 characters: it may have 100"),
        ({"startup_check": "loud"}, 'startup_check is \'loud\': it is "warn", "strict" or False.'),
        ({"startup_check": True}, "startup_check is True"),
        ({"startup_check": None}, "startup_check is None"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_when_it_is_made(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        config(**settings)
    assert said in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        config().ttl = 5  # type: ignore[misc]


def test_settings_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        TenureConfig("memory://")  # type: ignore[call-arg]


def test_the_repr_of_settings_leaves_the_url_out() -> None:
    shown = repr(config(instance="shop-1"))
    assert SECRET not in shown
    assert "acme" not in shown
    assert "instance='shop-1'" in shown


# -------------------------------------------------------------------------------------- environment


def test_every_setting_is_read_from_its_variable() -> None:
    environ = {
        "TENURE_STORE": "memory://",
        "TENURE_TTL": "45",
        "TENURE_INSTANCE": "shop-1",
        "TENURE_STORE_TIMEOUT": "2.5s",
        "TENURE_DRAIN": "1m",
        "TENURE_STARTUP_CHECK": "strict",
        "TENURE_ENVIRONMENT": "production",
        "TENURE_ALLOW_IN_MEMORY": "true",
        "TENURE_SOMETHING_ELSE": "is nobody's",
    }
    assert [*environ][:-1] == VARIABLES
    assert TenureConfig.from_env(environ) == TenureConfig(
        store="memory://",
        ttl=45.0,
        instance="shop-1",
        store_timeout="2.5s",
        drain="1m",
        startup_check="strict",
        environment="production",
        allow_in_memory=True,
    )


def test_what_is_not_set_or_is_empty_has_its_default() -> None:
    environ = dict.fromkeys(VARIABLES, "") | {"TENURE_STORE": "memory://"}
    assert TenureConfig.from_env(environ) == TenureConfig(store="memory://")


def test_the_process_environment_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_STORE", "memory://")
    monkeypatch.setenv("TENURE_TTL", "5m")
    assert TenureConfig.from_env() == TenureConfig(store="memory://", ttl="5m")
    with pytest.raises(ConfigurationError, match=r"^TENURE_STORE is not set: give it the store's URL\.$"):
        TenureConfig.from_env({})


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("0.25", 0.25), ("1e1", 10.0), (" 30 ", 30.0)])
def test_a_duration_in_a_variable_may_be_a_number_of_seconds(text: str, seconds: float) -> None:
    assert TenureConfig.from_env({"TENURE_STORE": "memory://", "TENURE_TTL": text}).ttl == seconds


@pytest.mark.parametrize(
    ("text", "meant"),
    [("true", True), ("TRUE", True), ("on", True), ("1", True), ("false", False), ("Off", False), ("0", False)],
)
def test_a_switch_in_a_variable_is_on_or_off(text: str, meant: bool) -> None:
    environ = {"TENURE_STORE": "memory://", "TENURE_ALLOW_IN_MEMORY": text}
    assert TenureConfig.from_env(environ).allow_in_memory is meant


@pytest.mark.parametrize(
    ("text", "meant"), [("warn", "warn"), ("strict", "strict"), ("false", False), ("OFF", False), ("0", False)]
)
def test_the_start_up_check_is_turned_off_by_its_variable(text: str, meant: object) -> None:
    environ = {"TENURE_STORE": "memory://", "TENURE_STARTUP_CHECK": text}
    assert TenureConfig.from_env(environ).startup_check == meant


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("TENURE_TTL", "soon", "is 'soon': it is no duration"),
        ("TENURE_TTL", "0", "it must be at least 1 ms"),
        ("TENURE_TTL", "nan", "it must be finite"),
        ("TENURE_STORE_TIMEOUT", "-1", "it must be at least 1 ms"),
        ("TENURE_STORE_TIMEOUT", "31", "at most the ttl"),
        ("TENURE_DRAIN", "-1s", "it is no duration"),
        ("TENURE_INSTANCE", "x" * 101, "has 101 characters"),
        ("TENURE_STARTUP_CHECK", "true", '"warn", "strict"'),
        ("TENURE_STARTUP_CHECK", "loud", '"warn", "strict"'),
        ("TENURE_ALLOW_IN_MEMORY", "yes", "neither true nor false"),
    ],
)
def test_a_wrong_value_in_the_environment_is_refused_with_the_name_of_its_variable(
    variable: str, text: str, said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TenureConfig.from_env({"TENURE_STORE": f"acme://app:{SECRET}@db/shop", variable: text})
    assert variable in str(refused.value)
    assert said in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_settings_from_the_environment_are_compared_with_each_other_and_not_with_defaults() -> None:
    environ = {"TENURE_STORE": "memory://", "TENURE_TTL": "60", "TENURE_STORE_TIMEOUT": "45"}
    assert TenureConfig.from_env(environ) == TenureConfig(store="memory://", ttl=60.0, store_timeout=45.0)
    with pytest.raises(ConfigurationError, match=r"TENURE_STORE_TIMEOUT.* at most the ttl"):
        TenureConfig.from_env(environ | {"TENURE_TTL": "44s"})


# ------------------------------------------------------------------------------------------- opening


class Diary:
    """What happened, in its order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.findings: list[Finding] = []

    def hear(self, event: Event) -> None:
        self.lines.append(type(event).__name__)


class DiaryStore:
    """A store that writes down when it is used and closed."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._store = InMemoryLockStore()

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        self._diary.lines.append("store.acquire")
        return await self._store.acquire(key, owner, ttl_ms)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        return await self._store.renew(key, owner, ttl_ms)

    async def release(self, key: str, owner: str) -> bool:
        released = await self._store.release(key, owner)
        if released:
            self._diary.lines.append("store.release")
        return released

    async def check(self) -> list[Finding]:
        return self._diary.findings

    async def aclose(self) -> None:
        self._diary.lines.append("store.aclose")

    async def __aenter__(self) -> Self:
        self._diary.lines.append("store.enter")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Plugin:
    """An installed entry point, as importlib.metadata would find it."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def load(self) -> Callable[[str], DiaryStore]:
        return lambda _: DiaryStore(self._diary)


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    """The diary of the store that `acme://` opens."""
    kept = Diary()
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [Plugin(kept)])
    return kept


async def test_the_store_is_closed_after_everything_was_handed_back_to_it(diary: Diary) -> None:
    async with config(instance="shop-1").open(hooks=[diary.hear]) as locks:
        assert (locks.instance, locks.ttl_s) == ("shop-1", 30.0)
        assert await locks.try_acquire("invoices")
    assert diary.lines == [
        "store.enter",
        "LocksStarted",
        "store.acquire",
        "LeaseAcquired",
        "LeaseLost",
        "store.release",
        "LocksClosed",
        "store.aclose",
    ]


async def test_the_store_is_closed_when_the_body_fails(diary: Diary) -> None:
    with pytest.raises(LookupError):
        async with config().open(hooks=[diary.hear]) as locks, locks.hold("invoices"):
            raise LookupError
    assert diary.lines[-4:] == ["store.release", "LeaseReleased", "LocksClosed", "store.aclose"]


async def test_the_store_is_closed_when_the_start_fails(diary: Diary) -> None:
    diary.findings = [Finding("table-missing", fatal=True, message="There is no table.", remedy="Migrate.")]
    with pytest.raises(ConfigurationError, match="There is no table"):
        async with config().open(hooks=[diary.hear]):
            pytest.fail("started")  # pragma: no cover
    assert diary.lines == ["store.enter", "store.aclose"]


async def test_every_setting_reaches_the_locks(diary: Diary) -> None:
    settings = config(ttl="5s", instance="shop-1", store_timeout="2s", drain="3s", startup_check=False)
    async with settings.open(hooks=[]) as locks:
        assert (locks.ttl_s, locks.instance) == (5.0, "shop-1")
        assert (locks.acquirer._store_timeout_s, locks._drain_s, locks._startup_check) == (2.0, 3.0, False)


async def test_what_was_opened_is_not_opened_again(diary: Diary) -> None:
    async with config().open(hooks=[]) as locks:
        pass
    with pytest.raises(LeaseStateError, match="closed"):
        await locks.try_acquire("invoices")


async def test_the_default_hook_logs_the_store_in_use(diary: Diary, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tenure")
    async with config(instance="shop-1").open():
        pass
    assert caplog.messages == ["Locks: DiaryStore (instance shop-1)", "Locks of instance shop-1 closed"]


async def test_opening_refuses_a_store_in_memory_in_production() -> None:
    settings = TenureConfig(store="memory://", environment="production")
    with pytest.raises(ConfigurationError, match="the environment is production"):
        async with settings.open():
            pytest.fail("started")  # pragma: no cover
    async with TenureConfig(store="memory://", environment="production", allow_in_memory=True).open(hooks=[]) as locks:
        assert isinstance(locks.store, InMemoryLockStore)
